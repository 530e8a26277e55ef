"""A call on the short way whose body or response is large: a task of its own receives and sends."""

from __future__ import annotations

import asyncio
import logging
import time

from warpcall.errors import Problem, Unavailable
from warpcall_service.auth.rate_limits import Account
from warpcall_service.calls.repeated_call import CallTemplate, RepeatedCall
from warpcall_service.http.exchange import JOIN_BYTES, ClientGone, stopped_early
from warpcall_service.http.problems import Internal
from warpcall_service.http.quick import QuickFeed
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes.slot import Slot
from warpcall_service.lanes.status import Timing

log = logging.getLogger("warpcall")


class LargeCall(RepeatedCall):
    """A call whose inputs may still be coming. It implements `http.quick.Running`.

    The transport writes the inputs into the call's slot, and sends the outputs from there.
    """

    __slots__ = ("_cancellation", "_ended", "_missing", "_received", "_task", "_watchdog")

    _received: asyncio.Future[None] | None  # of the rest of the body
    _task: asyncio.Task[None]
    _watchdog: ClientWatchdog

    def __init__(self, template: CallTemplate, feed: QuickFeed, began: float) -> None:
        super().__init__(template, feed, began)
        self._cancellation: Problem | None = None
        self._ended = False
        self._missing = 0  # bytes of the body that have not come

    def start(self, slot: Slot, account: Account, nbytes: int) -> None:
        """Begin; the first `nbytes` bytes of the inputs are in the slot."""
        template = self.template
        connection, settings = template.connection, template.services.settings
        self.slot, self.account = slot, account
        rest = slot.view[nbytes : template.plan.input_nbytes]
        self._missing = len(rest)
        self._task = connection.loop.create_task(self._run())
        self._task.add_done_callback(self._on_done)
        self._watchdog = ClientWatchdog(
            connection, settings.body_timeout_s, int(settings.min_rate_bytes_per_s), self._task
        )
        self._watchdog.progress(nbytes)
        self._watchdog.cancel_when_client_leaves()
        if template.timeout_s is not None:
            self._watchdog.set_deadline(template.timeout_s)
        # The transport may read on before the first step of the task.
        self._received = self.feed.receive_into(rest, self._progress) if rest else None

    def cancel_with(self, problem: Problem) -> None:
        """Answer with `problem`, or abort a response that has begun."""
        if self._cancellation is None:
            self._cancellation = problem
            self._task.cancel()

    def leave(self) -> None:
        """The client has left. The watchdog learns it from the connection."""

    def _progress(self, nbytes: int) -> None:
        self._missing -= nbytes
        self._watchdog.progress(nbytes)

    async def _run(self) -> None:
        if self._received is not None:
            await self._received
            if self._missing:
                nbytes = self.template.nbytes
                raise stopped_early(nbytes, nbytes - self._missing)
        self.uploaded = time.monotonic()
        self._watchdog.pause()
        self._watchdog.clear_deadline()
        await self._respond(await self._compute())
        self._end(None)

    async def _compute(self) -> Timing:
        """Run the call on its lane."""
        template, slot = self.template, self.slot
        engine, settings = template.services.engine, template.services.settings
        deadline = (
            self.uploaded + settings.call_timeout_s
            if template.timeout_s is None
            else self.began + template.timeout_s
        )
        return await engine.run_on_lane(template.plan, slot, slot, template.output_begin, deadline)

    async def _respond(self, timing: Timing) -> None:
        """Send the outputs, and wait until the transport needs the slot no more."""
        template, connection = self.template, self.template.connection
        if connection.transport.is_closing():
            raise ClientGone
        head = template.response_head(timing, self.request_id, is_last=self.feed.is_last)
        outputs = self.slot.view[template.output_begin : template.output_end]
        self.succeed(timing)
        if template.response_nbytes <= JOIN_BYTES:
            connection.transport.write(b"".join((head, outputs)))
            return
        head, outputs = connection.write_now(head, outputs)
        if not outputs:
            return
        self._watchdog.begin_response()
        connection.transport.writelines((head, outputs))
        self._watchdog.progress(len(outputs))
        await connection.drained()
        if connection.transport.is_closing():  # perhaps before the client had everything
            raise ClientGone

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """End the call if its task did not: it does nothing if it is cancelled before its first step."""
        if not self._ended:
            self._end(self._problem(task))

    def _end(self, problem: Problem | ClientGone | None) -> None:
        """Give everything back, send the problem if there is one, and record the request."""
        self._ended = True
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

    def _problem(self, task: asyncio.Task[None]) -> Problem | ClientGone | None:
        """Why the call ended without its response."""
        if task.cancelled():
            reason = self._watchdog.reason() or self._cancellation
            return reason or Unavailable("the server is stopping", retry_after_s=1)
        error = task.exception()
        if error is None or isinstance(error, Problem | ClientGone):
            return error
        log.error("a request failed", exc_info=error, extra={"id": self.request_id})
        return Internal()
