"""The gRPC server: each of its requests is one of HTTP, which the application answers in this process.

So keys, limits, the log, metrics and traces are those of HTTP. A message is read only when its caller
is known and within their limits: gRPC reads a message whole, into memory that no limit counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from warpcall import wire
from warpcall.errors import InvalidInput, TimedOut
from warpcall_service.http.body import FRAMING_BYTES
from warpcall_service.http.client_connection import MemoryConnection
from warpcall_service.http.exchange import SLICE_BYTES, ClientGone, Exchange
from warpcall_service.http.listen import ServerError
from warpcall_service.http.problems import Headers
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.oip.shared_memory import INDIRECT
from warpcall_service.settings import Settings

if TYPE_CHECKING:
    import grpc.aio

    from warpcall_service.oip.grpc.methods import Method
    from warpcall_service.oip.grpc.raw_fields import Bytes

# Tensors in a message. gRPC copies a message as a whole, several times, in each direction, and other
# requests wait meanwhile: with 1 GiB for seconds.
MAX_TENSOR_BYTES = 64 << 20
MAX_METADATA_BYTES = 16 << 10
PING_S = 60  # after which a client that sends nothing is asked whether it is still there
IDLE_S = 3600  # after which a connection without requests is closed; clients make a new one
# Headers of HTTP that a request may have as metadata.
_METADATA = frozenset(
    {
        b"authorization",
        b"x-request-id",
        b"traceparent",
        b"tracestate",
        wire.TIMEOUT_HEADER.lower().encode(),
        *INDIRECT,
    }
)
_TRAILERS = (b"x-request-id", b"retry-after", b"server-timing", b"x-warpcall-device")
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",
    421: "FAILED_PRECONDITION",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    507: "RESOURCE_EXHAUSTED",
}


class Context(Protocol):
    """What gRPC knows of a request. The package has no types."""

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...
    def time_remaining(self) -> float | None: ...
    def peer(self) -> str: ...
    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None: ...
    async def write(self, message: bytes) -> None: ...
    async def abort(self, code: grpc.StatusCode, details: str) -> None: ...


Handler = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(
    settings: Settings, app: ASGIApp, *, shared: bool
) -> AsyncIterator[tuple[str, Callable[[float], Coroutine[Any, Any, None]]]]:
    """Serve gRPC on the setting `grpc_port` until the end.

    Args:
        shared: whether other servers of this machine listen on the same port.

    Yields:
        The address, and what stops the server: it takes seconds within which requests may end.

    Raises:
        ServerError: the packages of the extra `grpc` are missing, or the port is in use.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would write to stderr, beside our log
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # the server never forks without an exec
    try:
        import grpc.aio

        from warpcall_service.oip.grpc.methods import SERVICE
    except ImportError as error:
        raise ServerError(
            f"WARPCALL_GRPC_PORT: {error}: install the server's extra `grpc`"
        ) from None
    most = min(int(settings.max_body_bytes), MAX_TENSOR_BYTES) + FRAMING_BYTES
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.max_connection_idle_ms", IDLE_S * 1000),
            ("grpc.keepalive_time_ms", PING_S * 1000),
            ("grpc.http2.max_pings_without_data", 0),  # without end
            # A compressed message could become far larger than any limit.
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.so_reuseport", int(shared)),
        ]
    )
    service = _Service(settings, app, most)
    handlers = grpc.method_handlers_generic_handler(SERVICE, service.handlers())
    server.add_generic_rpc_handlers((handlers,))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    try:
        if settings.tls_cert is None:
            port = server.add_insecure_port(address)
        else:
            key = settings.tls_key or settings.tls_cert  # one file may have both
            pair = (key.read_bytes(), settings.tls_cert.read_bytes())
            port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError:
        raise ServerError(f"WARPCALL_GRPC_PORT: cannot listen on {address}") from None
    await server.start()

    async def stop(drain_s: float) -> None:
        service.end_idle_streams()
        await server.stop(drain_s)

    try:
        yield f"grpc://{host}:{port}", stop
    finally:
        await server.stop(0)


