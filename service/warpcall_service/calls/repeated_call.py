"""Calls that repeat an earlier call of their connection.

A call that was answered in the ordinary way leaves a `CallTemplate`: its plan, its user, its format,
the text of its responses. `quick.py` says which calls use it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from warpcall.errors import Problem
from warpcall_service.auth.authenticator import Authenticator, Known
from warpcall_service.auth.rate_limits import Account, Limits
from warpcall_service.calls.send_thread import LargeCalls
from warpcall_service.calls.upload import output_begin
from warpcall_service.http.access_log import Answered
from warpcall_service.http.connection import Connection
from warpcall_service.http.exchange import (
    JOIN_BYTES,
    ClientGone,
    Exchange,
    new_request_id,
    stopped_early,
)
from warpcall_service.http.problems import Internal, render
from warpcall_service.http.quick import QuickFeed
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import Timing
from warpcall_service.settings import Settings

NOSNIFF = b"x-content-type-options: nosniff\r\n"

log = logging.getLogger("warpcall")


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
        response_nbytes: bytes of the response's body.
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
        self.response_nbytes = len(head) + plan.output_nbytes
        self._begin_of_head = (
            b"HTTP/1.1 200 OK\r\n%%bcontent-type: %b\r\ncontent-length: %d\r\nserver-timing: "
            % (media_type, self.response_nbytes)
        )

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

    It implements `Answered` for metrics, usage and the log, `lanes.lane_call.Outcome` for the lane, and
    `http.quick.Running` for the connection. One of the last two ends it.

    A small call came in one read, and its response is one write: no task or timer waits for its end.
    Of any other call, the transport writes the inputs that are still to come into the call's slot, and
    sends the outputs from there, while a watchdog looks at the client's speed.
    """

    __slots__ = (
        *("account", "began", "caller", "feed", "op", "outcome", "received", "request_id"),
        *("scope", "sent", "slot", "stages_ms", "status", "template", "uploaded"),
        *("_ended", "_is_on_lane", "_is_watched", "_missing", "_sending", "_watchdog"),
    )

    slot: Slot
    account: Account
    uploaded: float  # time at which its inputs were complete
    stages_ms: Mapping[str, float]
    _sending: asyncio.Task[None]
    _watchdog: ClientWatchdog

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
        self._ended = False
        self._is_on_lane = False
        self._missing = 0  # bytes of the body that have not come
        self._is_watched = False  # whether it has a watchdog; a small call has none

    def start(self, slot: Slot, account: Account, nbytes: int) -> None:
        """Begin; the first `nbytes` bytes of the inputs are in the slot.

        Raises:
            Busy, Unavailable, TimedOut: the inputs are complete, and the lane does not accept them.
        """
        template = self.template
        self.slot, self.account = slot, account
        self._missing = template.plan.input_nbytes - nbytes
        if not self._missing:
            self._submit()
            if template.response_nbytes <= JOIN_BYTES:
                return
        settings = template.services.settings
        template.services.large_calls.under_way += 1
        self._is_watched = True
        self._watchdog = ClientWatchdog(
            template.connection,
            settings.body_timeout_s,
            int(settings.min_rate_bytes_per_s),
            end=self.cancel_with,
        )
        if not self._missing:
            self._watchdog.pause()
            return
        self._watchdog.progress(nbytes)
        if template.timeout_s is not None:
            self._watchdog.set_deadline(template.timeout_s)
        rest = slot.view[nbytes : template.plan.input_nbytes]
        self.feed.receive_into(rest, self._progress, self._received)

    # For the lane

    def done(self) -> bool:
        """Whether it has ended, however."""
        return self._ended

    def set_result(self, timing: Timing) -> None:
        """Send the outputs, which lie in the slot."""
        self._is_on_lane = False
        if self._ended:
            return
        try:
            self._respond(timing)
        except Exception as error:  # noqa: BLE001  # the lane goes on with its other calls
            self._fail_with(error)

    def set_exception(self, problem: BaseException) -> None:
        """Send a problem."""
        self._is_on_lane = False
        if self._ended:
            return
        try:
            self._end(problem if isinstance(problem, Problem) else Internal())
        except Exception as error:  # noqa: BLE001  # as above
            self._fail_with(error)

    # For the connection, the authenticator and the watchdog

    def cancel_with(self, reason: Problem | ClientGone) -> None:
        """Answer with a problem now, or abort a response that has begun.

        The lane drops the call, or finishes it for nobody.
        """
        if self._ended:
            return
        self._end(reason)
        if self._is_on_lane:
            self.template.services.engine.drop(self.slot, self)

    def leave(self) -> None:
        """The client has left."""
        self.cancel_with(ClientGone())

    def _progress(self, nbytes: int) -> None:
        self._missing -= nbytes
        self._watchdog.progress(nbytes)

    def _received(self) -> None:
        """The inputs are complete, or the client has stopped sending."""
        if self._missing:
            nbytes = self.template.nbytes
            self._end(stopped_early(nbytes, nbytes - self._missing))
            return
        self._watchdog.pause()
        self._watchdog.clear_deadline()
        try:
            self._submit()
        except Problem as problem:
            self._end(problem)

    def _submit(self) -> None:
        """Give the call to its lane; its inputs are complete.

        Raises:
            Busy, Unavailable, TimedOut: the lane does not accept it.
        """
        template, slot, self.uploaded = self.template, self.slot, time.monotonic()
        services = template.services
        deadline = (
            self.uploaded + services.settings.call_timeout_s
            if template.timeout_s is None
            else self.began + template.timeout_s
        )
        services.engine.submit(template.plan, slot, slot, template.output_begin, deadline, self)
        self._is_on_lane = True

    def _respond(self, timing: Timing) -> None:
        template, connection = self.template, self.template.connection
        if connection.transport.is_closing():
            self._end(ClientGone())
            return
        head = template.response_head(timing, self.request_id, is_last=self.feed.is_last)
        outputs = self.slot.view[template.output_begin : template.output_end]
        self.status = 200
        self.sent = template.response_nbytes
        self.stages_ms = timing.stages_ms(self.uploaded - self.began)
        if template.response_nbytes <= JOIN_BYTES:
            self._end(None, b"".join((head, outputs)))
        elif not self._gave_to_thread(head, outputs):
            self._send_rest(*connection.write_now(head, outputs))

    def _gave_to_thread(self, head: bytes, outputs: memoryview) -> bool:
        """Let a thread write if other calls wait for the event loop; return whether it does."""
        shared, fd = self.template.services.large_calls, self.template.connection.fd_to_write
        if fd is None or shared.under_way == 1 or not shared.has_cpus:
            return False
        written = partial(self._written, self.slot, head, outputs)
        if not shared.send_thread.write(fd, head, outputs, written):
            return False
        self.slot.retain()  # the thread reads it, even if the call ends before
        return True

    def _written(self, slot: Slot, head: bytes, outputs: memoryview, nbytes: int) -> None:
        """The thread has given the socket so many bytes of the response."""
        slot.release_retained()
        if not self._ended:
            in_head = min(nbytes, len(head))
            self._send_rest(head[in_head:], outputs[nbytes - in_head :])

    def _send_rest(self, head: bytes, outputs: memoryview) -> None:
        """Send what the socket did not take at once, if anything."""
        if outputs:
            self._sending = self.template.connection.loop.create_task(self._send(head, outputs))
        else:
            self._end(None)

    async def _send(self, head: bytes, outputs: memoryview) -> None:
        """Send through the transport, and wait until it does not need the slot any more."""
        connection = self.template.connection
        self._watchdog.begin_response()
        connection.transport.writelines((head, outputs))
        self._watchdog.progress(len(outputs))
        await connection.drained()
        if not self._ended:
            # If the transport is closing, the client perhaps does not have all of it.
            self._end(ClientGone() if connection.transport.is_closing() else None)

    def _end(self, problem: Problem | ClientGone | None, response: bytes = b"") -> None:
        """Send the response, or the problem, give everything back, and record the request.

        The response comes first, since its client waits for it. The connection goes on last: its
        next request may begin at once, and needs what is given back here.

        Args:
            response: what is still to be sent of a response to a call that went well.
        """
        template, services, feed = self.template, self.template.services, self.feed
        self._ended = True
        if self._is_watched:
            services.large_calls.under_way -= 1
            feed.stop_receiving()
            self._watchdog.close()
        self.received -= self._missing
        if isinstance(problem, ClientGone):
            self.outcome, self.status = "gone", self.status or 499
        elif problem is not None and self.status:
            # A part of the response was sent, which must not look complete. The transport may not
            # send more of the slot, either.
            self.outcome = problem.code
            template.connection.abort()
        elif problem is not None:
            response = self._problem_response(problem)
        try:
            if response and self._missing:
                feed.refuse(response)
            elif response:
                feed.send(response)
        finally:
            self.slot.release()
            services.authenticator.release(self)
            seconds = time.monotonic() - self.began
            self.account.release(seconds)
        if not (response and self._missing):
            feed.end()
        services.record(self, seconds)

    def _problem_response(self, problem: Problem) -> bytes:
        """The response that is a problem. This also records it."""
        status, headers, body = render(problem, self.request_id, self.scope["path"])
        fields = [*headers, (b"x-request-id", self.request_id.encode())]
        if self._missing or self.feed.is_last:
            fields.append((b"connection", b"close"))
        text = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
        self.status, self.sent, self.outcome = status, len(body), problem.code
        head = self.template.connection.response_head(status)
        return b"".join((head, NOSNIFF, text, b"\r\n", body))

    def _fail_with(self, error: Exception) -> None:
        log.error("a request failed", exc_info=error, extra={"id": self.request_id})
        if self._ended:
            self.template.connection.abort()
        else:
            self._end(Internal())
