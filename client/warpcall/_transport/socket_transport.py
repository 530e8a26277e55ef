"""The transport for plain HTTP: httptools parses the heads, and sockets move the bodies.

httpx moves 64 MB at 0.64 (sync) and 0.4 (async) of the speed of a bare socket loop on the same
machine, because each byte passes through h11's buffer in pieces of 64 KB. Here a body is sent from
the caller's arrays and received into one buffer, at 0.8 to 1.0 of that speed, sync and async.
The transport is written once, over non-blocking sockets; both clients differ in how they wait.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Mapping

import numpy as np

from warpcall._progress import Meter
from warpcall._transport.base import (
    Gathered,
    Reply,
    Request,
    Stream,
    check_length,
    content_length,
    most_nbytes,
)
from warpcall._transport.connect import Address, is_quiet, why_unreachable
from warpcall._transport.deadlines import left_s
from warpcall._transport.parser import HEAD_BYTES, AnswerParser, Malformed
from warpcall._transport.waiters import Waiter
from warpcall.errors import CallTimedOut, ConnectionFailed, TransportError, WarpcallError
from warpcall.sockets import is_loss, notice_loss, prepare, slice_nbytes

RECEIVE_BYTES = 512 << 10  # of one read; the fastest size on loopback
TLS_ALERT = b"\x15"  # the first byte of a TLS server's reply to plain HTTP
MAYBE_TLS = "if the server expects TLS, its url begins with https://"
ASK_S = 1.0  # for the answer to "Expect: 100-continue", which some servers do not give
MAX_IDLE_S = 55.0  # a proxy or firewall may have dropped a connection that was idle for longer


class Connection:
    """A connection to the server, with what its exchanges share.

    Args:
        sock: connected and not blocking.

    Attributes:
        space: memory for one read of an answer's head.
        idle_since: when its last exchange ended, on the clock of time.monotonic; 0 before.
    """

    __slots__ = ("idle_since", "slice_nbytes", "sock", "space")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.slice_nbytes = slice_nbytes(sock)
        self.space = memoryview(bytearray(HEAD_BYTES))
        self.idle_since = 0.0


class SocketTransport:
    """Exchanges with one server, over a pool of connections.

    Args:
        address: the address on which the server listens.
        authority: the value of the Host header.
        waiter: BlockingWaiter() or LoopWaiter(), which decides how the transport waits.
    """

    def __init__(self, address: Address, authority: str, waiter: Waiter) -> None:
        self._address, self._authority = address, authority
        self._waiter = waiter
        self._idle: deque[Connection] = deque()
        self._closed = False
        self._pid = os.getpid()

    async def send(self, request: Request) -> Reply:
        self._refuse_if_closed()
        stage = "waiting for one of the client's connections"
        try:
            await self._waiter.acquire_permit(request.deadline)
            try:
                stage = "connecting"
                connection = self._idle_connection() or await self._connect(request)
                exchange = _Exchange(connection, self._waiter, request, self._authority)
                try:
                    reply = await exchange.run()
                except BaseException:
                    stage = exchange.stage
                    connection.sock.close()
                    raise
                finally:
                    exchange.close()
                if exchange.reusable and not self._closed:
                    connection.idle_since = time.monotonic()
                    self._idle.append(connection)
                else:
                    connection.sock.close()
                return reply
            finally:
                self._waiter.release_permit()
        except (OSError, Malformed) as error:
            raise _translated(error, self._authority, stage) from error

    async def open(self, request: Request) -> Stream:
        """Open the stream on a connection of its own, beside the MAX_CONNECTIONS of calls."""
        self._refuse_if_closed()
        stage = "connecting"
        try:
            connection = await self._connect(request)
            exchange = _Exchange(connection, self._waiter, request, self._authority)
            try:
                await exchange.begin()
            except BaseException:
                stage = exchange.stage
                connection.sock.close()
                raise
            return _SocketStream(connection.sock, exchange, self._authority)
        except (OSError, Malformed) as error:
            raise _translated(error, self._authority, stage) from error

    async def sleep(self, seconds: float) -> None:
        await self._waiter.sleep(seconds)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().sock.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("this client is closed")
        if self._pid != os.getpid():
            # This process is a fork. Its parent uses the same connections, and holds the permits.
            self._pid = os.getpid()
            while self._idle:
                self._idle.pop().sock.close()
            self._waiter.renew_permits()

    def _idle_connection(self) -> Connection | None:
        """The idle connection that was used last and is still open; None if there is none."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:  # not `if self._idle`: another thread may take the last one
                return None
            is_young = time.monotonic() - connection.idle_since < MAX_IDLE_S
            if is_young and is_quiet(connection.sock):
                return connection
            connection.sock.close()

    async def _connect(self, request: Request) -> Connection:
        by = request.connect_by()
        try:
            sock = await self._waiter.connect(self._address, by)
        except OSError as error:
            if isinstance(error, TimeoutError) and by == request.deadline:
                raise
            is_path = isinstance(self._address, str)
            where = self._address if is_path else self._authority
            url = f"{'unix' if is_path else 'http'}://{where}"
            reason = why_unreachable(error, f"a Warpcall server running at {url}")
            raise ConnectionFailed(f"cannot reach {where}: {reason}") from error
        sock.setblocking(False)
        prepare(sock)
        notice_loss(sock)
        return Connection(sock)


