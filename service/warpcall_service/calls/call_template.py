"""What is the same for all calls that repeat one call of their connection.

A call that was answered in the ordinary way leaves a `CallTemplate`: its plan, its user, its format, the
text of its responses. `quick.py` says which calls use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from warpcall_service.auth.authenticator import Authenticator, Known
from warpcall_service.auth.rate_limits import Limits
from warpcall_service.calls.send_thread import LargeCalls
from warpcall_service.calls.upload import output_begin
from warpcall_service.http.access_log import Answered
from warpcall_service.http.connection import Connection
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.problems import Headers
from warpcall_service.lanes.engine import LocalEngine
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


class ClientMemory(Protocol):
    """Tensors of one call that lie in memory of its client instead of in a body."""

    def read(self, slot: memoryview) -> None:
        """Copy the inputs into the slot; raises Problem if that is not possible."""

    def write(self, slot: memoryview) -> None:
        """Copy the outputs out of the slot; raises Problem if that is not possible."""


# Counts a call by its op, its seconds and the milliseconds of its stages, which are None if it failed.
Count = Callable[[str, float, Mapping[str, float] | None], None]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a call's request and response are written, as far as they are the same for repeated calls.

    Attributes:
        headers: of the response, without its length and what every response has.
        head: of the response's body, before the outputs. If the response repeats the request's `id`, this
            is what comes before the `id`.
        behind_id: of the response's body, between the `id` and the outputs.
        input_nbytes: bytes of the request's body behind its header. They are the start of the slot.
        outputs: (begin, end) of the response's outputs in the output region.
        moves: copies (to, begin, end) within the output region, by which these outputs get there.
        json_nbytes, request_id: as in `http.prepared.Prepared`.
        find_memory: finds the memory in which the client has further tensors; raises Problem if there is none.
            None if there are no further tensors.
        count: counts a call that has ended, beside what is counted of every request.
    """

    headers: Headers
    head: bytes
    input_nbytes: int
    outputs: tuple[int, int]
    behind_id: bytes = b""
    moves: tuple[tuple[int, int, int], ...] = ()
    json_nbytes: int | None = None
    request_id: bytes | None = None
    find_memory: Callable[[], ClientMemory] | None = None
    count: Count | None = None


class CallTemplate:
    """What is the same for all calls of a connection with one head: op, plan, user and timeout.

    Attributes:
        nbytes: bytes of the request's whole body.
        response_nbytes: bytes of the response's body.
        scope: what the log and traces say of the request.
        route, tracestate: as in `Exchange`.
        slot_nbytes: size of a call's slot.
        output_begin: where the output region begins in a call's slot.
        moves: those of the format, as places in a call's slot.
        sent_begin, sent_end: where the outputs of the response lie in a call's slot then.
        timeout_s: as `Exchange.timeout_s`.
    """

    def __init__(
        self,
        services: Services,
        exchange: Exchange,
        connection: Connection,
        known: Known,
        plan: Plan,
        format_: CallFormat,
    ) -> None:
        assert exchange.declared is not None
        self.services = services
        self.connection = connection
        self.nbytes = exchange.declared
        self.known = known
        self.plan = plan
        self.format = format_
        self.op = exchange.op
        self.scope = {name: exchange.scope[name] for name in ("client", "method", "path", "scheme")}
        self.route = exchange.route
        self.tracestate = exchange.tracestate
        self.output_begin = output_begin(plan)
        self.slot_nbytes = self.output_begin + plan.output_nbytes
        at, (begin, end) = self.output_begin, format_.outputs
        self.moves = [(at + to, at + first, at + last) for to, first, last in format_.moves]
        self.sent_begin, self.sent_end = at + begin, at + end
        self.timeout_s = exchange.timeout_s
        id_nbytes = len(format_.request_id or b"")  # the same for all: their JSON has one length
        self.response_nbytes = len(format_.head) + id_nbytes + len(format_.behind_id) + end - begin
        fields = b"".join(name + b": " + value + b"\r\n" for name, value in format_.headers)
        self._begin_of_head = b"%bcontent-length: %d\r\nserver-timing: " % (
            fields,
            self.response_nbytes,
        )

    def response_head(
        self, timing: Timing, request_id: str, id_in_json: bytes, *, is_last: bool
    ) -> bytes:
        """The response of a call that went well, until its outputs."""
        return b"".join(
            (
                b"HTTP/1.1 200 OK\r\n",
                self.connection.standing_headers(),
                self._begin_of_head,
                timing.header(),
                b"\r\nx-warpcall-device: ",
                timing.device.encode(),
                b"\r\n",
                NOSNIFF,
                b"x-request-id: ",
                request_id.encode(),
                b"\r\nconnection: close\r\n\r\n" if is_last else b"\r\n\r\n",
                self.format.head,
                id_in_json,
                self.format.behind_id,
            )
        )
