"""One request and its response: its state, its limits, and how it is received and sent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.types import Message, Receive, Scope, Send

from warpcall.errors import InvalidInput, Problem, TimedOut
from warpcall_service.http.client_connection import ClientConnection, MemoryConnection
from warpcall_service.http.connection import LINGER_S
from warpcall_service.http.problems import BadRequest, Headers, redirection, render
from warpcall_service.http.request_connection import RequestConnection
from warpcall_service.http.traceparent import traceparent_of, tracestate_of
from warpcall_service.identity import NOBODY, Caller
from warpcall_service.text import brief

SLICE_BYTES = 512 << 10  # sent or copied at once; between two slices other requests run
JOIN_BYTES = 64 << 10  # up to here a copy costs less than a second write and keeping the slot
# If no more than this is left of a refused body, it is read, and the connection stays open.
REST_BYTES = 256 << 10
HELD_HEAD_BYTES = 4 << 10  # up to here the beginning of a body is sent together with its data
DISCARD_BYTES = 256 << 20  # read at most of a longer rest before the connection is closed

CODING = b"transfer-encoding"
ONCE = (b"host", b"authorization")  # of two such headers, a proxy might believe the other one
HOSTLESS = ("0.9", "1.0")  # versions of HTTP that came before the Host header

_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


_prefix = secrets.token_hex(6)
_numbers = itertools.count(1)


def new_request_id() -> str:
    """An id that no other request of this server has."""
    return f"{_prefix}-{next(_numbers):x}"


def stopped_early(declared: int | None, received: int) -> InvalidInput:
    """The problem of a body whose client stopped sending after `received` bytes.

    Args:
        declared: bytes by Content-Length; None if the body is chunked.
    """
    wanted = "end with an empty chunk" if declared is None else f"have {declared} bytes"
    return InvalidInput(
        f"the body must {wanted}, the client stopped after {received}", field="body"
    )


# Reads what the head of a request is, once its caller is known and within the limits.
CompleteHead = Callable[["Exchange", Any], Awaitable[None]]


class ClientGone(Exception):
    """The client left before its response; nobody would receive one."""


class Exchange:
    """A request, from its head until its response is sent.

    Attributes:
        complete_head: of a request over gRPC, reads its message, in which its path is, with the
            exchange and its watchdog; None if the head is complete.
        headers: by lower-case name; of several headers with one name, the last.
        request_id: the caller's X-Request-Id if it matches `_SANE_ID`, else a new one.
        began: when the head was read, by time.monotonic().
        caller: the user who sent it; NOBODY until it is authenticated.
        op: the op that is called, or program, put or get; empty for other requests.
        timeout_s: of a call, the seconds from `began` on within which it must end; None means
            `call_timeout_s` after its inputs have come.
        route: the path as its route declares it, such as "/v1/tensors/{id}"; empty if none was found.
        max_output_bytes: the most bytes of tensors that the response may hold beside its JSON.
        stages_ms: of a call that has run, milliseconds by stage; for the log and usage.
        computed: of a call that has run, when its outputs were complete, as `began`.
        compile_ms: of a call that has run, how long it compiled; a part of the stage `kernel`.
        span: of its trace, if that was needed before the end; see `ServerTraces`.
        declared: bytes of the body by Content-Length; 0 without a body; None if it is chunked.
        received: bytes of the body so far.
        complete: whether the whole body was received.
        status: of the response; 0 before it begins; 499 if the client left first.
        outcome: "ok", the code of the problem that was sent, or "gone"; for the log.
        sent: bytes of the response's body so far.
        response_complete: whether the whole response was sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        # Popped: uvicorn's state of the request refers to the scope, and would be freed late if the
        # scope referred to it.
        extensions = scope.get("extensions", {})
        received = extensions.pop("warpcall", None)
        self.connection: ClientConnection
        if isinstance(received, tuple):
            self.connection = RequestConnection(*received)
        else:
            self.connection = received or MemoryConnection()
        self.complete_head: CompleteHead | None = extensions.pop("warpcall_head", None)
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _SANE_ID.fullmatch(given) else new_request_id()
        scope.setdefault("state", {})["exchange"] = self
        self.caller = scope["state"]["caller"] = NOBODY
        self.began = time.monotonic()
        self.op = ""
        self.timeout_s: float | None = None
        self.route = ""
        self.max_output_bytes: float = math.inf
        self.stages_ms: dict[str, float] = {}
        self.computed = self.compile_ms = 0.0
        self.span: Any = None
        self.outcome = "ok"
        self._task = asyncio.current_task()
        self._cancellation: Problem | None = None
        chunked = CODING in self.headers
        self.declared = None if chunked else int(self.headers.get(b"content-length", b"0"))
        self.received = 0
        self.complete = self.declared == 0
        self.status = 0
        self.sent = 0
        self.response_complete = False

    @property
    def traceparent(self) -> bytes:
        """As `traceparent_of`."""
        return traceparent_of(self.scope["headers"])

    @property
    def tracestate(self) -> bytes:
        """As `tracestate_of`."""
        return tracestate_of(self.scope["headers"])

    def identify(self, caller: Caller) -> None:
        """Set the caller, for this exchange and for the routes."""
        self.caller = self.scope["state"]["caller"] = caller

    def cancel_with(self, problem: Problem) -> None:
        """Cancel the request. It responds with `problem`, or aborts a response that has begun."""
        if self._cancellation is None and self._task is not None:
            self._cancellation = problem
            self._task.cancel()

    def cancellation(self) -> Problem | None:
        """The problem that `cancel_with` was given; None if it was not called."""
        if self._cancellation is not None and self._task is not None:
            self._task.uncancel()
        return self._cancellation

    def check_head(self) -> None:
        """Raise BadRequest if a proxy could read this head in another way than this server."""
        if self.declared is None:
            self._check_coding()
        fields = self.scope["headers"]
        if len(fields) != len(self.headers):  # a name comes twice
            for name in ONCE:
                count = sum(name == given for given, _ in fields)
                if count > 1:
                    text = name.decode().title()
                    raise BadRequest(
                        f"a request must have at most one {text} header, got {count}",
                        field=name.decode(),
                    )
        if b"host" not in self.headers and self.scope["http_version"] not in HOSTLESS:
            raise BadRequest("an HTTP/1.1 request must have a Host header", field="host")

    def _check_coding(self) -> None:
        """Raise BadRequest if the body has a transfer coding besides chunked.

        The parser accepts a list of codings that ends in chunked. Nothing here decodes the others.
        """
        given = [value.lower() for name, value in self.scope["headers"] if name == CODING]
        if given not in ([], [b"chunked"]):
            text = b", ".join(given).decode("latin-1")
            raise BadRequest(
                f"Transfer-Encoding must be chunked or absent, got {brief(text)}",
                field="transfer-encoding",
            )

    def set_head(self, method: str, path: str, headers: Headers, declared: int) -> None:
        """Set what `complete_head` has read: a quoted path. `headers` are added to those that were there."""
        self.scope.update(method=method, path=unquote(path), raw_path=path.encode())
        self.scope["headers"] = [*self.scope["headers"], *headers]
        self.headers |= dict(headers)
        self.declared, self.complete = declared, declared == 0

    async def receive(self) -> Message:
        """ASGI's receive. It counts the bytes of the body.

        Raises:
            ClientGone: the client has left.
            InvalidInput: the client stopped before the end of the body.
            BadRequest: the body is not made of valid chunks.
        """
        if self.connection.exhausted:
            raise self._ended()
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        nbytes = len(message.get("body", b""))
        if not nbytes and self.connection.exhausted:
            raise self._ended()
        self.received += nbytes
        self.complete = not message.get("more_body", False)
        return message

    async def receive_into(self, target: memoryview, progress: Callable[[int], None]) -> None:
        """Receive the rest of the body directly into `target`, which has the length of the rest.

        Raises:
            InvalidInput: the client stopped before the end.
        """
        self.received += await self.connection.receive_into(target, progress)
        self.complete = self.received == self.declared
        if not self.complete:
            raise self._ended()

    async def send(self, message: Message) -> None:
        """ASGI's send. It records status and bytes, and adds two headers to the response.

        X-Content-Type-Options forbids browsers to guess another type than the response declares.

        Raises:
            ClientGone: the client has left.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-content-type-options", b"nosniff"),
                (b"x-request-id", self.request_id.encode()),
            ]
        elif message["type"] == "http.response.body":
            self.sent += len(message.get("body", b""))
            self.response_complete = not message.get("more_body", False)
        if self.connection.is_closing:  # uvicorn notices in the next iteration of the loop
            raise ClientGone
        await self._send(message)

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a small response in one piece. `headers` must have the Content-Length."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    async def stream(
        self, headers: Headers, head: bytes, data: memoryview, progress: Callable[[int], None]
    ) -> None:
        """Send a response with status 200: `head`, then `data`.

        When this returns or raises, the transport no longer refers to the memory of `data`.

        Args:
            headers: must have the Content-Length.
            data: sent in slices without a copy, unless it is small.
            progress: called with the number of bytes of each slice.
        """
        if len(head) + len(data) <= JOIN_BYTES:
            await self.respond(200, headers, b"".join((head, data)))
            return
        before: list[Message] = [
            {"type": "http.response.start", "status": 200, "headers": headers},
            {"type": "http.response.body", "body": head, "more_body": True},
        ]
        try:
            if len(head) > HELD_HEAD_BYTES:
                for message in before:
                    await self.send(message)
                before.clear()
            await self.send_part(data, progress, before)
            await self.send({"type": "http.response.body", "body": b""})
        except BaseException:
            # The transport still refers to `data`. A client that half-closed the connection would
            # otherwise receive bytes of the call that uses this memory next.
            self.connection.abort()
            raise

    async def send_part(
        self, data: memoryview, progress: Callable[[int], None], before: Sequence[Message] = ()
    ) -> None:
        """Send a part of the body in slices, and wait until the socket has taken every byte.

        Args:
            before: messages that are sent together with the first slice. Each small write of its own
                would be a packet of its own, and wake the client.

        Raises:
            ClientGone: the connection was closed.
        """
        if self.connection.is_closing:  # it may no longer have a socket
            raise ClientGone
        step = self.connection.slice_nbytes(SLICE_BYTES)
        with self.connection.one_write() as held_nbytes:
            for message in before:
                await self.send(message)
            at = await self._send_slice(data, 0, step - held_nbytes())
        progress(at)
        while at < len(data):
            # A client that reads fast would otherwise keep other requests waiting.
            await asyncio.sleep(0)
            begin, at = at, await self._send_slice(data, at, step)
            progress(at - begin)
        await self.connection.drained()

    async def _send_slice(self, data: memoryview, begin: int, nbytes: int) -> int:
        """Send so many bytes of `data`, or all if few would be left; return where the next begins."""
        end = begin + nbytes
        if len(data) - end <= JOIN_BYTES:
            end = len(data)
        part = data[begin:end]
        await self.send({"type": "http.response.body", "body": part, "more_body": True})
        return end

    async def refuse(self, problem: Problem) -> None:
        """Respond with a problem, so that a client that is still sending receives it.

        Closing a connection with unread bytes resets it, and the client may then lose the response.
        So the rest of the body is read and dropped: a short rest before the response, a long one
        after it, both within limits. The response comes first if the request has timed out or was
        cancelled by `cancel_with`.
        """
        if self.response_complete:
            return
        self.outcome = problem.code
        if self.status:
            self.connection.abort()  # a part of the response was sent: it must not look complete
            self.connection.disown()  # else uvicorn would log an error
            return
        status, headers, body = render(problem, self.request_id, self.scope["path"])
        headers += redirection(problem, self.scope)
        waits = not isinstance(problem, TimedOut) and self._cancellation is None
        if self.complete or (waits and await self.skip_rest()):
            await self.respond(status, headers, body)
            return
        headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        await self.connection.drained()
        await self.skip_long_rest()
        await self.send({"type": "http.response.body", "body": b""})

    async def skip_rest(self) -> bool:
        """Read and drop the rest of the body, if it is short and comes within LINGER_S.

        Returns:
            Whether the body is complete. If not, the connection must close after the response.
        """
        expects = b"expect" in self.headers and not self.received
        if (
            not self.complete
            and not expects
            and self.declared is not None
            and self.declared - self.received <= REST_BYTES
        ):
            await self._discard(REST_BYTES)
        return self.complete

    async def skip_long_rest(self) -> None:
        """After the response, read and drop the rest of the body, up to a limit of bytes and time.

        A client may lose a response whose connection is closed with unread bytes.
        """
        if not self.complete:
            await self._discard(DISCARD_BYTES)

    def abandon(self) -> None:
        """Record that the client has left before its response was complete."""
        self.outcome = "gone"
        self.status = self.status or 499  # the status that proxies log for this; nobody receives it
        # uvicorn sets this for the last request of the connection only; else it logs an error.
        self.connection.disown()

    def _ended(self) -> Problem:
        if self.connection.fault is not None:
            return self.connection.fault
        return stopped_early(self.declared, self.received)

    async def _discard(self, limit: int) -> None:
        end = self.received + limit
        with contextlib.suppress(TimeoutError, Problem):
            async with asyncio.timeout(LINGER_S):
                while not self.complete and self.received < end:
                    await self.receive()