class _Exchange:
    """One request and its answer on one connection.

    Attributes:
        parser: what the head of the answer says.
        stage: what the exchange does now, for the message of a timeout.
        reusable: whether the connection can carry another exchange.
    """

    __slots__ = (
        "_connection",
        "_head",
        "_request",
        "_sent",
        "_sock",
        "_waiter",
        "_whole",
        "parser",
        "reusable",
        "stage",
    )

    def __init__(
        self, connection: Connection, waiter: Waiter, request: Request, authority: str
    ) -> None:
        self._connection = connection
        self._sock = connection.sock
        self._waiter = waiter
        self._request = request
        self._head = _request_head(request, authority)
        self._sent = 0
        self._whole = False
        self.parser = AnswerParser()
        self.stage = "sending the request"
        self.reusable = False

    async def run(self) -> Reply:
        await self.begin()
        parser, request = self.parser, self._request
        headers = parser.headers()
        announced = content_length(headers)
        most = most_nbytes(parser.status, request, announced)
        if parser.complete and not parser.chunked:
            early = parser.body()
            check_length(len(early), most)
            body = np.frombuffer(bytearray(early), np.uint8)  # users may write to their arrays
            request.meter.expect(len(early))
            request.meter.received(len(early))
            self.reusable = self._whole and parser.keeps_alive and not parser.surplus
        elif announced is None:
            gathered = Gathered(most)
            while chunk := await self.more(request.deadline):
                gathered.add(chunk)
            body = gathered.whole()
            self.reusable = (
                self._whole and parser.complete and parser.keeps_alive and not parser.surplus
            )
        else:
            check_length(announced, most)
            body = request.memory.take(announced)
            early = parser.body()
            body.data[: len(early)] = early
            request.meter.expect(announced)
            request.meter.received(len(early))
            await self._receive(body.data[len(early) :], request.meter)
            self.reusable = self._whole and parser.keeps_alive
        return Reply(parser.status, headers, body)

    async def begin(self) -> None:
        """Send the request and read the head of the answer."""
        broken: OSError | None = None
        try:
            self._whole = await self._send()
        except TimeoutError:
            raise
        except OSError as error:  # the server may have answered before it closed the connection
            broken = error
        self.stage = "waiting for the answer"
        try:
            await self._receive_head()
        except TimeoutError:
            raise
        except OSError as error:
            raise broken or error from None
        self.stage = "receiving the answer"

    async def more(self, deadline: float) -> bytes:
        """The next piece of the answer; empty at its end."""
        left_s(deadline)  # the waiter checks it only when it waits, which a fast server avoids
        while True:
            if piece := self.parser.body():
                return piece
            if self.parser.complete:
                return b""
            n = await self._waiter.receive(self._sock, self._connection.space, deadline)
            if not n:
                if self.parser.chunked:
                    raise ConnectionResetError("the end of the answer is missing")
                return b""
            self.parser.feed(self._connection.space[:n])

    def close(self) -> None:
        """Free the parser."""
        self.parser.close()

    async def _send(self) -> bool:
        """Send the request. Return False if the server answered, or closed, before all was sent."""
        body = self._request.body
        if body is None:
            return await self._send_piece(memoryview(self._head))
        if body.joined is not None:  # a small call is sent by one write
            if not await self._send_piece(memoryview(self._head + body.joined)):
                return False
            self._request.meter.sent(body.nbytes)
            return True
        if not await self._send_piece(memoryview(self._head)):
            return False
        if body.asks_first and not await self._is_wanted():
            return False
        for piece in body.slices(self._connection.slice_nbytes):
            if not await self._send_piece(piece):
                return False
            self._sent += piece.nbytes
            self._request.meter.sent(piece.nbytes)
            if self._sent < body.nbytes:
                self.stage = f"sending the body, {self._sent:,} of {body.nbytes:,} bytes"
        return True

    async def _is_wanted(self) -> bool:
        """Whether the server wants the body: it asked for it, or said nothing for some time."""
        deadline = min(self._request.deadline, time.monotonic() + ASK_S)
        try:
            while not self.parser.continues and not self.parser.status:
                space = self._connection.space
                n = await self._waiter.receive(self._sock, space, deadline)
                if not n:
                    return False
                self.parser.feed(space[:n])
        except TimeoutError:
            left_s(self._request.deadline)
        return not self.parser.status

    async def _send_piece(self, piece: memoryview) -> bool:
        deadline = self._request.deadline
        while True:
            left_s(deadline)
            n = await self._waiter.send(self._sock, piece, deadline)
            if n == piece.nbytes:
                return True
            if not n:
                return False
            piece = piece[n:]

    async def _receive_head(self) -> None:
        space, deadline = self._connection.space, self._request.deadline
        parser, heard = self.parser, False
        while not parser.status:
            left_s(deadline)
            if not heard:  # a read before the server has answered would be in vain
                await self._waiter.readable(self._sock, deadline)
            try:
                n = await self._waiter.receive(self._sock, space, deadline)
            except ConnectionResetError:
                if heard:
                    raise
                n = 0
            if not n:
                is_fresh = not heard and not self._connection.idle_since
                hint = f"; {MAYBE_TLS}" if is_fresh else ""
                raise ConnectionResetError(f"the server left without an answer{hint}")
            data = space[:n]
            if not heard and data[:1] == TLS_ALERT:
                raise Malformed(f"it sent a TLS alert; {MAYBE_TLS}")
            heard = True
            parser.feed(data)

    async def _receive(self, view: memoryview, meter: Meter) -> None:
        at, sock, deadline = 0, self._sock, self._request.deadline
        while at < view.nbytes:
            left_s(deadline)
            piece = view[at : at + RECEIVE_BYTES]
            n = await self._waiter.receive(sock, piece, deadline)
            if not n:
                missing = view.nbytes - at
                raise ConnectionResetError(f"the last {missing} bytes of the answer are missing")
            meter.received(n)
            at += n


