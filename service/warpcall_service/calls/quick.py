"""Calls that repeat an earlier call of their connection, without parser, task or ASGI messages.

`http/quick.py` says which requests come here. A call that was answered in the ordinary way leaves a
`PreparedCall`: its plan, its user, its format, the text of its responses. A later one only needs
memory and a place on the lane, and both at once: whatever would have to wait takes the ordinary way.
The limits of its user, the check of its key, the fair order of lanes, deadlines, metrics and the log
are the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from warpcall.errors import Problem
from warpcall_service.auth.authenticator import Authenticator, Known
from warpcall_service.auth.rate_limits import Account, Limits
from warpcall_service.calls.upload import DEFERRED_BYTES, output_begin
from warpcall_service.http.access_log import Answered
from warpcall_service.http.connection import Connection
from warpcall_service.http.exchange import JOIN_BYTES, Exchange, new_request_id
from warpcall_service.http.problems import Internal, render
from warpcall_service.http.quick import QuickFeed
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.slot import Slot
from warpcall_service.lanes.status import Timing
from warpcall_service.settings import Settings

# Headers with which a request always takes the ordinary way.
NEVER = (b"x-request-id", b"expect", b"transfer-encoding", b"content-encoding", b"cookie")
NOSNIFF = b"x-content-type-options: nosniff\r\n"

log = logging.getLogger("warpcall")


@dataclass(frozen=True, slots=True)
class QuickCalls:
    """Prepares calls, and has what every one of them uses.

    Args:
        record: counts and logs a request that was answered in so many seconds.
    """

    settings: Settings
    engine: LocalEngine
    authenticator: Authenticator
    limits: Limits
    record: Callable[[Answered, float], None]

    def prepare(
        self,
        exchange: Exchange,
        plan: Plan,
        head: bytes,
        media_type: bytes,
        timeout_s: float | None,
    ) -> None:
        """Let later requests that are like this one take the short way, if they may.

        Args:
            head: of the response's body, before the outputs.
            timeout_s: as the caller asked; None means `call_timeout_s`.
        """
        connection, headers = exchange.connection, exchange.headers
        if (
            exchange.declared is None
            or exchange.scope["http_version"] != "1.1"
            or not connection.cycle.keep_alive
            or len(head) + plan.output_nbytes > min(JOIN_BYTES, DEFERRED_BYTES)
            or any(name in headers for name in NEVER)
        ):
            return
        known = self.authenticator.known(exchange)
        if known is not None:
            connection.quick.remember(
                PreparedCall(self, exchange, known, plan, head, media_type, timeout_s)
            )


class PreparedCall:
    """Implements `http.quick.Prepared` for one op, plan, user and timeout."""

    def __init__(
        self,
        shared: QuickCalls,
        exchange: Exchange,
        known: Known,
        plan: Plan,
        head: bytes,
        media_type: bytes,
        timeout_s: float | None,
    ) -> None:
        assert exchange.declared is not None
        self.shared = shared
        self.connection: Connection = exchange.connection
        self.nbytes = exchange.declared
        self.known = known
        self.plan = plan
        self.op = exchange.op
        self.scope = {name: exchange.scope[name] for name in ("client", "method", "path")}
        self.output_begin = output_begin(plan)
        self.output_end = self.output_begin + plan.output_nbytes
        self.head = head
        self.begin_of_head = (
            b"HTTP/1.1 200 OK\r\n%%bcontent-type: %b\r\ncontent-length: %d\r\nserver-timing: "
            % (media_type, len(head) + plan.output_nbytes)
        )
        self.timeout_s = shared.settings.call_timeout_s if timeout_s is None else timeout_s

    def begin(self, feed: QuickFeed, data: memoryview) -> QuickCall | None:
        """As `http.quick.Prepared.begin`."""
        shared, plan = self.shared, self.plan
        began = time.monotonic()
        call = QuickCall(self, feed, began)
        if not shared.authenticator.authenticate_again(call, self.known):
            return None
        user = self.known.caller.name
        slot: Slot | None = None
        account: Account | None = None
        try:
            slot = shared.engine.acquire_at_once(self.output_end, user)
            if slot is not None:
                slot.view[: plan.input_nbytes] = data
                account = shared.limits.acquire(user, began)
                call.uploaded = time.monotonic()
                shared.engine.submit(
                    plan, slot, slot, self.output_begin, began + self.timeout_s, call
                )
                call.slot, call.account = slot, account
                return call
        except Problem:  # the ordinary way meets the same problem, and answers with it
            if account is not None:
                account.give_back()
        shared.authenticator.release(call)
        if slot is not None:
            slot.release()
        return None


class QuickCall:
    """One call on the short way: what the lane ends, what is counted and logged.

    It implements `lanes.lane_call.Outcome` for the lane, `http.quick.Running` for the connection,
    and `Answered` for metrics, usage and the log. One of the first two ends it.
    """

    __slots__ = (
        *("_ended", "account", "began", "call", "caller", "feed", "op", "outcome", "prepared"),
        *("received", "request_id", "scope", "sent", "slot", "stages_ms", "status", "uploaded"),
    )

    slot: Slot
    account: Account
    uploaded: float

    def __init__(self, prepared: PreparedCall, feed: QuickFeed, began: float) -> None:
        self.prepared = prepared
        self.feed = feed
        self.began = began
        self.caller = prepared.known.caller
        self.op = prepared.op
        self.scope = prepared.scope
        self.request_id = new_request_id()
        self.received = prepared.nbytes
        self.sent = 0
        self.status = 0
        self.outcome = "ok"
        self.stages_ms: dict[str, float] = {}
        self._ended = False

    # For the lane

    def done(self) -> bool:
        """Whether it has ended, however."""
        return self._ended

    def set_result(self, timing: Timing) -> None:
        """Send the outputs, which lie in the slot."""
        if self._ended:
            return
        try:
            self._respond(timing)
        except Exception as error:  # noqa: BLE001  # the lane goes on with its other calls
            self._fail_with(error)

    def set_exception(self, problem: BaseException) -> None:
        """Send a problem."""
        if self._ended:
            return
        try:
            self._refuse(problem if isinstance(problem, Problem) else Internal())
        except Exception as error:  # noqa: BLE001  # as above
            self._fail_with(error)

    # For the connection, and for the authenticator

    def cancel_with(self, problem: Problem) -> None:
        """Answer with `problem` now. The lane drops the call, or finishes it for nobody."""
        self.set_exception(problem)
        self._drop()

    def leave(self) -> None:
        """The client has left."""
        if not self._ended:
            self.outcome, self.status = "gone", 499
            self._end()
            self._drop()

    def _drop(self) -> None:
        self.prepared.shared.engine.drop(self.slot, self)

    def _respond(self, timing: Timing) -> None:
        prepared = self.prepared
        outputs = self.slot.view[prepared.output_begin : prepared.output_end]
        queue_ms, h2d_ms, kernel_ms, d2h_ms, device = timing
        response = b"".join(
            (
                prepared.begin_of_head % self._standing_headers(),
                (
                    f"queue;dur={queue_ms:.3f}, h2d;dur={h2d_ms:.3f}, kernel;dur={kernel_ms:.3f}, "
                    f"d2h;dur={d2h_ms:.3f}\r\nx-warpcall-device: {device}\r\n"
                ).encode(),
                NOSNIFF,
                b"x-request-id: ",
                self.request_id.encode(),
                b"\r\nconnection: close\r\n\r\n" if self.feed.is_last else b"\r\n\r\n",
                prepared.head,
                outputs,
            )
        )
        outputs.release()
        self.status = 200
        self.sent = len(prepared.head) + prepared.plan.output_nbytes
        self.stages_ms = {
            "upload": (self.uploaded - self.began) * 1e3,
            "queue": queue_ms,
            "h2d": h2d_ms,
            "kernel": kernel_ms,
            "d2h": d2h_ms,
        }
        self._end(response)

    def _refuse(self, problem: Problem) -> None:
        status, headers, body = render(problem, self.request_id, self.scope["path"])
        fields = [*headers, (b"x-request-id", self.request_id.encode())]
        if self.feed.is_last:
            fields.append((b"connection", b"close"))
        text = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
        self.status, self.sent, self.outcome = status, len(body), problem.code
        line = STATUS_LINE[status]
        self._end(b"".join((line, self._standing_headers(), NOSNIFF, text, b"\r\n", body)))

    def _end(self, response: bytes | None = None) -> None:
        """Give everything back, send the response, and record the request."""
        self._ended = True
        shared = self.prepared.shared
        self.slot.release()
        shared.authenticator.release(self)
        seconds = time.monotonic() - self.began
        self.account.release(seconds)
        if response is not None:
            self.feed.answer(response)
        shared.record(self, seconds)

    def _fail_with(self, error: Exception) -> None:
        log.error("a request failed", exc_info=error, extra={"id": self.request_id})
        if not self._ended:
            self.outcome, self.status = "internal", 500
            self._end()
        self.prepared.connection.abort()

    def _standing_headers(self) -> bytes:
        """uvicorn's headers of every response, such as the date."""
        return self.prepared.connection.standing_headers()
