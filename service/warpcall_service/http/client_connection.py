"""What the application needs of the connection that a request came over.

A request that a server received has a `RequestConnection`. One that came by ASGI alone, as in tests
of the application without a socket, has a `MemoryConnection`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from warpcall.errors import Problem

HeldBytes = Callable[[], int]


class Client(Protocol):
    """Who may leave before the response, and may be disconnected."""

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` when the client leaves, or now if it has left. None removes it."""

    def abort(self) -> None:
        """Close the connection now, without sending what is unsent."""


class ClientConnection(Client, Protocol):
    """The connection of one request."""

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can have made the connection, and no browser."""

    @property
    def exhausted(self) -> bool:
        """Whether the body ended early and all its bytes were received."""

    @property
    def fault(self) -> Problem | None:
        """The problem of the bytes that ended the body early; None if the client simply stopped."""

    @property
    def takes_into(self) -> bool:
        """Whether `receive_into` can be used."""

    async def receive_into(self, target: memoryview, progress: Callable[[int], None]) -> int:
        """Receive the rest of the body, which has the length of `target`, directly into `target`.

        Args:
            progress: called with the number of bytes of each read.

        Returns:
            The number of bytes received: fewer than the length of `target` if the client stopped.
        """

    def one_write(self) -> contextlib.AbstractContextManager[HeldBytes]:
        """Hold what is sent, and write it at once at the end, unless an exception is raised.

        Yields:
            A function that returns the number of bytes that are held so far.
        """

    def slice_nbytes(self, most: int) -> int:
        """The number of bytes that are best sent at once, at most `most`."""

    async def drained(self) -> None:
        """Wait until the socket has taken all bytes that were sent, or the client has left."""

    def disown(self) -> None:
        """Expect no complete response to this request."""


class MemoryConnection:
    """Implements `ClientConnection` for a request that has nothing but ASGI's receive and send."""

    is_closing = False  # until `abort`
    is_local = False
    exhausted = False
    fault = None
    takes_into = False

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Do nothing: a client in the same process does not leave."""

    def abort(self) -> None:
        """Let nothing more be sent."""
        self.is_closing = True

    async def receive_into(self, target: memoryview, progress: Callable[[int], None]) -> int:
        """Raise NotImplementedError; see `takes_into`."""
        raise NotImplementedError

    @contextlib.contextmanager
    def one_write(self) -> Iterator[HeldBytes]:
        """Hold nothing."""
        yield lambda: 0

    def slice_nbytes(self, most: int) -> int:
        """The number of bytes to send at once."""
        return most

    async def drained(self) -> None:
        """Return at once: ASGI's send has taken all bytes."""

    def disown(self) -> None:
        """Do nothing."""
