"""One request and its answer: what the door knows about it, and the two ways to answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
import time
from collections.abc import Callable

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from warpcall.errors import InvalidInput, Problem, TimedOut
from warpcall.sockets import slice_nbytes
from warpcall_service.http.connection import LINGER_S, Connection
from warpcall_service.http.problems import BadRequest, Headers, render
from warpcall_service.identity import NOBODY, Caller
from warpcall_service.text import brief

SLICE_BYTES = 512 << 10  # moved at once, then other connections have their turn
JOIN_BYTES = 64 << 10  # up to here one copy costs less than a second write and a held slot
REST_BYTES = (
    256 << 10
)  # a refused body with no more than this to come is read, so the connection lives
DISCARD_BYTES = 256 << 20  # of a larger one, read before the connection is closed

CODING = b"transfer-encoding"
ONCE = (b"host", b"authorization")  # of two, another program might believe the other one
HOSTLESS = ("0.9", "1.0")  # versions of HTTP that came before the Host header

_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_prefix = secrets.token_hex(6)
_numbers = itertools.count(1)


class ClientGone(Exception):
    """The client left before its answer; there is nobody to tell."""


class Exchange:
    """A request on its way, until its answer is sent.

    Attributes:
        headers: by lower-case name; of several with one name the last.
        request_id: the caller's X-Request-Id if it is sane, else a new one.
        began: when the head was read, by time.monotonic().
        caller: who sent it, once the gate knows.
        op: what is called, once known; for metrics and the log.
        stages_ms: of a call that has run, milliseconds by stage; for the log and the usage_counter.
        declared: bytes of the body by Content-Length, 0 without a body, None if it is chunked.
        received: bytes of the body so far; `complete` once it has ended.
        status: of the answer, 0 before it, 499 if the client left first.
        outcome: the code of the problem that was the answer, else "ok"; for the log.
        sent: bytes of the answer's body; `response_complete` once it has ended.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        ours = scope["extensions"]["warpcall"]
        self.connection: Connection = ours["connection"]
        self._cycle: RequestResponseCycle = ours.pop("cycle")  # it has the scope: no circle
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = (
            given.decode() if _SANE_ID.fullmatch(given) else f"{_prefix}-{next(_numbers):x}"
        )
        scope["state"]["exchange"] = self
        self.caller = scope["state"]["caller"] = NOBODY
        self.began = time.monotonic()
        self.op = ""
        self.stages_ms: dict[str, float] = {}
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

    def identify(self, caller: Caller) -> None:
        """Note who sent it, here and for the routes."""
        self.caller = self.scope["state"]["caller"] = caller

    def cancel_with(self, problem: Problem) -> None:
        """End it wherever it is, with `problem`; cut off what is already being answered."""
        if self._cancellation is None and self._task is not None:
            self._cancellation = problem
            self._task.cancel()

    def cancellation(self) -> Problem | None:
        """What `cancel_with` was given, if that is why there was a CancelledError."""
        if self._cancellation is not None and self._task is not None:
            self._task.uncancel()
        return self._cancellation

    def check_head(self) -> None:
        """Raise BadRequest if a proxy could read this head in another way than we do."""
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
        """The parser takes a list that ends in chunked, or several headers of which the last is.

        Nobody here undoes any other coding.
        """
        given = [value.lower() for name, value in self.scope["headers"] if name == CODING]
        if given not in ([], [b"chunked"]):
            text = b", ".join(given).decode("latin-1")
            raise BadRequest(
                f"Transfer-Encoding must be chunked or absent, got {brief(text)}",
                field="transfer-encoding",
            )

    async def receive(self) -> Message:
        """ASGI's receive, counting the body.

        Raises:
            ClientGone: there is nobody to receive from.
            InvalidInput: the client stopped before the end of the body.
            BadRequest: its chunks are none.
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
        """Receive the whole rest of the body straight into `target`, which has its length.

        Raises:
            InvalidInput: the client stopped before the end.
        """
        self.received += await self.connection.receive_into(target, progress)
        self.complete = self.received == self.declared
        if not self.complete:
            raise self._ended()

    async def send(self, message: Message) -> None:
        """ASGI's send, noting what passes, adding the request id, and forbidding guesses.

        Raises:
            ClientGone: nobody is there to send to.
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
        if self.connection.transport.is_closing():  # uvicorn hears of it a round of the loop later
            raise ClientGone
        await self._send(message)

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a small answer at once; `headers` has the Content-Length."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    async def stream(
        self, headers: Headers, head: bytes, data: memoryview, progress: Callable[[int], None]
    ) -> None:
        """Send `head`, then `data`; once it is over, well or not, nothing refers to the memory of
        `data`.

        Args:
            headers: of a 200 answer, with the Content-Length.
            data: sent without a copy, in slices, unless it is small.
            progress: told the bytes of each slice.
        """
        if len(head) + len(data) <= JOIN_BYTES:
            await self.respond(200, headers, b"".join((head, data)))
            return
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.send({"type": "http.response.body", "body": head, "more_body": True})
        try:
            await self.send_part(data, progress)
            await self.send({"type": "http.response.body", "body": b""})
        except BaseException:
            self.connection.abort()  # else who only stopped sending reads what is written there next
            raise

    async def send_part(self, data: memoryview, progress: Callable[[int], None]) -> None:
        """Send a part of the body in slices, and wait until the socket has taken all of it.

        Raises:
            ClientGone: the connection was closed.
        """
        if self.connection.transport.is_closing():  # it may have no socket any more
            raise ClientGone
        step = slice_nbytes(self.connection.transport.get_extra_info("socket"), SLICE_BYTES)
        for begin in range(0, len(data), step):
            if begin:
                await asyncio.sleep(0)  # a client that reads at once would keep others waiting
            part = data[begin : begin + step]
            await self.send({"type": "http.response.body", "body": part, "more_body": True})
            progress(len(part))
        await self.connection.drained()

    async def refuse(self, problem: Problem) -> None:
        """Answer with a problem, in such a way that a client still sending sees it.

        Closing a connection with bytes unread resets it, and the client may then lose the answer:
        a short rest of the body is read first, a long one after the answer, within bounds. Whoever
        is told that time is up has waited enough, and who is dismissed is told at once.
        """
        if self.response_complete:
            return
        self.outcome = problem.code
        if self.status:
            self.connection.abort()  # in the middle of an answer; cut short it cannot be mistaken
            self._cycle.disconnected = True  # for uvicorn, which would log an error
            return
        status, headers, body = render(problem, self.request_id, self.scope["path"])
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
        """Read and drop what is left of the body if it is short and comes at once.

        Returns:
            Whether the body is complete. If not, this answer must be the connection's last.
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
        """After the answer, read and drop what still comes: the client may lose an answer whose
        connection is closed with bytes unread."""
        if not self.complete:
            await self._discard(DISCARD_BYTES)

    def abandon(self) -> None:
        """Give no answer: the client has left. uvicorn knows only of the last of its requests."""
        self.outcome = "gone"
        self.status = self.status or 499  # as proxies log it; nobody receives it
        self._cycle.disconnected = True

    def _ended(self) -> Problem:
        if self.connection.fault is not None:
            return self.connection.fault
        wanted = (
            "end with an empty chunk" if self.declared is None else f"have {self.declared} bytes"
        )
        return InvalidInput(
            f"the body must {wanted}, the client stopped after {self.received}", field="body"
        )

    async def _discard(self, limit: int) -> None:
        end = self.received + limit
        with contextlib.suppress(TimeoutError, Problem):
            async with asyncio.timeout(LINGER_S):
                while not self.complete and self.received < end:
                    await self.receive()
