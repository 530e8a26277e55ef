"""The HTTP connection: uvicorn's, with more limits, and with three functions for the hot path.

uvicorn and its parser, httptools, limit neither the bytes of a request's head and trailers, nor the
time that a head may take, nor the number of requests that are parsed ahead. Here all are limited:
one request is parsed at a time. Requests to upgrade the protocol are ignored, and trailers are
dropped.

The application finds the connection, and uvicorn's state of the request, in
`scope["extensions"]["warpcall"]`; see `http/request_connection.py`. The connection adds a callback
when the client leaves, so that no task has to wait for that; receiving a body directly into memory
of the caller; and waiting until the socket has taken every byte of a response, so that the memory
of the response can be used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from warpcall.errors import Problem
from warpcall.sockets import prepare
from warpcall_service.http.flow_control import UNSENT_BYTES, Flow
from warpcall_service.http.parsing import RequestParser, new_parser, report
from warpcall_service.http.problems import render
from warpcall_service.http.quick import HALF_CLOSE_S, QuickFeed
from warpcall_service.http.receive import DIRECT_BYTES, DirectReceive

HELD_BYTES = 32 << 10  # kept of later requests; the last read may exceed it
HEAD_TIMEOUT_S = 10.0
LINGER_S = 2.0  # for reading what a refused client still sends: closing at once would reset it


class Connection(RequestParser):
    """One client's connection."""

    flow: Flow
    _fd: int

    _on_gone: Callable[[], None] | None = None
    _held = b""  # bytes of later requests, not parsed until the current request is answered
    _head_timer: asyncio.TimerHandle | None = None
    _lingering = False
    _received: asyncio.Future[None] | None = None
    _ended = False  # the body ended early: no more bytes of it will come
    _standing: list[tuple[bytes, bytes]] | None = None  # headers that _standing_text has as text
    _standing_text = b""
    _waits_for_application = False  # reading is paused until the application has seen the head

    # For the application

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` when the client leaves, or now if it has left. None removes it."""
        self._on_gone = callback
        if callback is not None and self.transport.is_closing():
            callback()

    async def receive_into(self, target: memoryview, progress: Callable[[int], None]) -> int:
        """Receive the rest of the body, which has the length of `target`, directly into `target`.

        If this is cancelled, or the client stops early, the connection can still send one response
        and must be closed after it. `progress` is called with the number of bytes of each read.

        Returns:
            The number of bytes received: fewer than the length of `target` if the client stopped.
        """
        cycle, self._waits_for_application = self.cycle, False
        if cycle.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        came, cycle.body = cycle.body, bytearray()
        target[: len(came)] = came
        rest = target[len(came) :]
        if not rest or self._ended or self.transport.is_closing():
            return len(came)
        self._received = self.loop.create_future()
        receiver = DirectReceive(self, rest, progress, self._on_full, self._yield_to_others)
        self._read_with(receiver)
        try:
            await self._received
        finally:
            full = receiver.filled == len(rest)
            self._lingering = not full
            if not self.transport.is_closing():
                self.parser = new_parser(self)
                self._read_with(self.quick)
        if full:
            self.on_message_complete()
        return len(came) + receiver.filled

    @property
    def exhausted(self) -> bool:
        """Whether the body ended early and all its bytes were received."""
        return self._ended and not self.cycle.body

    @property
    def fault(self) -> Problem | None:
        """The problem of the bytes that ended the body early; None if the client simply stopped."""
        return self._refusal

    @property
    def fd_to_write(self) -> int | None:
        """The socket, if it can be written to instead of the transport; see `write_now`."""
        if self._is_plain and not self.transport.get_write_buffer_size():
            return self._fd
        return None

    @property
    def is_unix(self) -> bool:
        """Whether the client came through the Unix socket."""
        sock = self.transport.get_extra_info("socket")
        return sock is not None and sock.family == socket.AF_UNIX

    def write_now(self, head: bytes, data: memoryview) -> tuple[bytes, memoryview]:
        """Give the socket what it takes at once of `head` and `data`; return the rest of both.

        The transport would write only before it waits for new events, and report a round of the
        event loop later that all was taken. The next request would often come before. With TLS, and
        while the transport has unsent bytes, nothing is written.
        """
        fd = self.fd_to_write
        if fd is not None:
            with contextlib.suppress(OSError):  # full, or broken: the transport will find out
                written = os.writev(fd, (head, data))
                in_head = min(written, len(head))
                return head[in_head:], data[written - in_head :]
        return head, data

    async def drained(self) -> None:
        """Wait until the socket has taken all bytes of the transport, or the client has left.

        uvicorn's `send` returns while the transport still has up to 64 KiB to send. It keeps
        references to the memory of these bytes. If nothing is unsent this returns before it sets
        a limit of 0: with TLS that would pause writing, and nothing might resume it.
        """
        if self.transport.is_closing() or not self.transport.get_write_buffer_size():
            return
        self.transport.set_write_buffer_limits(0)
        await self.flow.drain()
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(UNSENT_BYTES)

    def abort(self) -> None:
        """Close the connection now, without sending what is unsent."""
        self.transport.abort()

    def close(self) -> None:
        """Close the connection, and abort it if that takes longer than LINGER_S.

        `transport.close()` alone could wait for ever: until the client has read what is unsent,
        and with TLS until it has sent its closing message.
        """
        self.transport.close()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def response_head(self, status: int) -> bytes:
        """The status line of a response, and the headers that it has in common with every other."""
        return STATUS_LINE[status] + self.standing_headers()

    def standing_headers(self) -> bytes:
        """The headers that uvicorn adds to every response, such as the date, as text."""
        headers = self.server_state.default_headers  # another list each second
        if headers is not self._standing:
            self._standing = headers
            self._standing_text = b"".join(
                name + b": " + value + b"\r\n" for name, value in headers
            )
        return self._standing_text

    # Called by the server

    def shutdown(self) -> None:
        """Close the connection if it is idle, or else after the response to the current request."""
        self.quick.parse_head()
        if self.quick.running is not None:
            self.quick.is_last = True
            return
        super().shutdown()
        if self._idle and not self.transport.get_write_buffer_size():
            self.close()

    # Called by the transport and the parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        sock = transport.get_extra_info("socket")
        prepare(sock)
        self._fd = sock.fileno()
        self._is_plain = transport.get_extra_info("sslcontext") is None
        self.quick = QuickFeed(self)
        transport.set_protocol(self.quick)
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
        """The client closed its sending side, or the whole connection: the two look the same.

        In the middle of a body, the response is that the rest is missing. A complete request gets
        its response if that begins within HALF_CLOSE_S: the call of a client that has left would
        otherwise keep its memory and its place in the queue. With TLS the transport closes anyway.
        """
        self.flow.holding = True  # if the transport read on, it would report the end again
        cycle = self.cycle
        if self._idle or cycle.response_started:
            return None
        if cycle.more_body:
            self._end_body()
            self._stop_receiving()
        else:
            cycle.keep_alive = False
            self.loop.call_later(HALF_CLOSE_S, self._on_no_response, cycle)
        return self.transport.can_write_eof() or None  # with TLS, True would only log a warning

    def data_received(self, data: bytes) -> None:
        if not self._lingering:
            self._unset_keepalive_if_required()
            self._feed(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            if not self._framing.complete:  # the client was refused, and had time to stop sending
                self.close()
        elif not self._framing.complete:
            self.loop.call_later(LINGER_S, self._on_no_end, self.cycle)
        elif self._held:
            self._feed_held()

    def answered(self) -> None:
        """Go on after a response that did not take the ordinary way, see `http/quick.py`."""
        self.server_state.total_requests += 1
        if self._held:
            self._feed_held()

    def timeout_keep_alive_handler(self) -> None:
        self.quick.parse_head()
        if not self._idle and self.quick.running is None:
            return  # there was a head, whose request now runs
        left_s = self.quick.answered_at + self.timeout_keep_alive - self.loop.time()
        if self.quick.running is not None:
            left_s = float(self.timeout_keep_alive)
        if left_s <= 0:
            self.close()
            return
        self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)

    @property
    def takes_request(self) -> bool:
        """Whether the next byte begins a request, and nothing earlier is unanswered or unsent."""
        return (
            self._framing.fresh
            and self._idle
            and not (self._held or self._lingering or self.transport.is_closing())
            and not self.transport.get_write_buffer_size()
        )

    def _feed(self, data: bytes) -> None:
        """Parse one request, or a part of it, and keep the bytes behind it until it is answered."""
        at, in_head = 0, self._framing.in_head
        while at < len(data):
            if self._framing.complete and not self._idle:
                self._hold(data[at:])
                return
            end = self._framing.cut(data, at)
            self._parse(data if end - at == len(data) else data[at:end])
            if self._lingering or self.transport.is_closing():
                return
            at = end
        if self._framing.in_head and not (self._framing.complete and self._parsed):
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_slow_head)
        else:
            self._stop_head_timer()
        if in_head and self._framing.left >= DIRECT_BYTES:
            self._pause_for_application()

    def _pause_for_application(self) -> None:
        """Read no more of a large body until the application has seen its head.

        It may then receive the body into memory of its own, without the parser and its copies. If it
        has to wait for that memory, reading goes on.
        """
        self._waits_for_application = True
        self.flow.pause_reading()
        self.loop.call_soon(self._read_without_application)  # after the first step of its task

    def _read_without_application(self) -> None:
        if self._waits_for_application and not self.transport.is_closing():
            self._waits_for_application = False
            self.flow.resume_reading()

    def _feed_held(self) -> None:
        held, self._held = self._held, b""
        if not self.quick.begin_request(held):
            self._unset_keepalive_if_required()
            self._feed(held)
        if not self._held:
            self.flow.holding = False
            self.flow.resume_reading()

    def _hold(self, data: bytes) -> None:
        """Keep the bytes of later requests. From HELD_BYTES on, pause reading.

        Until then reading goes on, because the server notices that a client has left by reading.
        """
        self._stop_head_timer()
        self._held += data
        if len(self._held) >= HELD_BYTES:
            self.flow.holding = True
            self.flow.pause_reading()

    def _end_body(self) -> None:
        """Wake the application if it waits for more of the body, and close after its response."""
        self._ended = True
        self.cycle.keep_alive = False
        self.cycle.message_event.set()

    def _on_full(self) -> None:
        """Pause reading: bytes behind the body belong to the next request."""
        self.flow.pause_reading()
        self._stop_receiving()

    def _yield_to_others(self) -> None:
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
        """Make `protocol` receive the data. The transport looks at it when reading starts."""
        self.flow.pause_reading()
        self.transport.set_protocol(protocol)
        self.flow.resume_reading()

    @property
    def _idle(self) -> bool:
        return self.quick.running is None and (self.cycle is None or self.cycle.response_complete)

    def _refuse(self, problem: Problem) -> None:
        """Answer with `problem`, if the application does not have a request, and close."""
        report(self.client, problem)
        self._stop_head_timer()
        if not self._idle:
            self._lingering = True
            self.cycle.keep_alive = False  # the application responds, then the connection closes
            if self.cycle.more_body:
                self._refusal = problem  # the application gets it if it reads more of the body
                self._end_body()
            return
        status, headers, body = render(problem, None)
        fields = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.close_with(STATUS_LINE[status] + fields + b"connection: close\r\n\r\n" + body)

    def close_with(self, response: bytes) -> None:
        """Send a last response, then close. What the client sends until LINGER_S is dropped."""
        self.transport.write(response)
        self._lingering = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.abort)
        else:  # with TLS, closing the transport reads and drops what still comes
            self.close()

    def _on_slow_head(self) -> None:
        self._head_timer = None
        self.close()

    def _on_no_response(self, cycle: RequestResponseCycle) -> None:
        """HALF_CLOSE_S have passed since the client closed its sending side."""
        if not cycle.response_started:
            self.transport.abort()

    def _on_no_end(self, cycle: RequestResponseCycle) -> None:
        """LINGER_S have passed since a response that was complete before its request."""
        if self.cycle is cycle and not self._framing.complete:
            self.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
