"""Calls that repeat an earlier call of their connection, without parser or ASGI messages.

`http/quick.py` says which requests come here. A later call only needs memory at once: whatever would
have to wait for that takes the ordinary way. The limits of its user, the check of its key, the fair
order of lanes, deadlines, metrics and the log are the same. For calls that are large, or whose body
comes in pieces, see `large_call.py`.
"""

from __future__ import annotations

import logging
import time

from warpcall.errors import Problem
from warpcall_service.auth.rate_limits import Account
from warpcall_service.calls.large_call import LargeCall
from warpcall_service.calls.repeated_call import CallTemplate, RepeatedCall, Services
from warpcall_service.http.exchange import JOIN_BYTES, Exchange
from warpcall_service.http.problems import Internal
from warpcall_service.http.quick import QuickFeed, Running
from warpcall_service.http.request_connection import RequestConnection
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import Timing

# Headers with which a request always takes the ordinary way.
NEVER = (b"x-request-id", b"expect", b"transfer-encoding", b"content-encoding", b"cookie")
# A larger body is read in so many windows, one after the other, that other clients would wait.
QUICK_BYTES = 4 << 20
QUICK_OUTPUT_BYTES = 1 << 20  # calls with larger outputs take the ordinary way

log = logging.getLogger("warpcall")


class QuickCalls(Services):
    """Prepares calls."""

    __slots__ = ()

    def prepare(
        self,
        exchange: Exchange,
        plan: Plan,
        head: bytes,
        media_type: bytes,
    ) -> None:
        """Let later requests that are like this one take the short way, if they may.

        Args:
            head: of the response's body, before the outputs.
        """
        received, headers = exchange.connection, exchange.headers
        if (
            not isinstance(received, RequestConnection)
            or exchange.declared is None
            or exchange.declared > QUICK_BYTES
            or exchange.scope["http_version"] != "1.1"
            or not received.keeps_alive
            or plan.output_nbytes > QUICK_OUTPUT_BYTES
            or len(head) > JOIN_BYTES
            or any(name in headers for name in NEVER)
        ):
            return
        known = self.authenticator.known(exchange)
        if known is not None:
            connection = received.connection
            template = CallTemplate(*(self, exchange, connection, known, plan, head, media_type))
            connection.quick.remember(PreparedCall(template))


class PreparedCall:
    """Implements `http.quick.Prepared` for the calls of one template."""

    def __init__(self, template: CallTemplate) -> None:
        self.nbytes = template.nbytes
        self._template = template
        self._is_small = template.response_nbytes <= JOIN_BYTES

    def begin(self, feed: QuickFeed, data: memoryview) -> Running | None:
        """As `http.quick.Prepared.begin`."""
        template = self._template
        services, plan, user = template.services, template.plan, template.known.caller.name
        began = time.monotonic()
        whole = len(data) == plan.input_nbytes
        call: SmallCall | LargeCall
        if whole and self._is_small:
            call = SmallCall(template, feed, began)
        else:
            call = LargeCall(template, feed, began)
        if not services.authenticator.authenticate_again(call, template.known):
            return None
        slot: Slot | None = None
        account: Account | None = None
        try:
            slot = services.engine.acquire_at_once(template.output_end, user)
            if slot is not None:
                slot.view[: len(data)] = data
                account = services.limits.acquire(user, began)
                call.start(slot, account, len(data))
                return call
        except Problem:  # the ordinary way meets the same problem, and answers with it
            if account is not None:
                account.give_back()
        services.authenticator.release(call)
        if slot is not None:
            slot.release()
        return None


class SmallCall(RepeatedCall):
    """A small call whose body has come: no task waits for its end.

    It implements `lanes.lane_call.Outcome` for the lane, and `http.quick.Running` for the
    connection. One of the two ends it.
    """

    __slots__ = ("_ended",)

    def __init__(self, template: CallTemplate, feed: QuickFeed, began: float) -> None:
        super().__init__(template, feed, began)
        self._ended = False

    def start(self, slot: Slot, account: Account, nbytes: int) -> None:
        """Give the call to its lane; its `nbytes` bytes of inputs are in the slot.

        Raises:
            Busy, Unavailable, TimedOut: the lane does not accept it.
        """
        self.give_to_lane(slot, self)
        self.slot, self.account = slot, account

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
        problem = problem if isinstance(problem, Problem) else Internal()
        try:
            self._end(self.problem_response(problem, is_last=self.feed.is_last))
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
        self.template.services.engine.drop(self.slot, self)

    def _respond(self, timing: Timing) -> None:
        template, feed = self.template, self.feed
        outputs = self.slot.view[template.output_begin : template.output_end]
        head = template.response_head(timing, self.request_id, is_last=feed.is_last)
        response = b"".join((head, outputs))
        outputs.release()
        self.succeed(timing)
        self._end(response)

    def _end(self, response: bytes | None = None) -> None:
        """Send the response, give everything back, and record the request.

        The response comes first, since its client waits for it. The connection goes on last: its
        next request may begin at once, and needs what is given back here.
        """
        self._ended = True
        try:
            if response is not None:
                self.feed.send(response)
        finally:
            seconds = self.give_back()
        if response is not None:
            self.feed.end()
        self.template.services.record(self, seconds)

    def _fail_with(self, error: Exception) -> None:
        log.error("a request failed", exc_info=error, extra={"id": self.request_id})
        if not self._ended:
            self.outcome, self.status = "internal", 500
            self._end()
        self.template.connection.abort()