class _SocketStream:
    """An answer that is read in pieces, on a connection of its own."""

    def __init__(self, sock: socket.socket, exchange: _Exchange, authority: str) -> None:
        self._sock, self._exchange, self._authority = sock, exchange, authority
        self.status: int = exchange.parser.status
        self.headers: Mapping[str, str] = exchange.parser.headers()

    async def read(self, quiet_s: float) -> bytes:
        try:
            return await self._exchange.more(time.monotonic() + quiet_s)
        except (OSError, Malformed) as error:
            raise _translated(error, self._authority, self._exchange.stage) from error

    async def close(self) -> None:
        self._exchange.close()
        self._sock.close()


def _request_head(request: Request, authority: str) -> bytes:
    """The head of a request. The core has checked the values of its headers."""
    lines = [f"{request.method} {request.path} HTTP/1.1", f"Host: {authority}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    if request.body is not None:
        lines.append(f"Content-Length: {request.body.nbytes}")
        if request.body.asks_first:
            lines.append("Expect: 100-continue")
    lines.append("\r\n")
    return "\r\n".join(lines).encode("ascii")


def _translated(error: Exception, authority: str, stage: str) -> WarpcallError:
    if isinstance(error, TimeoutError) and not is_loss(error):
        return CallTimedOut(authority, stage)
    if isinstance(error, Malformed):
        return TransportError(f"{authority} did not answer in HTTP: {error}")
    return ConnectionFailed(f"the connection to {authority} broke: {error}")
