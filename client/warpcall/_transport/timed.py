"""A blocking backend for httpcore in which every exchange ends by its deadline.

httpcore's own timeouts apply to one read or write. A server that sends one byte now and then could
therefore prolong an exchange without end. An exchange runs in one thread from its first byte to its
last, so the deadline is a thread-local value. In asyncio a timeout around the whole exchange has
the same effect; see cancellable.py.
"""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import httpcore

from warpcall._transport.connect import connect
from warpcall._transport.deadlines import left_s
from warpcall.sockets import is_loss, notice_loss

T = TypeVar("T")
RECORD_BYTES = 16 << 10  # the largest TLS record
# TLS in TLS encrypts a whole piece in memory before it is sent.
PIECE_BYTES = 1 << 20


class Clock(threading.local):
    """The deadline of the exchange that runs in the calling thread.

    Attributes:
        connect_by: when its connection must be there.
    """

    deadline = connect_by = 0.0

    def left_s(self) -> float:
        """Seconds until the deadline. Raise TimeoutError if it has passed."""
        return left_s(self.deadline)


class TimedBackend(httpcore.NetworkBackend):
    """Connects within the deadline of the calling thread's exchange."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        with _raised_as(httpcore.ConnectTimeout, httpcore.ConnectError):
            sock = connect((host, port), self._clock.connect_by)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_loss(sock)
        return _Connection(sock, self._clock)


class _Connection(httpcore.NetworkStream):
    """A connection with or without TLS."""

    def __init__(self, sock: socket.socket, clock: Clock) -> None:
        self._sock = sock
        self._clock = clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _raised_as(httpcore.ReadTimeout, httpcore.ReadError):
            return self.receive(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _raised_as(httpcore.WriteTimeout, httpcore.WriteError):
            self.send(buffer)

    def receive(self, nbytes: int) -> bytes:
        """Receive up to `nbytes`; empty at the end. Raises as a socket does."""
        self._sock.settimeout(self._clock.left_s())
        return self._sock.recv(nbytes)

    def send(self, data: bytes) -> None:
        """Send all of `data`. Raises as a socket does."""
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(self._clock.left_s())
            rest = rest[self._sock.send(rest) :]

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        try:
            with _raised_as(httpcore.ConnectTimeout, httpcore.ConnectError):
                if isinstance(self._sock, ssl.SSLSocket):
                    return _TlsInTls(self, ssl_context, server_hostname)
                self._sock.settimeout(self._clock.left_s())  # a limit on the whole handshake
                secured = ssl_context.wrap_socket(self._sock, server_hostname=server_hostname)
                return _Connection(secured, self._clock)
        except BaseException:
            self.close()
            raise

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return _is_readable(self._sock)
        return (
            self._sock if info == "ssl_object" and isinstance(self._sock, ssl.SSLSocket) else None
        )


class _TlsInTls(httpcore.NetworkStream):
    """TLS to a server inside the TLS to a proxy. The ssl module has no socket for this."""

    def __init__(
        self, outer: _Connection, context: ssl.SSLContext, server_hostname: str | None
    ) -> None:
        self._outer = outer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=server_hostname
        )
        self._do(self._tls.do_handshake)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _raised_as(httpcore.ReadTimeout, httpcore.ReadError):
            return self._do(functools.partial(self._tls.read, max_bytes))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _raised_as(httpcore.WriteTimeout, httpcore.WriteError):
            rest = memoryview(buffer)
            while rest:
                rest = rest[self._do(functools.partial(self._tls.write, rest[:PIECE_BYTES])) :]

    def close(self) -> None:
        self._outer.close()

    def get_extra_info(self, info: str) -> Any:
        return self._tls if info == "ssl_object" else self._outer.get_extra_info(info)

    def _do(self, act: Callable[[], T]) -> T:
        """Run a TLS operation, and send and receive the records that it needs."""
        while True:
            try:
                result = act()
            except ssl.SSLWantReadError:
                self._outer.send(self._outgoing.read())
                received = self._outer.receive(RECORD_BYTES)
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
            else:
                self._outer.send(self._outgoing.read())
                return result


def _is_readable(sock: socket.socket) -> bool:
    """Whether an idle connection was closed by the peer, or received bytes without a request."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def _raised_as(timeout: type[Exception], failure: type[Exception]) -> Iterator[None]:
    """Raise a socket's errors as httpcore's errors, which its connection pool handles."""
    try:
        yield
    except OSError as error:
        expired = isinstance(error, TimeoutError) and not is_loss(error)
        raise (timeout if expired else failure)(error) from error
