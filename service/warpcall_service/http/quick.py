"""A short way for requests that repeat an earlier request of their connection.

Programs send the same head again and again. When such a request has been answered in the ordinary
way, the application may leave a `Repeatable` with the connection: all that follows from the
request's head and from the header of its body, checked once. A later request with the same bytes
there (`http/prepared.py`) begins at once: no parser, no ASGI messages. With 8 clients a call of 4 KB then takes 45
instead of 137 us of CPU in this process (2 cores of an AMD EPYC). Whatever is not the same, or
cannot begin at once, takes the ordinary way.

If the first read does not have the whole body, the rest is read directly into memory of the
application.

A client that traces its calls sends another `traceparent` with each. What is compared of such a
request is its head without the value of that header, which the application gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from warpcall.errors import Problem
from warpcall_service.http.prepared import Prepared, PreparedRequests
from warpcall_service.http.receive import WINDOW_BYTES, Owner, ParserFeed, read_bytes
from warpcall_service.http.traceparent import cut

HALF_CLOSE_S = 2.0  # for a response to begin after the client has closed its sending side
# Time for the JSON of a request to follow its head. httpx, which the client of KServe uses, writes the two
# one after the other.
JSON_WAIT_S = 0.05


class Running(Protocol):
    """A request that was begun and is not answered yet.

    Attributes:
        status: of the response; 0 before it begins.
    """

    status: int

    def leave(self) -> None:
        """The client has left: nobody needs the answer."""

    def cancel_with(self, problem: Problem) -> None:
        """Answer with `problem` now."""


class Repeatable(Prepared, Protocol):
    """A request that can begin as soon as it comes."""

    def begin(
        self, feed: QuickFeed, data: memoryview, request_id: bytes, traceparent: bytes
    ) -> Running | None:
        """Begin a request; it ends with `feed.answer` or `feed.end`, later.

        Args:
            data: of the body, behind its header. It is copied if it is needed. If the rest of the
                body is still to come, `begin` calls `feed.receive_into`.
            request_id: the `id` in the JSON of the request; empty if it has none.
            traceparent: the valid value of this header; empty if it has none.

        Returns:
            None if the request cannot begin at once.
        """


class QuickOwner(Owner, Protocol):
    """The connection that a `QuickFeed` reads for."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    @property
    def takes_request(self) -> bool:
        """Whether the next byte begins a request that may begin at once."""

    def answered(self) -> None:
        """Go on after an answer that the application gave through the `QuickFeed`."""

    def close(self) -> None: ...

    def close_with(self, response: bytes) -> None: ...


