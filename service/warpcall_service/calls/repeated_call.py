"""Calls that repeat an earlier call of their connection; `quick.py` says which these are."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from warpcall.errors import Problem
from warpcall_service.auth.rate_limits import Account
from warpcall_service.calls.call_template import NOSNIFF, CallTemplate, ClientMemory
from warpcall_service.http.exchange import JOIN_BYTES, ClientGone, new_request_id, stopped_early
from warpcall_service.http.problems import Internal, render
from warpcall_service.http.quick import QuickFeed
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.status import Timing

log = logging.getLogger("warpcall")


class RepeatedCall:
    """One call: what is counted and logged of it, and what it holds until it ends.

    It implements `Answered` for metrics, usage and the log, `lanes.lane_call.Outcome` for the lane, and
    `http.quick.Running` for the connection. One of the last two ends it.

    A small call came in one read, and its response is one write: no task or timer waits for its end.
    Of any other call, the transport writes the inputs that are still to come into the call's slot, and
    sends the outputs from there, while a watchdog looks at the client's speed.
    """

    __slots__ = (
        *("account", "began", "caller", "compile_ms", "computed", "feed", "id_in_json", "memory"),
        *("op", "outcome", "received", "request_id", "scope", "sent", "slot", "stages_ms"),
        *("status", "template", "traceparent", "uploaded"),
        *("_ended", "_is_on_lane", "_is_watched", "_missing", "_sending", "_watchdog"),
    )

    slot: Slot
    account: Account
    memory: ClientMemory | None
    uploaded: float  # time at which its inputs were complete
    computed: float  # time at which its outputs were complete; set with `stages_ms`
    compile_ms: float  # likewise
    stages_ms: Mapping[str, float]
    span = None
    _sending: asyncio.Task[None]
    _watchdog: ClientWatchdog

    def __init__(
        self,
        template: CallTemplate,
        feed: QuickFeed,
        began: float,
        id_in_json: bytes,
        traceparent: bytes,
    ) -> None:
        self.template = template
        self.traceparent = traceparent
        self.id_in_json = id_in_json
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

    def start(self, slot: Slot, account: Account, nbytes: int, memory: ClientMemory | None) -> None:
        """Begin; the first `nbytes` bytes of the inputs are in the slot.

        Raises:
            Problem: as `_submit`; the inputs are complete.
        """
        template = self.template
        self.slot, self.account, self.memory = slot, account, memory
        self._missing = template.format.input_nbytes - nbytes
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
        rest = slot.view[nbytes : template.format.input_nbytes]
        self.feed.receive_into(rest, self._progress, self._received)

    # For the log and traces

    @property
    def route(self) -> str:
        """As in `Exchange`."""
        return self.template.route

    @property
    def tracestate(self) -> bytes:
        """As in `Exchange`."""
        return self.template.tracestate

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
        """Give the call to its lane; its body is complete.

        Raises:
            Busy, Unavailable, TimedOut: the lane does not accept it.
            InvalidInput: the client's memory cannot be read.
        """
        template, slot = self.template, self.slot
        if self.memory is not None:
            self.memory.read(slot.view)
        self.uploaded = time.monotonic()
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
        self.computed, self.compile_ms = time.monotonic(), timing.compile_ms
        self.stages_ms = timing.stages_ms(self.uploaded - self.began)
        view = self.slot.view
        if self.memory is not None:
            try:
                self.memory.write(view)
            except Problem as problem:
                self._end(problem)
                return
        for to, begin, end in template.moves:
            view[to : to + end - begin] = view[begin:end]
        head = template.response_head(
            timing, self.request_id, self.id_in_json, is_last=self.feed.is_last
        )
        outputs = view[template.sent_begin : template.sent_end]
        self.status = 200
        self.sent = template.response_nbytes
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
        if template.format.count is not None:
            stages_ms = self.stages_ms if problem is None else None
            template.format.count(self.op, seconds, stages_ms)
        services.record(self, seconds)

    def _problem_response(self, problem: Problem) -> bytes:
        """The response that is a problem. This also records it."""
        status, headers, body = render(problem, self.request_id, self.scope["path"])
        head = self.template.connection.response_head(status)
        text = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        own = b"x-request-id: %b\r\n" % self.request_id.encode()
        closing = b"connection: close\r\n" if self._missing or self.feed.is_last else b""
        self.status, self.sent, self.outcome = status, len(body), problem.code
        return b"".join((head, text, NOSNIFF, own, closing, b"\r\n", body))

    def _fail_with(self, error: Exception) -> None:
        log.error("a request failed", exc_info=error, extra={"id": self.request_id})
        if self._ended:
            self.template.connection.abort()
        else:
            self._end(Internal())
