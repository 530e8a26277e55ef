"""The transport for TLS and proxies, on httpcore's connection pools."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import certifi
import httpcore

from warpcall._config import Config, Proxy, proxy_for
from warpcall._transport.base import (
    Gathered,
    Reply,
    Request,
    Stream,
    check_length,
    content_length,
    most_nbytes,
)
from warpcall._transport.cancellable import CancellableBackend
from warpcall._transport.connect import why_unreachable
from warpcall._transport.deadlines import left_s
from warpcall._transport.parser import header_map
from warpcall._transport.timed import Clock, TimedBackend
from warpcall.errors import CallTimedOut, ConnectionFailed, InvalidInput, TransportError

LIMITS = {"max_connections": 32, "max_keepalive_connections": 16, "keepalive_expiry": 5.0}
_STAGES: dict[type[BaseException], str] = {
    httpcore.PoolTimeout: "waiting for one of the client's connections",
    httpcore.ConnectTimeout: "connecting",
    httpcore.WriteTimeout: "sending the request",
    httpcore.ReadTimeout: "waiting for the answer, or receiving it",
}
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")

# OpenSSL's codes of certificates whose issuer is not among those that are trusted.
UNKNOWN_ISSUER = (18, 19, 20, 21)


class HttpcoreTransport:
    """The transport of the blocking client. Threads can share it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._clock = Clock()
        backend = TimedBackend(self._clock)
        self._backend = backend
        self._pool = httpcore.ConnectionPool(**_pool_arguments(config), network_backend=backend)
        self._abandoned: list[httpcore.ConnectionPool] = []
        self._pid = os.getpid()
        self._closed = False

    async def send(self, request: Request) -> Reply:
        with self._within(request.deadline, request.connect_by()):
            response = self._pool.handle_request(
                _http_request(self._config, request, _pieces(request))
            )
            try:
                reader = _ReplyReader(response, request)
                for chunk in response.iter_stream():
                    reader.take(chunk)
                return reader.reply()
            finally:
                response.close()

    async def open(self, request: Request) -> Stream:
        with self._within(request.deadline, request.connect_by()):
            http_request = _http_request(self._config, request, _pieces(request))
            return _Stream(self, self._pool.handle_request(http_request))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # no loop runs; see warpcall._blocking

    async def close(self) -> None:
        self._closed = True
        self._pool.close()

    @contextlib.contextmanager
    def _within(self, deadline: float, connect_by: float) -> Iterator[None]:
        """Limit what this thread does on its connection to the deadline, and translate errors."""
        if self._closed:
            raise RuntimeError("this client is closed")
        if self._pid != os.getpid():
            # This process is a fork, whose parent uses the same connections. To close them here
            # would tell the server that the parent leaves.
            self._pid = os.getpid()
            self._abandoned.append(self._pool)
            arguments = _pool_arguments(self._config)
            self._pool = httpcore.ConnectionPool(**arguments, network_backend=self._backend)
        self._clock.deadline, self._clock.connect_by = deadline, connect_by
        with _translated(self._config, deadline, connect_by):
            yield


class AsyncHttpcoreTransport:
    """The transport of the asyncio client."""

    def __init__(self, config: Config) -> None:
        self._config = config
        backend = CancellableBackend()
        self._pool = httpcore.AsyncConnectionPool(
            **_pool_arguments(config), network_backend=backend
        )
        self._closed = False

    async def send(self, request: Request) -> Reply:
        async with self._within(request.deadline, request.connect_by()):
            http_request = _http_request(self._config, request, _pieces_async(request))
            response = await self._pool.handle_async_request(http_request)
            try:
                reader = _ReplyReader(response, request)
                async for chunk in response.aiter_stream():
                    reader.take(chunk)
                return reader.reply()
            finally:
                await response.aclose()

    async def open(self, request: Request) -> Stream:
        async with self._within(request.deadline, request.connect_by()):
            http_request = _http_request(self._config, request, _pieces_async(request))
            return _AsyncStream(self, await self._pool.handle_async_request(http_request))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._closed = True
        await self._pool.aclose()

    @contextlib.asynccontextmanager
    async def _within(self, deadline: float, connect_by: float) -> AsyncIterator[None]:
        """Limit what this task does on its connection to the deadline, and translate errors."""
        if self._closed:
            raise RuntimeError("this client is closed")
        with _translated(self._config, deadline, connect_by):
            async with asyncio.timeout(left_s(deadline)):
                yield


class _Stream:
    """An answer that is read in pieces."""

    def __init__(self, transport: HttpcoreTransport, response: httpcore.Response) -> None:
        self._transport = transport
        self._response = response
        self._chunks = response.iter_stream()
        self.status = response.status
        self.headers: Mapping[str, str] = header_map(response.headers)

    async def read(self, quiet_s: float) -> bytes:
        deadline = time.monotonic() + quiet_s
        with self._transport._within(deadline, deadline):
            return next(self._chunks, b"")

    async def close(self) -> None:
        self._response.close()


class _AsyncStream:
    """An answer that is read in pieces, in the running loop."""

    def __init__(self, transport: AsyncHttpcoreTransport, response: httpcore.Response) -> None:
        self._transport = transport
        self._response = response
        self._chunks = response.aiter_stream()
        self.status = response.status
        self.headers: Mapping[str, str] = header_map(response.headers)

    async def read(self, quiet_s: float) -> bytes:
        deadline = time.monotonic() + quiet_s
        async with self._transport._within(deadline, deadline):
            return await anext(self._chunks, b"")

    async def close(self) -> None:
        await self._response.aclose()


