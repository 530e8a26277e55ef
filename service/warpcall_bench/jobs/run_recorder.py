"""Writes what happens in a run to the database, in order and without delaying the run.

While the database cannot be written, changes wait and are tried again until they succeed. The
changes of a run whose job another server has taken over are dropped: each transaction first checks
that the run's claim still holds. Progress whose write fails is dropped, too: it may have been
written without this server having learned of it, and would then be there twice.

A change that the database refuses, or that cannot be made from what the job sent, would fail for
ever. It is no outage: the run is stopped, and its job ends as `invalid`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, get_args

from prometheus_client.core import CounterMetricFamily, Metric
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from warpcall.jobs import STATES, UNFINISHED, ExitClass, State
from warpcall_bench.artefacts.profiles import ArtefactWriter
from warpcall_bench.jobs import lifecycle, printed, queue, sanitized
from warpcall_bench.jobs.database import JobDatabase
from warpcall_bench.jobs.events import append_event
from warpcall_bench.jobs.queue import Claim
from warpcall_bench.jobs.scratch import OutputEvents
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.events import (
    CaseMeasured,
    CommandEnded,
    EnvironmentKnown,
    FileFetched,
    OddCasesChecked,
    OutputWritten,
    Printed,
    ProfileMade,
    Progress,
    RunEvent,
    StateChanged,
)
from warpcall_bench.runs.runner import Outcome
from warpcall_bench.uploads import odd_cases
from warpcall_service.admission import TokenBucket
from warpcall_service.store.database import StoreError

RETRY_S = 1.0  # between two attempts to write a change
PROGRESS_S = 2.0  # between two progress events about the same phase of the same implementation
# A job may report new phases as fast as it likes. So many of them are written at once, and then so
# many a second on average, so that it cannot fill the database.
PROGRESS_BURST = 200.0
PROGRESS_PER_S = 4.0
MAX_WAITING = 1000  # changes that wait to be written; no progress is added to them
MAX_WAITING_OUTPUT = 100  # changes that wait, beyond which output of at most 64 KiB is left out
MOST_CONFLICTS = 10  # attempts to write a change that conflicts with other rows
REFUSED = "what its process sent cannot be stored; the server's log says why"

Change = Callable[[Session, Job], None]


class _Waiting(NamedTuple):
    """A change that waits to be written; `RunRecorder.put` says what the others mean."""

    change: Change
    charges: bool
    repeats: bool


log = logging.getLogger("warpcall.jobs")


class EndCounter:
    """Counts how runs and jobs ended on this server."""

    def __init__(self) -> None:
        # Each begins at 0: Prometheus sees no increase in a counter that begins with 1.
        self._runs = Counter[str](dict.fromkeys(get_args(ExitClass), 0))
        self._jobs = Counter[str]({state: 0 for state in STATES if state not in UNFINISHED})

    def add(self, exit_class: str, state: State | None) -> None:
        """Count a run, and its job if that has ended.

        Args:
            state: of the job after the run; None if it is not known.
        """
        self._runs[exit_class] += 1
        if state is not None and state not in UNFINISHED:
            self._jobs[state] += 1

    def metrics(self) -> Iterable[Metric]:
        """The counts, as Prometheus metrics."""
        runs = CounterMetricFamily(
            "warpcall_job_attempts",
            "Runs of jobs that have ended, by how they ended",
            labels=["exit_class"],
        )
        jobs = CounterMetricFamily(
            "warpcall_jobs_ended",
            "Jobs that ended with a run on this server, by their state at the end",
            labels=["state"],
        )
        for family, counts in ((runs, self._runs), (jobs, self._jobs)):
            for value, number in counts.items():
                family.add_metric([value], number)
        return runs, jobs


class RunRecorder:
    """Writes the changes of one running job.

    Args:
        stop: stops the run, with an exit class and a detail. It is called when a transaction finds
            that the claim does not hold any more, and when a change was refused.
        artefacts: stores the profiles of the run, or the files that it sends back; None if there are
            none.

    Attributes:
        claim_lost: whether the claim is known to be lost. Then nothing more is written.
    """

    def __init__(
        self,
        database: JobDatabase,
        claim: Claim,
        stop: Callable[[ExitClass, str], None],
        artefacts: ArtefactWriter[Any] | None = None,
    ) -> None:
        self.claim_lost = False
        self._database = database
        self._claim = claim
        self._stop = stop
        self._artefacts = artefacts
        self._output = OutputEvents()
        self._refused = False
        self._trouble = ""
        self._state: State = "preparing"
        self._phase: tuple[object, ...] = ()
        self._phase_at = 0.0
        self._bucket = TokenBucket(PROGRESS_BURST, 1 / PROGRESS_PER_S, time.monotonic())
        self._changes: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write())

    def on_event(self, event: RunEvent) -> None:
        """Write down an event of the run."""
        match event:
            case StateChanged(state):
                self._advance(state)
            case EnvironmentKnown():
                self.put(lambda session, job: lifecycle.set_environment(session, job, event))
            case OddCasesChecked(name, found):
                self.put(lambda session, job: odd_cases.store(session, job, name, found))
            case Printed():
                self.put(lambda session, job: printed.store(session, job, event))
            case CaseMeasured(position, result):
                self.put(lambda session, job: lifecycle.save_case(session, job, position, result))
            case ProfileMade() | FileFetched():
                if isinstance(event, ProfileMade) and event.file in sanitized.FILES:
                    made = event
                    self.put(lambda session, job: sanitized.store(session, job, made))
                if self._artefacts is not None:
                    self._artefacts.put(event)
            case OutputWritten():
                if self._changes.qsize() < MAX_WAITING_OUTPUT:  # readers see what was left out
                    self.put(lambda session, job: self._output.store(session, job, event))
            case CommandEnded(status):
                self.put(lambda session, job: setattr(job, "exit_status", status))
            case Progress(fields):
                self._put_progress(fields)

    def put(self, change: Change, *, charges: bool = False, repeats: bool = True) -> None:
        """Append a change to those that wait to be written.

        Args:
            charges: whether the change also charges the job's user, which requires the queue's
                lock.
            repeats: whether the change is tried again if it fails. It must be idempotent then.
        """
        self._changes.put_nowait(_Waiting(change, charges, repeats))

    async def store_artefacts(self) -> None:
        """Wait until all artefacts are stored. They cannot be after the end of the job is written."""
        if self._artefacts is not None:
            await self._artefacts.close()

    async def end(self, outcome: Outcome, *, counts: bool) -> State | None:
        """Write the end of the run, and wait until all changes are written.

        Args:
            counts: as for `lifecycle.interrupt`.

        Returns:
            The state of the job after the run; None if it is not known, because the claim is lost.
        """
        state: State | None = None

        def write_end(session: Session, job: Job) -> None:
            nonlocal state
            invalid = replace(outcome, exit_class="invalid", detail=REFUSED)
            lifecycle.end_run(session, job, invalid if self._refused else outcome, counts=counts)
            state = job.state  # type: ignore[assignment]  # the database holds only states

        self.put(write_end, charges=True)
        await self._changes.join()
        if state is None and self._refused:  # perhaps it was this end that was refused
            self.put(write_end, charges=True)
        await self.close()
        return None if self.claim_lost else state

    async def close(self) -> None:
        """Wait until all changes are written."""
        await self._changes.join()
        await self.abandon()

    async def abandon(self) -> None:
        """Stop writing. Changes and artefacts that wait are dropped."""
        if self._artefacts is not None:
            await self._artefacts.abandon()
        self._writing.cancel()
        await asyncio.wait((self._writing,))

    def _put_progress(self, fields: Mapping[str, Any]) -> None:
        phase = (fields["position"], fields.get("phase"), fields.get("implementation"))
        now = time.monotonic()
        if phase == self._phase and now <= self._phase_at + PROGRESS_S:
            return
        if self._changes.qsize() >= MAX_WAITING or self._bucket.take(now):
            return
        self._phase, self._phase_at = phase, now
        self.put(lambda session, job: append_event(session, job, "progress", fields), repeats=False)

    def _advance(self, state: State) -> None:
        """Write a state, unless the run has already reached it or a later one."""
        order: tuple[State, ...] = ("preparing", "waiting_gpu", "running", "finalizing")
        if order.index(state) > order.index(self._state):
            self._state = state
            self.put(lambda session, job: lifecycle.advance(session, job, state))

    async def _write(self) -> None:
        while True:
            waiting = await self._changes.get()
            if not self.claim_lost:
                await self._make(waiting)
            self._changes.task_done()
            self._database.notify(self._claim.number)

    async def _make(self, waiting: _Waiting) -> None:
        conflicts = 0
        while True:
            try:
                await self._database.write(self._changed, waiting.change, waiting.charges)
            except StoreError as error:
                conflicts += isinstance(error.__cause__, IntegrityError)
                if conflicts == MOST_CONFLICTS:
                    log.exception("something that a job did is lost")
                    self._refuse()
                    return
                if error.reason != self._trouble:  # else each retry would log the same reason
                    log.error("what a job did waits to be written: %s", error.reason)
                self._trouble = error.reason
                if not waiting.repeats:
                    return
                await asyncio.sleep(RETRY_S)
            except queue.ClaimLost:
                self.claim_lost = True
                self._stop("interrupted", "another server has taken the job over")
                return
            except Exception:
                log.exception("something that a job did is lost")
                self._refuse()
                return
            else:
                self._trouble = ""
                return

    def _refuse(self) -> None:
        """Stop the run, whose job ends as invalid."""
        self._refused = True
        self._stop("invalid", REFUSED)

    def _changed(self, session: Session, change: Change, charges: bool) -> None:
        if charges:
            queue.lock(session)
        change(session, queue.lock_claimed(session, self._claim))