class QuickFeed(ParserFeed):
    """Passes what it reads to the connection, apart from requests that can begin at once.

    Attributes:
        running: the request that was begun and is not answered.
        is_last: whether the connection closes after the answer to it.
        answered_at: the loop's time of the last answer; 0 before the first.
    """

    def __init__(self, owner: QuickOwner) -> None:
        super().__init__(owner)
        self._connection = owner
        self._prepared: PreparedRequests[Repeatable] = PreparedRequests()
        self._first: bytes | None = (
            None  # the last bytes that began a request, if no others followed
        )
        self._head = b""  # of a request whose JSON has not come; the parser does not have it
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest: _Rest | None = None
        self.running: Running | None = None
        self.is_last = False
        self.answered_at = 0.0

    def get_buffer(self, sizehint: int) -> memoryview:
        return super().get_buffer(sizehint) if self._rest is None else self._rest.window()

    def buffer_updated(self, nbytes: int) -> None:
        if self._rest is not None:
            self._receive(self._rest, nbytes)
            return
        data = read_bytes(nbytes)
        if self._head:
            data = self._take_head() + data
        if self.begin_request(data):
            return
        if self._prepared.lacks_json(data) and self._connection.takes_request:
            self._head = data
            self._head_timer = self._connection.loop.call_later(JSON_WAIT_S, self.parse_head)
        else:
            self._connection.data_received(data)

    def begin_request(self, data: bytes) -> bool:
        """Begin the request whose first bytes these are, if it can begin at once."""
        if not self._connection.takes_request:
            return False
        self._first = data
        found, traceparent = self._prepared.find(data), b""
        if found is None:
            traceparent, rest = cut(data)
            found = self._prepared.find(rest) if traceparent else None
        if found is None:
            return False
        prepared, begin, request_id = found
        body = memoryview(data)[begin + len(traceparent) :]
        self.running = prepared.begin(self, body, request_id, traceparent)
        return self.running is not None

    def parse_head(self) -> None:
        """Wait no longer for JSON: if there is a head without it, the connection parses this head."""
        if self._head:
            self._connection.data_received(self._take_head())

    def _take_head(self) -> bytes:
        head, self._head = self._head, b""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        return head

    def eof_received(self) -> bool | None:
        """A request that was begun gets its answer if that begins within HALF_CLOSE_S."""
        self.parse_head()
        if self.running is None:
            return self._connection.eof_received()
        self.is_last = True
        if self._rest is not None:
            self._connection.loop.call_soon(self._end_rest, self._rest)
        self._connection.loop.call_later(HALF_CLOSE_S, self._on_no_answer, self.running)
        return self._connection.transport.can_write_eof() or None

    def connection_lost(self, exc: Exception | None) -> None:
        self.parse_head()
        if self.running is not None:
            running, self.running = self.running, None
            running.leave()
        self._connection.connection_lost(exc)

    def remember(self, prepared: Repeatable, traceparent: bytes | None) -> None:
        """Use `prepared` for requests like the one that is being answered in the ordinary way.

        `PreparedRequests.add` says when this has no effect.

        Args:
            traceparent: the request's valid header of this name, empty if it is not valid, None if
                there is none. If `cut` does not find the same, this has no effect, either: the next
                request may differ, or the request has two such headers.
        """
        first, self._first = self._first, None
        if first is None:
            return
        if traceparent is not None:
            found, first = cut(first)
            if not found or found != traceparent:
                return
        self._prepared.add(first, prepared)

    def receive_into(
        self, target: memoryview, progress: Callable[[int], None], ended: Callable[[], None]
    ) -> None:
        """Receive the rest of the body of the request that begins directly into `target`.

        Args:
            target: must not be empty. It is not used any more once `ended` is called.
            progress: called with the number of bytes of each read.
            ended: called once `target` is full or the client has stopped. It is not called after
                `stop_receiving`.
        """
        self._rest = _Rest(target, progress, ended)

    def stop_receiving(self) -> None:
        """Write no more into the memory that `receive_into` was given."""
        self._rest = None

    def answer(self, response: bytes) -> None:
        """Send the whole response to the request that runs, and go on."""
        self.send(response)
        self.end()

    def send(self, response: bytes) -> None:
        """Send the whole response to the request that runs; call `end` afterwards."""
        if not self._connection.transport.is_closing():
            self._connection.transport.write(response)

    def refuse(self, response: bytes) -> None:
        """Send a response to a request whose body will not be read to its end, then close."""
        self.running = None
        if not self._connection.transport.is_closing():
            self._connection.close_with(response)

    def end(self) -> None:
        """Go on after a response whose bytes the transport has."""
        connection = self._connection
        self.running = None
        if connection.transport.is_closing():
            return
        if self.is_last:
            connection.close()
        else:
            self.answered_at = connection.loop.time()
            connection.answered()

    def _receive(self, rest: _Rest, nbytes: int) -> None:
        rest.filled += nbytes
        rest.progress(nbytes)
        if rest.filled == len(rest.target):
            self._end_rest(rest)

    def _end_rest(self, rest: _Rest) -> None:
        """Say that `rest` is full, or that no more of it will come."""
        if self._rest is rest:
            self._rest = None
            rest.ended()

    def _on_no_answer(self, running: Running) -> None:
        if self.running is running and not running.status:
            self._connection.transport.abort()


class _Rest:
    """Memory for the rest of a body, and how much of it is filled."""

    __slots__ = ("ended", "filled", "progress", "target")

    def __init__(
        self, target: memoryview, progress: Callable[[int], None], ended: Callable[[], None]
    ) -> None:
        self.target = target
        self.progress = progress
        self.ended = ended
        self.filled = 0

    def window(self) -> memoryview:
        """Where the next bytes go."""
        return self.target[self.filled : self.filled + WINDOW_BYTES]
