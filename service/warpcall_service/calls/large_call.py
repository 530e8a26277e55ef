"""A call on the short way whose body or response is large, or whose body comes in pieces."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from warpcall.errors import Problem
from warpcall_service.auth.rate_limits import Account
from warpcall_service.calls.repeated_call import CallTemplate, RepeatedCall
from warpcall_service.http.exchange import JOIN_BYTES, ClientGone, stopped_early
from warpcall_service.http.problems import Internal
from warpcall_service.http.quick import QuickFeed
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.status import Timing

log = logging.getLogger("warpcall")


class LargeCall(RepeatedCall):
    """A call whose inputs may still be coming, and whose response may not fit into the socket.

    It implements `lanes.lane_call.Outcome` for the lane, and `http.quick.Running` for the
    connection. The transport writes the inputs into the call's slot, and sends the outputs from
    there.
    """

    __slots__ = ("_ended", "_is_on_lane", "_missing", "_sending", "_watchdog")

    _sending: asyncio.Task[None]
    _watchdog: ClientWatchdog

    def __init__(self, template: CallTemplate, feed: QuickFeed, began: float) -> None:
        super().__init__(template, feed, began)
        self._ended = False
        self._is_on_lane = False
        self._missing = 0  # bytes of the body that have not come

    def start(self, slot: Slot, account: Account, nbytes: int) -> None:
        """Begin; the first `nbytes` bytes of the inputs are in the slot.

        Raises:
            Busy, Unavailable, TimedOut: the inputs are complete, and the lane does not accept them.
        """
        template = self.template
        settings = template.services.settings
        self.slot, self.account = slot, account
        rest = slot.view[nbytes : template.plan.input_nbytes]
        self._missing = len(rest)
        if not rest:
            self._submit()
        template.services.large_calls.under_way += 1
        self._watchdog = ClientWatchdog(
            template.connection,
            settings.body_timeout_s,
            int(settings.min_rate_bytes_per_s),
            end=self._cancel,
        )
        if not rest:
            self._watchdog.pause()
            return
        self._watchdog.progress(nbytes)
        if template.timeout_s is not None:
            self._watchdog.set_deadline(template.timeout_s)
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
        if not self._ended:
            self._end(problem if isinstance(problem, Problem) else Internal())

    # For the connection, and for the authenticator

    def cancel_with(self, problem: Problem) -> None:
        """Answer with `problem`, or abort a response that has begun."""
        self._cancel(problem)

    def leave(self) -> None:
        """The client has left."""
        self._cancel(ClientGone())

    def _cancel(self, reason: Problem | ClientGone) -> None:
        """End now. The lane drops the call, or finishes it for nobody."""
        if self._ended:
            return
        self._end(reason)
        if self._is_on_lane:
            self.template.services.engine.drop(self.slot, self)

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
        """Give the call to its lane."""
        self.give_to_lane(self.slot, self)
        self._is_on_lane = True

    def _respond(self, timing: Timing) -> None:
        template, connection = self.template, self.template.connection
        if connection.transport.is_closing():
            self._end(ClientGone())
            return
        head = template.response_head(timing, self.request_id, is_last=self.feed.is_last)
        outputs = self.slot.view[template.output_begin : template.output_end]
        self.succeed(timing)
        if template.response_nbytes <= JOIN_BYTES:
            connection.transport.write(b"".join((head, outputs)))
            self._end(None)
            return
        if not self._gave_to_thread(head, outputs):
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

    def _end(self, problem: Problem | ClientGone | None) -> None:
        """Give everything back, send the problem if there is one, and record the request."""
        self._ended = True
        self.template.services.large_calls.under_way -= 1
        self.feed.stop_receiving()
        self._watchdog.close()
        if isinstance(problem, ClientGone):
            self.outcome, self.status = "gone", self.status or 499
            problem = None
        elif problem is not None and self.status:
            # A part of the response was sent, which must not look complete. The transport may not
            # send more of the slot, either.
            self.outcome = problem.code
            self.template.connection.abort()
            problem = None
        self.received -= self._missing
        seconds = self.give_back()
        try:
            if problem is None:
                self.feed.end()
            elif self._missing:
                self.feed.refuse(self.problem_response(problem, is_last=True))
            else:
                self.feed.answer(self.problem_response(problem, is_last=self.feed.is_last))
        finally:
            self.template.services.record(self, seconds)

    def _fail_with(self, error: Exception) -> None:
        log.error("a request failed", exc_info=error, extra={"id": self.request_id})
        if not self._ended:
            self._end(Internal())
