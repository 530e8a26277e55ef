"""The connection of one request that the server received over a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from warpcall.errors import Problem
from warpcall.sockets import slice_nbytes
from warpcall_service.http.client_connection import HeldBytes
from warpcall_service.http.connection import Connection


class HeldWrites(asyncio.Transport):
    """Takes the place of a transport, and keeps what is written.

    Attributes:
        parts: all that was written, without copies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            self.parts.append(data)

    def nbytes(self) -> int:
        """The number of bytes that were written."""
        return sum(map(len, self.parts))


class RequestConnection:
    """Implements `http.client_connection.ClientConnection`.

    Args:
        cycle: uvicorn's state of this request. The connection may have that of the next one already
            when this request ends.

    Attributes:
        connection: of this request and others.
    """

    takes_into = True

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self.connection = connection
        self._cycle = cycle
        self.on_gone = connection.on_gone
        self.receive_into = connection.receive_into
        self.drained = connection.drained
        self.abort = connection.abort

    @property
    def is_closing(self) -> bool:
        return self.connection.transport.is_closing()

    @property
    def is_local(self) -> bool:
        return self.connection.is_unix

    @property
    def exhausted(self) -> bool:
        return self.connection.exhausted

    @property
    def fault(self) -> Problem | None:
        return self.connection.fault

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection stays open after this request."""
        return self._cycle.keep_alive

    @contextlib.contextmanager
    def one_write(self) -> Iterator[HeldBytes]:
        """Hold what uvicorn writes, and write it at once at the end."""
        cycle, held = self._cycle, HeldWrites()
        transport, cycle.transport = cycle.transport, held
        try:
            yield held.nbytes
        finally:
            cycle.transport = transport
        transport.writelines(held.parts)

    def slice_nbytes(self, most: int) -> int:
        """The number of bytes that are best sent at once."""
        return slice_nbytes(self.connection.transport.get_extra_info("socket"), most)

    def disown(self) -> None:
        """Tell uvicorn that the client has left: it would log an incomplete response as an error."""
        self._cycle.disconnected = True
