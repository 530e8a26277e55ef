"""What the routes call: every operation on benchmark jobs."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall.jobs import UNFINISHED, JobDetails, JobList, JobPreview, Queue, SubmittedJob
from warpcall.jobs.results import CaseDetails, History
from warpcall_bench.artefacts.service import Artefacts
from warpcall_bench.jobs import (
    answers,
    comparison,
    events,
    exports,
    printed,
    queue,
    scratch,
    submissions,
)
from warpcall_bench.jobs.checking import JobChecks
from warpcall_bench.jobs.database import JobDatabase
from warpcall_bench.jobs.models import JobChange, JobRequest, ScratchRequest
from warpcall_bench.jobs.scheduler import Scheduler
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.runs.messages import Checked
from warpcall_bench.runs.operator_modules import OperatorModules
from warpcall_bench.runs.sandbox import Sandbox
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads import trees
from warpcall_bench.uploads.checks import Checks
from warpcall_service.admission import Admission
from warpcall_service.extension import Accounts, Engine, Nodes, Traces
from warpcall_service.http.exchange import Exchange
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store

P = ParamSpec("P")
T = TypeVar("T")

MAX_READS = (
    32  # exports and comparisons at once; each holds one or two parts of its answer, about 1 MB
)
MAX_WAITING = 8  # of one user, besides the one that runs
STREAMS = "user_max_streams"  # a quota
POLL_S = 1.0  # between two reads of a job: another server that runs it cannot notify this one


class JobService:
    """All operations on benchmark jobs, for the routes.

    Attributes:
        scheduler: starts the jobs on this server's devices.
    """

    def __init__(
        self,
        settings: BenchSettings,
        engine: Engine,
        store: Store,
        modules: OperatorModules,
        sandbox: Sandbox,
        checks: Checks,
        accounts: Accounts,
        nodes: Nodes,
        artefacts: Artefacts,
        traces: Traces | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._sandbox = sandbox
        self._database = JobDatabase(store)
        self._checks = JobChecks(settings, engine, self._database, modules, sandbox, checks, nodes)
        self.scheduler = Scheduler(
            settings, engine, self._database, modules, accounts, nodes, artefacts, traces
        )
        self._traces = traces
        self._quotas = quotas = accounts.quotas
        self._heavy = Admission(
            "exports and comparisons", MAX_READS, MAX_WAITING, settings.queue_timeout_s
        )
        self._comparing = asyncio.Lock()  # one lane works on one comparison at a time
        self._streams = Admission(
            *("streams of events", math.inf, 0, None),
            of_user=lambda user: quotas.limit(user, STREAMS),
            quota=STREAMS,
        )
        quotas.counters[STREAMS] = self._streams.count_of

    def start(self) -> None:
        """Begin to run jobs in the running event loop. The engine must have been started."""
        self.scheduler.start()

    async def stop(self) -> None:
        """Put the jobs that run back into the queue, and end."""
        await self.scheduler.stop()
        self._database.close()

    def traceparent(self, exchange: Exchange) -> str:
        """Names a request in its trace, for `submit`; empty without a trace."""
        if self._traces is None:
            return exchange.traceparent.decode()
        return self._traces.traceparent(exchange)

    async def submit(
        self,
        caller: Caller,
        request: JobRequest,
        idempotency_key: str | None,
        traceparent: str = "",
    ) -> SubmittedJob:
        """Queue a job, or find a job that answers the request.

        Args:
            traceparent: of the request that submits it; the traces of its runs link to that.

        Raises:
            InvalidInput: the request cannot be measured; the error names the field.
            Busy: the user has too many jobs that are not finished, or has used up the device time
                of the day.
            Forbidden: the priority is high and the caller is not an administrator, or the server
                runs no uploaded code.
            Unavailable: the database cannot be written, or no lane can check the request.
        """
        known = await self.repeated(caller, request, idempotency_key)
        if known is not None:
            return known
        checked = await self._checks.check(caller, request)
        return await self.submit_checked(caller, request, checked, idempotency_key, traceparent)

    async def repeated(
        self, caller: Caller, request: JobRequest, idempotency_key: str | None
    ) -> SubmittedJob | None:
        """The job that was submitted with this Idempotency-Key before; None if there is none.

        It raises as `submit` what can be known before the request is checked.
        """
        if request.priority == "high":
            caller.check("admin")
        known = await self._database.read(self._repeated, caller, request, idempotency_key)
        if known is None:
            self._quotas.check_device_time(caller.name)
        return known

    async def submit_checked(
        self,
        caller: Caller,
        request: JobRequest,
        checked: Checked,
        idempotency_key: str | None,
        traceparent: str = "",
        beside: Callable[[Session], AbstractContextManager[None]] | None = None,
    ) -> SubmittedJob:
        """Queue a job whose request was checked, or find one that answers it. It raises as `submit`.

        Args:
            beside: what the same transaction does before and after; the queue is locked before.
        """
        found, number = await self._database.write(
            self._submit, caller, request, checked, idempotency_key, traceparent, beside
        )
        if not found.reused:
            self.has_submitted(number)
        return found

    async def submit_scratch(
        self, caller: Caller, request: ScratchRequest, idempotency_key: str | None
    ) -> SubmittedJob:
        """Queue a scratch run, or find the one that was submitted with the same Idempotency-Key.

        Raises:
            InvalidInput, TooLarge: the command cannot be run; the error names the field.
            Busy: as `submit`.
            Forbidden: the operator does not allow scratch runs, or the sandbox cannot start.
            Unavailable: the database cannot be written, or the sandbox is still being checked.
        """
        self._sandbox.require_scratch()
        settings = self._settings
        if request.limit_s > settings.scratch_max_s:
            raise InvalidInput(
                f"limit_s: a scratch run may take at most {settings.scratch_max_s:g} s here, got "
                f"{request.limit_s:g}",
                field="limit_s",
            )
        trees.check_folder(request.files, settings.upload_max_files)
        for path in request.fetch:
            trees.check_path(path, "fetch")
        self._checks.devices_for(request)
        self._quotas.check_device_time(caller.name)
        limit = self._quotas.count(caller.name, submissions.QUOTA)
        most_bytes = int(settings.upload_max_tree_bytes)

        def submit(session: Session) -> tuple[SubmittedJob, int]:
            row, created = scratch.submit(
                session, caller, request, idempotency_key, limit, most_bytes
            )
            session.flush()
            return answers.submitted(session, row, created, self.scheduler.devices), row.number

        found, number = await self._database.write(submit)
        if not found.reused:
            self.has_submitted(number)
        return found

    async def preview(self, caller: Caller, request: JobRequest) -> JobPreview:
        """What a submission would cost. It raises as `submit`, except Busy."""
        checked = await self._checks.check(caller, request)
        return await self._database.lookups.read(
            caller.name, answers.preview, caller, request, checked, self._settings.jobs_private
        )

    async def read(
        self,
        caller: Caller,
        function: Callable[Concatenate[Session, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a function that only reads, on the threads for what users read in one piece.

        Raises:
            StoreError: the database cannot be read, or does not answer.
        """
        return await self._database.lookups.read(caller.name, function, *args, **kwargs)

    async def write(self, function: Callable[[Session], T]) -> T:
        """Run a function in one transaction. It raises StoreError if the database cannot do it."""
        return await self._database.write(function)

    @property
    def private_by_default(self) -> bool:
        """Whether jobs that do not say so themselves are private."""
        return self._settings.jobs_private

    async def check(self, caller: Caller, request: JobRequest) -> Checked:
        """Check a request, of which nothing is queued. It raises as `submit`, except Busy."""
        return await self._checks.check(caller, request)

    async def check_each(
        self, caller: Caller, request: JobRequest, parts: Sequence[JobRequest]
    ) -> Sequence[Checked]:
        """Check a request for jobs that differ only in the GPU that they ask for."""
        return await self._checks.check_each(caller, request, parts)

    async def find(self, caller: Caller, job_id: str, *, any_kind: bool = False) -> JobDetails:
        """One job with its details.

        Args:
            any_kind: as for `submissions.find`.

        Raises:
            NotFound: there is no such job, or it is private to another user.
        """
        return await self._database.lookups.read(
            caller.name, answers.job, caller, job_id, self.scheduler.devices, any_kind=any_kind
        )

    async def list(self, caller: Caller, wanted: Filter) -> JobList:
        """A page of the jobs that the caller may read."""
        return await self._database.lookups.read(
            caller.name, answers.jobs, caller, wanted, self.scheduler.devices
        )

    async def queue(self, caller: Caller) -> Queue:
        """The jobs of all users that run or wait, in order."""
        return await self._database.lookups.read(
            caller.name, answers.whole_queue, caller, self.scheduler.devices
        )

    async def history(
        self, caller: Caller, op: str, implementation: str, case: str, limit: int
    ) -> History:
        """What an implementation took in a case, job by job, the latest first."""
        return await self._database.lookups.read(
            caller.name, answers.history, caller, op, implementation, case, limit
        )

    async def change(self, caller: Caller, job_id: str, change: JobChange) -> JobDetails:
        """Change who may read a job. Streams of its events end for those who may not any more.

        Raises:
            NotFound: there is no such job, or it is private to another user.
            Forbidden: the caller is neither its user nor an administrator.
        """
        number = await self._database.write(_change, caller, job_id, change)
        self._database.notify(number)
        return await self.find(caller, job_id, any_kind=True)

    async def cancel(self, caller: Caller, job_id: str) -> JobDetails:
        """End a job. The operation is idempotent, and does nothing to a job that has ended.

        Raises:
            NotFound: there is no such job, or it is private to another user.
            Forbidden: the caller is neither its user nor an administrator.
        """
        number = await self._database.write(_cancel, caller, job_id)
        self.has_cancelled(number)
        return await self.find(caller, job_id, any_kind=True)

    def has_submitted(self, number: int) -> None:
        """Tell readers and the scheduler of a job that was queued by another part of the server."""
        self._database.notify(number)
        self.scheduler.wake()

    def has_cancelled(self, number: int) -> None:
        """Tell readers and the scheduler of a job that another part of the server cancelled."""
        self.scheduler.cancel(number)
        self._database.notify(number)

    async def events(
        self, caller: Caller, job_id: str, after: int, stopping: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """The events of a job after the sequence `after`, as text of an event stream, until its end
        or until the caller may not read it any more.

        The text is empty about once in POLL_S seconds while nothing happens.

        Args:
            stopping: whether the server is about to stop, which ends the stream.

        Raises:
            NotFound: there is no such job, or it is private to another user.
            Busy: the user has too many streams open.
        """
        async with self._streams.admitted(caller.name):
            number = await self._database.lookups.read(caller.name, _number, caller, job_id)
            while True:
                changed = self._database.subscribe(number)
                latest = await self._database.latest(number)
                if not latest.is_readable(caller):
                    return
                if latest.sequence > after:
                    after, text = await self._database.exports.read(
                        caller.name, _events, number, after, latest.sequence
                    )
                    yield text
                elif latest.state not in UNFINISHED or stopping():
                    return
                else:
                    yield b""
                    await _wait(changed)

    def watching(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        """Count a request that waits for jobs of a user as one of their streams, until the block ends.

        Raises:
            Busy: the user has too many streams open.
        """
        return self._streams.admitted(caller.name)

    def subscribe(self, numbers: Collection[int]) -> Callable[[], Awaitable[None]]:
        """Subscribe to changes of jobs. Subscribe first, then read the jobs, then await the result.

        Returns:
            A function that waits until one of the jobs changes, at most POLL_S.
        """
        subscribed = [self._database.subscribe(number) for number in numbers]

        async def wait() -> None:
            tasks = [asyncio.ensure_future(one.wait()) for one in subscribed]
            try:
                await asyncio.wait(tasks, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()

        return wait

    async def results(
        self, caller: Caller, job_id: str, form: str, samples: bool
    ) -> AsyncGenerator[bytes, None]:
        """The results of a job in the format `form`, in parts.

        Raises:
            NotFound: there is no such job, or it is private to another user.
            Busy: the user has too many exports and comparisons under way.
        """
        async for piece in self.rendered(
            caller, lambda session: exports.begin(session, caller, job_id, form, samples)
        ):
            yield piece

    async def rendered(
        self, caller: Caller, begin: Callable[[Session], Iterator[exports.Step]]
    ) -> AsyncGenerator[bytes, None]:
        """What the steps that `begin` returns render. Each has a transaction of its own.

        Raises:
            Busy: the user has too many exports and comparisons under way.
        """
        user = caller.name
        async with self._heavy.admitted(user):
            for step in await self._database.exports.read(user, begin):
                yield await self._database.exports.read(user, step)

    async def case(self, caller: Caller, job_id: str, position: int) -> CaseDetails:
        """One measured case of a job, with its rows and samples.

        Raises:
            NotFound: there is no such job, it is private to another user, or it has not measured a
                case at this position.
        """
        return await self._database.exports.read(
            caller.name, answers.find_case, caller, job_id, position
        )

    async def printed(self, caller: Caller, job_id: str) -> AsyncGenerator[bytes, None]:
        """What uploads printed in the cases of a job, as JSON, in parts.

        Raises:
            NotFound: there is no such job, or it is private to another user.
            Busy: the user has too many exports and comparisons under way.
        """
        async for piece in self.rendered(
            caller, lambda session: printed.begin(session, caller, job_id)
        ):
            yield piece

    async def compare(
        self, caller: Caller, first_id: str, second_id: str
    ) -> AsyncGenerator[bytes, None]:
        """Two jobs side by side, as JSON, in parts.

        Raises:
            NotFound: one of the jobs does not exist, or is private to another user.
            Busy: the user has too many exports and comparisons under way.
        """
        user = caller.name
        async with self._heavy.admitted(user):
            pair = await self._database.exports.read(
                user, comparison.pair_of, caller, first_id, second_id
            )
            yield pair.head()
            for part in pair.parts():
                request = await self._database.exports.read(
                    user, comparison.lane_request, pair, part
                )
                async with self._comparing:
                    answer = await self._engine.request_plan(request, "this comparison")
                yield pair.rows(part, answer)
            yield pair.tail()

    def _repeated(
        self, session: Session, caller: Caller, request: JobRequest, key: str | None
    ) -> SubmittedJob | None:
        row = submissions.find_repeated(session, caller, submissions.sha256_of(request), key)
        if row is None:
            return None
        return answers.submitted(session, row, False, self.scheduler.devices)

    def _submit(
        self,
        session: Session,
        caller: Caller,
        request: JobRequest,
        checked: Checked,
        key: str | None,
        traceparent: str,
        beside: Callable[[Session], AbstractContextManager[None]] | None,
    ) -> tuple[SubmittedJob, int]:
        limit = self._quotas.count(caller.name, submissions.QUOTA)
        private = self._settings.jobs_private
        if beside is not None:
            queue.lock(session)  # before what `beside` locks, as in every other transaction
        with nullcontext() if beside is None else beside(session):
            row, created = submissions.submit(
                session, caller, request, checked, key, limit, private
            )
        if created:
            row.traceparent = traceparent or None
        session.flush()
        return answers.submitted(session, row, created, self.scheduler.devices), row.number


def _cancel(session: Session, caller: Caller, job_id: str) -> int:
    row = submissions.find_own(session, caller, job_id, any_kind=True)
    submissions.cancel(session, row)
    return row.number


def _change(session: Session, caller: Caller, job_id: str, change: JobChange) -> int:
    row = submissions.find_own(session, caller, job_id, any_kind=True)
    row.private = change.private
    return row.number


def _number(session: Session, caller: Caller, job_id: str) -> int:
    return submissions.find(session, caller, job_id, any_kind=True).number


def _events(session: Session, number: int, after: int, last: int) -> tuple[int, bytes]:
    """The sequence of the last event that was read, and the text of the events after `after`."""
    rows = events.after(session, number, after)
    return rows[-1].sequence if rows else last, events.as_text(rows)


async def _wait(changed: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), POLL_S)