class _Service:
    """The methods of the service."""

    def __init__(self, settings: Settings, app: ASGIApp, most: int) -> None:
        self._app = app
        self._scheme = "http" if settings.tls_cert is None else "https"
        self._server = (settings.host, settings.grpc_port)
        # The longest that a message may take, by the rule for bodies of HTTP.
        self._patience_s = settings.body_timeout_s + most / int(settings.min_rate_bytes_per_s)
        # Of each stream that waits for its client, the wait.
        self._idle: set[asyncio.Future[bytes | None]] = set()
        self._is_stopping = False

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """What gRPC calls. Each method is declared as one with streams. Of another one gRPC would read the
        message before it asks anything here, and write the answer when nothing counts its memory any more."""
        import grpc

        from warpcall_service.oip.grpc.methods import METHODS, STREAM

        handlers = {name: self._unary(method) for name, method in METHODS.items()}
        handlers[STREAM] = self._stream
        return {
            name: grpc.stream_stream_rpc_method_handler(handle) for name, handle in handlers.items()
        }

    def end_idle_streams(self) -> None:
        """End the streams that wait for their clients, and others when they would wait."""
        self._is_stopping = True
        for one in self._idle:
            one.cancel()

    def _unary(self, method: Method) -> Handler:
        async def handle(messages: AsyncIterator[bytes], context: Context) -> None:
            async def write(answer: Sequence[Bytes]) -> None:
                await context.write(b"".join(answer))

            answered = _Answered(method, messages, None, self._patience_s, write)
            await self._answer(answered, context)
            context.set_trailing_metadata(answered.trailers())
            if answered.status not in method.statuses:
                await context.abort(*answered.error())

        return handle

    async def _stream(self, messages: AsyncIterator[bytes], context: Context) -> None:
        """Answer the requests of a stream one after the other; an error ends none of the others."""
        from warpcall_service.oip.grpc import inference_pb2 as pb
        from warpcall_service.oip.grpc.messages import stream_response
        from warpcall_service.oip.grpc.methods import METHODS

        async def write(answer: Sequence[Bytes]) -> None:
            await context.write(b"".join(stream_response(answer)))

        method, message = METHODS["ModelInfer"], None
        while True:
            answered = _Answered(method, messages, message, self._patience_s, write)
            await self._answer(answered, context)
            if answered.status not in method.statuses:
                code, detail = answered.error()
                if not answered.was_read:
                    await context.abort(code, detail)
                error = pb.ModelStreamInferResponse(error_message=detail)
                await context.write(error.SerializeToString())
            message = await self._following(messages, context)
            if message is None:
                return

    async def _following(self, messages: AsyncIterator[bytes], context: Context) -> bytes | None:
        """The next message of a stream; None if it has ended."""
        import grpc

        waiting = asyncio.ensure_future(anext(messages, None))
        self._idle.add(waiting)
        try:
            if not self._is_stopping:
                return await waiting
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
        finally:
            waiting.cancel()
            self._idle.discard(waiting)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        return None

    async def _answer(self, answered: _Answered, context: Context) -> None:
        """Let the application answer a request. If the client leaves meanwhile, so does the request."""
        scope = self._scope(answered.method, context)
        scope["extensions"] = {"warpcall": answered.connection}
        if answered.method.request is not None:
            scope["extensions"]["warpcall_head"] = answered.complete_head
        task = asyncio.ensure_future(self._app(scope, answered.receive, answered.send))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            answered.connection.leave()
            await asyncio.wait((task,))
            raise

    def _scope(self, method: Method, context: Context) -> Scope:
        given = [
            (name.encode(), value.encode() if isinstance(value, str) else value)
            for name, value in context.invocation_metadata() or ()
        ]
        # A server without keys answers to its own names only, since pages of other sites could have
        # theirs point to it. No browser speaks gRPC.
        headers = [(b"host", b"localhost")]
        headers += [(name, value) for name, value in given if name in _METADATA]
        timeout_header = wire.TIMEOUT_HEADER.lower().encode()
        left_s = context.time_remaining()
        if left_s is not None and not any(name == timeout_header for name, _ in headers):
            headers.append((timeout_header, b"%.3f" % max(left_s, 0.001)))
        path = method.path or "/v2"  # until the message is read
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "2",
            "method": "GET",
            "scheme": self._scheme,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "client": _address(context.peer()),
            "server": self._server,
        }


class _Connection(MemoryConnection):
    """The connection of one request; tells the request when its client has left."""

    def __init__(self) -> None:
        self._callback: Callable[[], None] | None = None

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """As `ClientConnection`."""
        self._callback = callback
        if callback is not None and self.is_closing:
            callback()

    def leave(self) -> None:
        """The client has left."""
        self.is_closing = True
        if self._callback is not None:
            self._callback()


