"""What the core and the ways to the server exchange: requests, replies, and the errors between."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from warpcall._arrays import Bytes
from warpcall._body import Body
from warpcall._buffers import Buffers
from warpcall._progress import Meter
from warpcall.errors import TransportError

T = TypeVar("T")


class ConnectionFailed(TransportError):
    """The connection was refused or broke: another try may succeed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; `path` is absolute.

    Attributes:
        deadline: on the clock of time.monotonic.
        meter: hears of each piece that moves.
        memory: for the answer.
    """

    method: str
    path: str
    deadline: float
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    meter: Meter = field(default_factory=Meter)
    memory: Buffers = field(default_factory=Buffers)

    def remaining_s(self) -> float:
        """Seconds left until the deadline; never negative."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer, read to its end; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Bytes


class Road(Protocol):
    """A way to the server. The core is written once, as coroutines, over this.

    A road of the blocking client does its work in the coroutine and never suspends; see `run_now`.
    """

    async def send(self, request: Request) -> Reply:
        """Raises TransportError, as ConnectionFailed where another try may succeed."""
        ...

    async def open(self, request: Request) -> Stream:
        """Begin to read an answer that comes piece by piece; raises as `send`."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class Stream(Protocol):
    """An answer that is read as it comes; header names in lower case."""

    status: int
    headers: Mapping[str, str]

    async def read(self, quiet_s: float) -> bytes:
        """The next piece, empty at the end; TransportError after so many seconds without one."""
        ...

    async def close(self) -> None: ...


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine over a road that never suspends."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a blocking road suspended")


def each_now(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """What an asynchronous generator over a road that never suspends gives, never None."""

    async def following() -> T | None:
        return await anext(items, None)

    try:
        while (item := run_now(following())) is not None:
            yield item
    finally:
        run_now(items.aclose())


def joined(chunks: list[bytes]) -> Bytes:
    """An answer of unannounced length."""
    return np.frombuffer(bytearray(b"".join(chunks)), np.uint8)


def content_length(headers: Mapping[str, str]) -> int | None:
    """The announced length of an answer; None if it is chunked or ends with the connection."""
    text = headers.get("content-length", "")
    plain = text.isascii() and text.isdigit() and len(text) < 19
    return int(text) if plain and "transfer-encoding" not in headers else None
