"""The HTTP connection: uvicorn's, with bounds on what it lacks and three things for the hot path.

Bounded: the bytes of a request's head (and of trailers), and the time a head may take; httptools
limits neither. Added for the application, as `scope["extensions"]["warpcall"]["connection"]`: a
call back when the client leaves, without a task that waits for it; a body that is received straight
into its place; and a drain that returns once every byte handed over has reached the socket, so that
the memory those bytes lie in can be used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from warpcall.errors import Problem
from warpcall.sockets import prepare
from warpcall_service.intake import Intake, Pieces
from warpcall_service.problems import BadRequest, HeadTooLarge, render

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128  # of a request; each costs the parser a call of a Python function
HEAD_TIMEOUT_S = 10.0
LINGER_S = 2.0  # time to read and drop what a refused client still sends: closing at once resets it


class Connection(HttpToolsProtocol):
    """One client's connection."""

    _on_gone: Callable[[], None] | None = None
    _head_nbytes = 0  # of request line and headers, as the parser reports them
    _silent_nbytes = 0  # fed to the parser since it last reported anything
    _parsed = False  # whether the parser reported anything for the bytes at hand
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _refusal: Problem | None = None
    _lingering = False
    _received: asyncio.Future[None] | None = None
    _ended = False  # the body will not go on, although it should

    # What the application uses

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` when the client leaves; at once if it has left; None to forget it."""
        self._on_gone = callback
        if callback is not None and self.transport.is_closing():
            callback()

    async def receive_into(self, target: memoryview, progress: Callable[[int], None]) -> int:
        """Receive the rest of the body, whose length `target` has, straight into it.

        Cancelled, or cut short by the client, it leaves a connection that can still answer and
        then has to be closed.

        Returns:
            The bytes received, fewer than asked for if the client stopped.
        """
        cycle = self.cycle
        if cycle.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        came, cycle.body = cycle.body, bytearray()
        target[: len(came)] = came
        rest = target[len(came) :]
        if not rest or self._ended or self.transport.is_closing():
            return len(came)
        self._received = self.loop.create_future()
        intake = Intake(self, rest, progress, self._on_full, self._let_others_read)
        self._read_with(intake)
        try:
            await self._received
        finally:
            full = intake.filled == len(rest)
            self._lingering = not full
            if not self.transport.is_closing():
                self.parser = _parser(self)
                self._read_with(Pieces(self))
        if full:
            self.on_message_complete()
        return len(came) + intake.filled

    @property
    def exhausted(self) -> bool:
        """Whether the body will have no byte more than were received, although it should."""
        return self._ended and not self.cycle.body

    @property
    def fault(self) -> Problem | None:
        """What was wrong with the bytes that ended the body, if it was not the client's leaving."""
        return self._refusal

    async def drained(self) -> None:
        """Wait until nothing handed to the transport is still unsent (or the client has left).

        uvicorn's own `send` returns while up to 64 KiB wait in the transport, as references to the
        memory they lie in.
        """
        if self.transport.is_closing():
            return
        self.transport.set_write_buffer_limits(0)
        await self.flow.drain()
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits()

    def abort(self) -> None:
        """Drop the connection now, unsent bytes and all."""
        self.transport.abort()

    # What the transport and the parser call

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        prepare(transport.get_extra_info("socket"))
        transport.set_protocol(Pieces(self))
        # A client may connect ahead of its first request, as long as between two of them.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)
        if self._on_gone is not None:
            self._on_gone()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A client that stops in the middle of a body is told so; any other one has left."""
        if self._idle or not self.cycle.more_body:
            return None
        self._end_body()
        self._stop_receiving()
        return True

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        self._parsed = False
        super().data_received(data)
        if self._lingering or self.transport.is_closing():
            return
        self._silent_nbytes = 0 if self._parsed else self._silent_nbytes + len(data)
        if self._silent_nbytes > MAX_HEAD_BYTES:
            self._refuse(self._too_large())
        elif not (self._in_head or (self._idle and not self._parsed)):
            self._stop_head_timer()
        elif self._head_timer is None:
            self._start_head_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"warpcall": {"connection": self}}
        self._parsed, self._in_head, self._head_nbytes = True, True, 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if len(self.headers) >= MAX_HEADERS:
            self._refusal = HeadTooLarge(
                f"a request must have at most {MAX_HEADERS} headers", field="headers"
            )
            raise self._refusal
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._parsed, self._in_head = True, False
        super().on_headers_complete()
        self.scope["extensions"]["warpcall"]["cycle"] = self.cycle

    def on_body(self, body: bytes) -> None:
        self._parsed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._parsed = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser gave up, or one of the callbacks above raised."""
        self._refuse(
            self._refusal or BadRequest("the request must be HTTP/1.1, got something else")
        )

    def _end_body(self) -> None:
        """Wake an application that waits for more, and serve nothing after its answer."""
        self._ended = True
        self.cycle.keep_alive = False
        self.cycle.message_event.set()

    def _on_full(self) -> None:
        """Read no further: what follows, if anything, is the next request."""
        self.flow.pause_reading()
        self._stop_receiving()

    def _let_others_read(self) -> None:
        """Read on in the next round of the event loop."""
        self.flow.pause_reading()
        self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        receiving = self._received is not None and not self._received.done()
        if receiving and not self.transport.is_closing():
            self.flow.resume_reading()

    def _stop_receiving(self) -> None:
        if self._received is not None and not self._received.done():
            self._received.set_result(None)

    def _read_with(self, protocol: asyncio.BaseProtocol) -> None:
        """Have the transport give what it reads to `protocol`; it looks only when it starts."""
        self.flow.pause_reading()
        self.transport.set_protocol(protocol)
        self.flow.resume_reading()

    def _count(self, nbytes: int) -> None:
        self._head_nbytes += nbytes
        if self._head_nbytes > MAX_HEAD_BYTES:
            self._refusal = self._too_large()
            raise self._refusal

    def _too_large(self) -> Problem:
        return HeadTooLarge(
            f"the request line and headers must have at most {MAX_HEAD_BYTES} bytes together",
            field="headers",
        )

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self, problem: Problem) -> None:
        """Answer on the bare connection, if no application runs, and close it."""
        self._stop_head_timer()
        if not self._idle:
            self._lingering = True
            self.cycle.keep_alive = False  # it gives its answer, then the connection closes
            if self.cycle.more_body:
                self._refusal = problem  # and this is the answer if it reads on
                self._end_body()
            return
        status, headers, body = render(problem, None)
        fields = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[status] + fields + b"connection: close\r\n\r\n" + body)
        self.transport.write_eof()
        self._lingering = True
        self.loop.call_later(LINGER_S, self.transport.close)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_slow_head)

    def _on_slow_head(self) -> None:
        self._head_timer = None
        if self._idle:
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _parser(connection: Connection) -> httptools.HttpRequestParser:
    """A new one, as uvicorn makes it."""
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