def _pieces(request: Request) -> Iterator[bytes]:
    if request.body is not None:
        for piece in request.body.slices():
            left_s(request.deadline)
            yield piece  # type: ignore[misc]  # h11 takes any buffer: no copy into bytes
            request.meter.sent(piece.nbytes)


async def _pieces_async(request: Request) -> AsyncIterator[bytes]:
    for piece in _pieces(request):
        yield piece


class _ReplyReader:
    """Collects the pieces of an answer in one buffer."""

    def __init__(self, response: httpcore.Response, request: Request) -> None:
        self._request = request
        self._status = response.status
        self._headers = header_map(response.headers)
        announced = content_length(self._headers)
        most = most_nbytes(self._status, request, announced)
        check_length(announced or 0, most)
        self._gathered = Gathered(most)
        self._buffer = None if announced is None else request.memory.take(announced)
        self._at = 0
        request.meter.expect(announced or 0)

    def take(self, chunk: bytes) -> None:
        left_s(self._request.deadline)
        if self._buffer is None:
            self._gathered.add(chunk)
        else:
            self._buffer.data[self._at : self._at + len(chunk)] = chunk
        self._at += len(chunk)
        self._request.meter.received(len(chunk))

    def reply(self) -> Reply:
        body = self._gathered.whole() if self._buffer is None else self._buffer
        return Reply(self._status, self._headers, body)


def _http_request(
    config: Config, request: Request, pieces: Iterator[bytes] | AsyncIterator[bytes]
) -> httpcore.Request:
    headers = [("Host", config.authority), *request.headers.items()]
    if request.body is not None:
        headers.append(("Content-Length", str(request.body.nbytes)))
    seconds = left_s(request.deadline)
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
    timeouts["connect"] = left_s(request.connect_by())
    return httpcore.Request(
        request.method,
        httpcore.URL(scheme=config.scheme, host=config.host, port=config.port, target=request.path),
        headers=headers,
        content=None if request.body is None else pieces,
        extensions={"timeout": timeouts},
    )


def _pool_arguments(config: Config) -> dict[str, Any]:
    """The arguments that both connection pools have in common."""
    proxy = proxy_for(config)
    secure = config.scheme == "https"
    return {
        **LIMITS,
        "ssl_context": _tls_context() if secure else None,
        "proxy": None if proxy is None else _http_proxy(proxy),
    }


def _http_proxy(proxy: Proxy) -> httpcore.Proxy:
    context = _tls_context() if proxy.url.startswith("https:") else None
    return httpcore.Proxy(proxy.url, auth=proxy.auth, ssl_context=context)


def _tls_context() -> ssl.SSLContext:
    """A TLS context that trusts SSL_CERT_FILE or SSL_CERT_DIR, or else certifi's certificates.

    Raises:
        InvalidInput: SSL_CERT_FILE does not name a file of certificates in PEM.
    """
    given, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    try:
        if folder and not given:
            return ssl.create_default_context(capath=folder)
        return ssl.create_default_context(cafile=given or certifi.where())
    except OSError as error:
        why = "it holds none" if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidInput(
            f"SSL_CERT_FILE must name a file of certificates in PEM, got {given!r}: {why}",
            field="SSL_CERT_FILE",
        ) from None


@contextlib.contextmanager
def _translated(config: Config, deadline: float, connect_by: float) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, httpcore.TimeoutException) as error:
        raise _out_of_time(config, error, deadline, connect_by) from error
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError) as error:
        raise _failure(config, error) from error


def _out_of_time(
    config: Config, error: Exception, deadline: float, connect_by: float
) -> TransportError:
    proxy = proxy_for(config)
    server = config.host if proxy is None else f"{config.host} through {proxy.shown}"
    if isinstance(error, httpcore.ConnectTimeout) and connect_by != deadline:
        return ConnectionFailed(f"cannot reach {server}: the time to connect is over")
    return CallTimedOut(server, _STAGES.get(type(error), "waiting for the answer"))


def _failure(config: Config, error: Exception) -> TransportError:
    """What a connection's failure says to the user, with the proxy that it may be due to."""
    proxy = proxy_for(config)
    through = "" if proxy is None else f" through {proxy.shown}"
    if isinstance(error, httpcore.ProxyError) and proxy is not None:
        return ConnectionFailed(f"{proxy.shown} does not connect to {config.host}: {error}")
    if not isinstance(error, httpcore.ConnectError):
        return ConnectionFailed(f"the connection to {config.host}{through} broke: {error}")
    cause = error.args[0] if error.args else None
    if isinstance(cause, ssl.SSLError) and cause.reason in NOT_TLS:
        return TransportError(
            f"{config.host}{through} does not speak TLS on port {config.port}: "
            "for plain HTTP the url begins with http://"
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConnectionFailed(_why_untrusted(config, cause) + through)
    listener = f"a Warpcall server running at {config.url}"
    if proxy is not None:
        listener = f"{proxy.shown} running"
    return ConnectionFailed(f"cannot reach {config.authority}: {why_unreachable(error, listener)}")


def _why_untrusted(config: Config, error: ssl.SSLCertVerificationError) -> str:
    """What is wrong with a server's certificate, and what helps if nobody vouches for it."""
    text = f"the certificate of {config.authority} is not trusted: {error.verify_message}"
    if error.verify_code not in UNKNOWN_ISSUER:
        return text
    return (
        f"{text}; if it is your own, set SSL_CERT_FILE to a PEM file that has this certificate, or "
        "that of the authority which signed it"
    )
