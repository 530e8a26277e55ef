"""What the routes and pages of monitors call, and the loop that keeps monitors running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable
from functools import partial

from prometheus_client.core import CounterMetricFamily, Metric
from sqlalchemy.orm import Session

from warpcall.errors import Busy, InvalidInput, TimedOut, Unavailable, WarpcallError
from warpcall.monitors import MonitorDetails, MonitorList, NewMonitor
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.service import JobService
from warpcall_bench.monitors import database, deliveries, outcomes, runs, views
from warpcall_bench.monitors.deliveries import Attempt
from warpcall_bench.monitors.models import MonitorChange, MonitorRequest
from warpcall_bench.monitors.runs import DueRun, RunLost
from warpcall_bench.monitors.sender import Sender
from warpcall_bench.monitors.tables import Monitor
from warpcall_bench.monitors.webhook_hosts import check_url
from warpcall_bench.monitors.work import find_work
from warpcall_bench.settings import BenchSettings
from warpcall_service.identity import NOBODY, Caller
from warpcall_service.quotas import Quotas
from warpcall_service.store.database import StoreError

POLL_S = 1.0  # between two searches for monitors that are due, or whose jobs have ended
MOST_SERIES = 100  # cases times implementations of a monitor
MOST_SENDING = 8  # attempts at the same time
FOR_NOW = Busy, TimedOut, Unavailable  # refusals of a job that the server may take soon

log = logging.getLogger("warpcall.monitors")


class MonitorService:
    """All operations on monitors, and the task that submits their jobs and finds steps."""

    def __init__(self, settings: BenchSettings, jobs: JobService, quotas: Quotas) -> None:
        self._settings = settings
        self._quotas = quotas
        self._jobs = jobs
        self._stopping = asyncio.Event()
        self._trouble = ""
        self._working: asyncio.Task[None] | None = None
        self._sender = Sender(settings.webhook_origins)
        self._sending: set[asyncio.Task[None]] = set()
        self._steps = 0
        self._attempts = Counter[str](delivered=0, waiting=0, failed=0)

    def start(self) -> None:
        """Begin to keep monitors running, in the running event loop."""
        self._working = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop. A run or an attempt that was claimed and not finished is due again after its lease."""
        self._stopping.set()
        tasks = [*self._sending, *filter(None, [self._working])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def metrics(self) -> Iterable[Metric]:
        """What this server has found and sent, as Prometheus metrics."""
        steps = CounterMetricFamily(
            "warpcall_monitor_steps", "Steps that were found in histories of monitors"
        )
        steps.add_metric([], self._steps)
        attempts = CounterMetricFamily(
            "warpcall_monitor_attempts",
            "Attempts to call URLs of monitors that have ended, by what follows: delivered, waiting "
            "for another attempt, or failed for ever",
            labels=["state"],
        )
        for state, number in self._attempts.items():
            attempts.add_metric([state], number)
        return steps, attempts

    async def add(self, caller: Caller, request: MonitorRequest, token: str = "") -> NewMonitor:
        """Add a monitor.

        Args:
            token: of the form that was sent. The same form sent twice, as by a double click, adds
                one monitor. Empty for programs.

        Raises:
            InvalidInput: it cannot be measured, or too often; the error names the field.
            TooLarge: the user has too many monitors.
            Forbidden, Unavailable: as for a job.
        """
        least_s = self._settings.monitor_min_every_s
        if request.every_s < least_s:
            raise InvalidInput(
                f"every_s must be at least {least_s} on this server, got {request.every_s}",
                field="every_s",
            )
        if request.notify is not None:
            check_url(request.notify, self._settings.webhook_origins)
        try:
            checked = await self._jobs.check(caller, request.job)
        except InvalidInput as error:
            raise InvalidInput(error.detail, field=f"job.{error.field}") from None
        series = len(checked["cases"]) * len(request.job.implementations)
        if series > MOST_SERIES:
            raise InvalidInput(
                f"a monitor may have at most {MOST_SERIES} cases times implementations, "
                f"these are {series}",
                field="job.sweep" if request.job.sweep is not None else "job.cases",
            )

        def write(session: Session) -> NewMonitor:
            by_default = self._settings.jobs_private
            private = submissions.is_private(session, caller, request.job, checked, by_default)
            most = self._quotas.count(caller.name, database.QUOTA)
            row = database.add(session, caller, request, private=private, most=most, token=token)
            return views.added(session, caller, row)

        return await self._jobs.write(write)

    async def list(self, caller: Caller, user: str | None) -> MonitorList:
        """The monitors that the caller may read, of one user if it is given."""
        return await self._jobs.read(caller, views.monitors, caller, user)

    async def show(self, caller: Caller, monitor_id: str) -> MonitorDetails:
        """A monitor with its history.

        Raises:
            NotFound: there is no such monitor, or it is private to another user.
        """
        return await self._jobs.read(caller, views.details, caller, monitor_id)

    async def change(
        self, caller: Caller, monitor_id: str, change: MonitorChange
    ) -> MonitorDetails:
        """Pause or resume a monitor.

        Raises:
            NotFound: there is no such monitor, or it is private to another user.
            Forbidden: the caller is neither its user nor an administrator.
        """

        def write(session: Session) -> MonitorDetails:
            row = database.set_paused(session, caller, monitor_id, paused=change.paused)
            session.flush()
            return views.details(session, caller, row.id)

        return await self._jobs.write(write)

    async def remove(self, caller: Caller, monitor_id: str) -> None:
        """Remove a monitor. Its jobs stay, but for one that has not ended, which is cancelled.

        Raises:
            NotFound: there is no such monitor, or it is private to another user.
            Forbidden: the caller is neither its user nor an administrator.
        """
        number = await self._jobs.write(
            lambda session: database.remove(session, caller, monitor_id)
        )
        if number is not None:
            self._jobs.has_cancelled(number)

    # Keeping monitors running

    async def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._poll()
            except StoreError as error:
                self._log_trouble(error.reason)
            except Exception:
                log.exception("monitors cannot be kept running")
            else:
                self._log_trouble("")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), POLL_S)

    async def _poll(self) -> None:
        work = await self._jobs.read(NOBODY, find_work)
        if work.ended:
            for number in await self._jobs.read(NOBODY, runs.ended):
                self._steps += await self._jobs.write(partial(_note_end, number=number))
        if work.run:
            while (due := await self._jobs.write(runs.claim)) is not None:
                await self._submit(due)
        if work.delivery:
            await self._jobs.write(deliveries.give_up)
            while len(self._sending) < MOST_SENDING:
                attempt = await self._jobs.write(deliveries.claim)
                if attempt is None:
                    break
                task = asyncio.create_task(self._send(attempt))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _send(self, attempt: Attempt) -> None:
        status, detail = await self._sender.send(attempt)
        try:
            state = await self._jobs.write(
                lambda session: deliveries.finish(session, attempt, status, detail)
            )
        except StoreError as error:  # the attempt is repeated after its lease
            self._log_trouble(error.reason)
            return
        if state is not None:
            self._attempts[state] += 1
        log.info(
            "attempt %d of the delivery %s of the monitor %s: %s",
            attempt.attempts,
            attempt.id,
            attempt.monitor_id,
            detail or state,
        )

    async def _submit(self, due: DueRun) -> None:
        by_default = self._settings.jobs_private
        with contextlib.suppress(RunLost):
            try:
                checked = await self._jobs.check(due.caller, due.request)
                number = await self._jobs.write(
                    lambda session: runs.submit(session, due, checked, by_default)
                )
                self._jobs.has_submitted(number)
            except StoreError:  # the run is due again after its lease
                raise
            except WarpcallError as error:
                why = str(error)
                note = runs.retry_later if isinstance(error, FOR_NOW) else runs.put_off
                await self._jobs.write(lambda session: note(session, due, why))
                log.warning("the monitor %s cannot be measured: %s", due.monitor_id, why)

    def _log_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.error(trouble)
        self._trouble = trouble


def _note_end(session: Session, number: int) -> int:
    """Note how the latest job of a monitor ended, unless another server did.

    Returns:
        The number of steps that were found.
    """
    monitor = session.get(Monitor, number, with_for_update={"skip_locked": True})
    if monitor is None or monitor.job_number is None:
        return 0
    found = outcomes.note_end(session, monitor)
    if found:
        log.info("the monitor %s has found %d steps", monitor.id, found)
    return found
