"""The interface between the core and its transports: requests, replies, streams and limits."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from warpcall._arrays import Bytes
from warpcall._body import Body
from warpcall._progress import Meter
from warpcall._transport.buffers import Buffers
from warpcall.errors import TransportError

MAX_BODY_BYTES = 256 << 20  # of an answer without tensors, or without an announced length
MAX_HEADER_CHARACTERS = 100_000  # of one value; the transports read less of a whole head
MAX_PROBLEM_BYTES = 1 << 20  # of an answer whose status is an error


@dataclass(slots=True)  # frozen would take 1 us more for each call
class Request:
    """One HTTP request. It does not change.

    Attributes:
        path: the absolute path, with the query.
        deadline: the end of the exchange, on the clock of time.monotonic.
        meter: receives the number of bytes of each piece that is sent or received.
        memory: where the answer's buffer is taken from.
        tensors: whether the answer holds tensors. Only memory limits the length of such an answer,
            if it is announced.
        connect_s: seconds to connect, before another server is tried; None means the deadline.
    """

    method: str
    path: str
    deadline: float
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    meter: Meter = field(default_factory=Meter)
    memory: Buffers = field(default_factory=Buffers)
    tensors: bool = False
    connect_s: float | None = None

    def connect_by(self) -> float:
        """When a connection must be there that is begun now, on the same clock."""
        if self.connect_s is None:
            return self.deadline
        return min(self.deadline, time.monotonic() + self.connect_s)

    def remaining_s(self) -> float:
        """Seconds left until the deadline; never negative."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(slots=True)
class Reply:
    """One HTTP answer, read to its end. Header names are in lower case. It does not change."""

    status: int
    headers: Mapping[str, str]
    body: Bytes


class Transport(Protocol):
    """Sends requests to the server. The core is written once, as coroutines, over this interface.

    A transport of the blocking client does its work inside the coroutine and never suspends; see
    `warpcall._blocking`.
    """

    async def send(self, request: Request) -> Reply:
        """Send a request and read the whole answer.

        Raises:
            ConnectionFailed: the connection was refused or broke; another try may succeed.
            TransportError: any other failure, such as the end of the time.
        """
        ...

    async def open(self, request: Request) -> Stream:
        """Send a request and read the head of an answer that comes in pieces. Raises as `send`."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class Stream(Protocol):
    """An answer that is read while it arrives. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]

    async def read(self, quiet_s: float) -> bytes:
        """The next piece; empty at the end.

        Raises:
            TransportError: no piece came for `quiet_s` seconds, or the connection broke.
        """
        ...

    async def close(self) -> None: ...


class Gathered:
    """Collects an answer whose length was not announced, of at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Append the next bytes. Raise TransportError if the answer gets too long."""
        check_length(len(self._data) + len(chunk), self._most)
        self._data += chunk

    def whole(self) -> Bytes:
        """All bytes that were added."""
        return np.frombuffer(self._data, np.uint8)


def most_nbytes(status: int, request: Request, announced: int | None) -> int:
    """The largest number of bytes that the body of an answer may have.

    Without this limit a server could fill the memory of its clients within their timeout.
    """
    if not 200 <= status < 300:
        return MAX_PROBLEM_BYTES
    return sys.maxsize if request.tensors and announced is not None else MAX_BODY_BYTES


def check_length(nbytes: int, most: int) -> None:
    """Raise TransportError if the body of an answer has more than `most` bytes."""
    if nbytes > most:
        raise TransportError(f"an answer of this kind may have at most {most} bytes, got {nbytes}")


def content_length(headers: Mapping[str, str]) -> int | None:
    """The announced length of an answer; None if it is chunked or ends with the connection."""
    text = headers.get("content-length", "")
    plain = text.isascii() and text.isdigit() and len(text) < 19
    return int(text) if plain and "transfer-encoding" not in headers else None