class _Answered:
    """A request while the application answers it, and then the response.

    Args:
        method: that was called.
        messages: of the client, of which the next one is read.
        message: that was read already.
        patience_s: the longest that a client may take for its message, and to take the answer.
        write: sends the pieces of the answer, and returns when the client has nearly all of it.

    Attributes:
        connection: of the request.
        was_read: whether the message was read.
        status, headers, body: of the response.
    """

    def __init__(
        self,
        method: Method,
        messages: AsyncIterator[bytes],
        message: bytes | None,
        patience_s: float,
        write: Callable[[Sequence[Bytes]], Awaitable[None]],
    ) -> None:
        self.method = method
        self._messages = messages
        self._message = message
        self._patience_s = patience_s
        self._write = write
        self._pieces: list[Bytes] = []
        self._watchdog: ClientWatchdog | None = None
        self.connection = _Connection()
        self.was_read = False
        self.status = 500
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self._filled = 0

    async def complete_head(self, exchange: Exchange, watchdog: ClientWatchdog) -> None:
        """Read the message, and set what it asks for. gRPC does not say how much of it has come."""
        self._watchdog = watchdog
        watchdog.pause()
        try:
            async with asyncio.timeout(self._patience_s):
                message = await anext(self._messages) if self._message is None else self._message
        except StopAsyncIteration:
            raise InvalidInput("the request must have a message", field="body") from None
        except TimeoutError:
            raise TimedOut(
                f"the message must come within {self._patience_s:.0f} s (body_timeout_s, "
                "min_rate_bytes_per_s)",
                field="body",
            ) from None
        self.was_read, self._message = True, None
        assert self.method.request is not None
        asked = self.method.request(message)
        self._pieces = [
            memoryview(piece)[at : at + SLICE_BYTES]
            for piece in asked.body
            for at in range(0, len(piece), SLICE_BYTES)
        ]
        headers: Headers = [(k.lower().encode(), v.encode()) for k, v in asked.headers.items()]
        nbytes = sum(map(len, self._pieces))
        headers.append((b"content-length", b"%d" % nbytes))
        exchange.max_output_bytes = MAX_TENSOR_BYTES
        exchange.set_head(asked.method, asked.path, headers, nbytes)
        watchdog.resume()

    async def receive(self) -> Message:
        """ASGI's receive. Between two pieces of a large body other requests run."""
        if not self._pieces:
            return {"type": "http.request", "body": b"", "more_body": False}
        piece = self._pieces.pop(0)
        if self._pieces:
            await asyncio.sleep(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, message: Message) -> None:
        """ASGI's send: it copies the bytes, whose memory other calls have later.

        With the last ones it returns only when the client has the answer, so that a client that
        does not read keeps the memory of its call, of which each user has only so much.

        Raises:
            ClientGone: the client has left, or does not take its answer.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
            self.body = bytearray(int(self.headers.get(b"content-length", b"0")))
            return
        data: Bytes = message.get("body", b"")
        self.body[self._filled : self._filled + len(data)] = data
        self._filled += len(data)
        if message.get("more_body", False) or self.status not in self.method.statuses:
            return
        answer = self.method.answer(self.headers, self.body)
        self.body = bytearray()
        if self._watchdog is not None:
            self._watchdog.pause()  # it would count no progress
        try:
            async with asyncio.timeout(self._patience_s):
                await self._write(answer)
        except Exception as error:
            raise ClientGone from error

    def trailers(self) -> Sequence[tuple[str, str]]:
        """The headers of the response that clients get as metadata after it."""
        return [
            (name.decode(), self.headers[name].decode())
            for name in _TRAILERS
            if name in self.headers
        ]

    def error(self) -> tuple[grpc.StatusCode, str]:
        """The code and the text of a response that is an error."""
        import grpc

        code: grpc.StatusCode = getattr(grpc.StatusCode, _CODES.get(self.status, "INTERNAL"))
        try:
            found = json.loads(self.body)
            return code, str(found.get("error") or found.get("detail") or "")
        except (ValueError, AttributeError):
            return code, f"the server answered with {self.status}"


def _address(peer: str) -> tuple[str, int] | None:
    """The client's address, such as of "ipv4:127.0.0.1:4242" or "ipv6:%5B::1%5D:4242"."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.strip("[]"), int(port)
