"""What the core and the ways to the server exchange: requests, replies, and the errors between."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from warpcall._arrays import Bytes
from warpcall._body import Body
from warpcall._progress import Meter
from warpcall._text import clean
from warpcall._transport.buffers import Buffers
from warpcall.errors import TransportError

MAX_BODY_BYTES = 256 << 20  # of answers without tensors, and of those whose length is not announced
MAX_HEADER_CHARACTERS = 100_000  # more than the transports read of a whole head
MAX_PROBLEM_BYTES = 1 << 20  # of answers whose status says that something is wrong


class ConnectionFailed(TransportError):
    """The connection was refused or broke: another try may succeed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; `path` is absolute.

    Attributes:
        deadline: on the clock of time.monotonic.
        meter: hears of each piece that moves.
        memory: for the answer.
        tensors: whether the answer holds tensors, whose announced length only memory bounds.
    """

    method: str
    path: str
    deadline: float
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    meter: Meter = field(default_factory=Meter)
    memory: Buffers = field(default_factory=Buffers)
    tensors: bool = False

    def remaining_s(self) -> float:
        """Seconds left until the deadline; never negative."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer, read to its end; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Bytes


class Transport(Protocol):
    """A way to the server. The core is written once, as coroutines, over this.

    A transport of the blocking client does its work in the coroutine and never suspends; see `run_now`.
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


class Gathered:
    """An answer whose length was not announced, read up to `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Append the next bytes; TransportError if they are too many."""
        check_length(len(self._data) + len(chunk), self._most)
        self._data += chunk

    def whole(self) -> Bytes:
        """All bytes that came."""
        return np.frombuffer(self._data, np.uint8)


def most_nbytes(status: int, request: Request, announced: int | None) -> int:
    """How many bytes the body of an answer may have.

    Without a bound, a server could fill the memory of its clients within their timeout.
    """
    if not 200 <= status < 300:
        return MAX_PROBLEM_BYTES
    return sys.maxsize if request.tensors and announced is not None else MAX_BODY_BYTES


def check_length(nbytes: int, most: int) -> None:
    """Raise TransportError if the body of an answer has more bytes than it may have."""
    if nbytes > most:
        raise TransportError(f"an answer of this kind may have at most {most} bytes, got {nbytes}")


def header_map(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in lower case, with values that can be shown."""
    texts = {name.decode().lower(): value.decode("latin-1") for name, value in headers}
    if not all(map(str.isprintable, texts.values())):
        texts = {name: clean(text, MAX_HEADER_CHARACTERS) for name, text in texts.items()}
    return texts


def content_length(headers: Mapping[str, str]) -> int | None:
    """The announced length of an answer; None if it is chunked or ends with the connection."""
    text = headers.get("content-length", "")
    plain = text.isascii() and text.isdigit() and len(text) < 19
    return int(text) if plain and "transfer-encoding" not in headers else None
