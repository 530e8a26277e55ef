"""What calls that repeat an earlier call of their connection have in common.

A call that was answered in the ordinary way leaves a `CallTemplate`: its plan, its user, its format,
the text of its responses. `quick.py` says which calls use it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from warpcall.errors import Problem
from warpcall_service.auth.authenticator import Authenticator, Known
from warpcall_service.auth.rate_limits import Account, Limits
from warpcall_service.calls.send_thread import LargeCalls
from warpcall_service.calls.upload import output_begin
from warpcall_service.http.access_log import Answered
from warpcall_service.http.connection import Connection
from warpcall_service.http.exchange import Exchange, new_request_id
from warpcall_service.http.problems import render
from warpcall_service.http.quick import QuickFeed
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.lane_call import Outcome
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import Timing
from warpcall_service.settings import Settings

NOSNIFF = b"x-content-type-options: nosniff\r\n"


@dataclass(frozen=True, slots=True)
class Services:
    """What every call uses.

    Args:
        record: counts and logs a request that was answered in so many seconds.

    Attributes:
        large_calls: what the large ones of all connections share.
    """

    settings: Settings
    engine: LocalEngine
    authenticator: Authenticator
    limits: Limits
    record: Callable[[Answered, float], None]
    large_calls: LargeCalls = field(default_factory=LargeCalls)


class CallTemplate:
    """What is the same for all calls of a connection with one head: op, plan, user and timeout.

    Args:
        head: of the response's body, before the outputs.

    Attributes:
        nbytes: bytes of the whole body.
        scope: what the log says of the request.
        head: as above.
        output_begin, output_end: where the outputs lie in a call's slot.
        timeout_s: as `Exchange.timeout_s`.
    """

    def __init__(
        self,
        services: Services,
        exchange: Exchange,
        connection: Connection,
        known: Known,
        plan: Plan,
        head: bytes,
        media_type: bytes,
    ) -> None:
        assert exchange.declared is not None
        self.services = services
        self.connection = connection
        self.nbytes = exchange.declared
        self.known = known
        self.plan = plan
        self.op = exchange.op
        self.scope = {name: exchange.scope[name] for name in ("client", "method", "path")}
        self.output_begin = output_begin(plan)
        self.output_end = self.output_begin + plan.output_nbytes
        self.head = head
        self.timeout_s = exchange.timeout_s
        self._begin_of_head = (
            b"HTTP/1.1 200 OK\r\n%%bcontent-type: %b\r\ncontent-length: %d\r\nserver-timing: "
            % (media_type, self.response_nbytes)
        )

    @property
    def response_nbytes(self) -> int:
        """Bytes of the response's body."""
        return len(self.head) + self.plan.output_nbytes

    def response_head(self, timing: Timing, request_id: str, *, is_last: bool) -> bytes:
        """The response of a call that went well, until its outputs."""
        return b"".join(
            (
                self._begin_of_head % self.connection.standing_headers(),
                timing.header(),
                b"\r\nx-warpcall-device: ",
                timing.device.encode(),
                b"\r\n",
                NOSNIFF,
                b"x-request-id: ",
                request_id.encode(),
                b"\r\nconnection: close\r\n\r\n" if is_last else b"\r\n\r\n",
                self.head,
            )
        )


class RepeatedCall:
    """One call: what is counted and logged of it, and what it holds until it ends.

    It implements `Answered` for metrics, usage and the log.
    """

    __slots__ = (
        *("account", "began", "caller", "feed", "op", "outcome", "received", "request_id"),
        *("scope", "sent", "slot", "stages_ms", "status", "template", "uploaded"),
    )

    slot: Slot
    account: Account
    uploaded: float  # time at which its inputs were complete
    stages_ms: Mapping[str, float]

    def __init__(self, template: CallTemplate, feed: QuickFeed, began: float) -> None:
        self.template = template
        self.feed = feed
        self.began = began
        self.caller = template.known.caller
        self.op = template.op
        self.scope = template.scope
        self.request_id = new_request_id()
        self.received = template.nbytes
        self.sent = 0
        self.status = 0
        self.outcome = "ok"
        self.stages_ms = {}

    def give_to_lane(self, slot: Slot, outcome: Outcome) -> None:
        """Give the call to its lane; its inputs are complete in `slot`.

        Raises:
            Busy, Unavailable, TimedOut: the lane does not accept it.
        """
        template, self.uploaded = self.template, time.monotonic()
        services = template.services
        deadline = (
            self.uploaded + services.settings.call_timeout_s
            if template.timeout_s is None
            else self.began + template.timeout_s
        )
        services.engine.submit(template.plan, slot, slot, template.output_begin, deadline, outcome)

    def succeed(self, timing: Timing) -> None:
        """Record a response that is about to be sent."""
        self.status = 200
        self.sent = self.template.response_nbytes
        self.stages_ms = timing.stages_ms(self.uploaded - self.began)

    def problem_response(self, problem: Problem, *, is_last: bool) -> bytes:
        """The response that is a problem. This also records it."""
        status, headers, body = render(problem, self.request_id, self.scope["path"])
        fields = [*headers, (b"x-request-id", self.request_id.encode())]
        if is_last:
            fields.append((b"connection", b"close"))
        text = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
        self.status, self.sent, self.outcome = status, len(body), problem.code
        head = self.template.connection.response_head(status)
        return b"".join((head, NOSNIFF, text, b"\r\n", body))

    def give_back(self) -> float:
        """Free the call's memory and its place in the limits; return how many seconds it took."""
        self.slot.release()
        self.template.services.authenticator.release(self)
        seconds = time.monotonic() - self.began
        self.account.release(seconds)
        return seconds

    def cancel_with(self, problem: Problem) -> None:
        """Answer with `problem` now, or abort a response that has begun."""
        raise NotImplementedError
