"""What the routes ask of the jobs: each request checked, passed to the database, and answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput
from warpcall.jobs import UNFINISHED, JobDetails, JobList, JobPreview, Queue, SubmittedJob
from warpcall_service.auth.usage import UsageCounter
from warpcall_service.identity import Caller
from warpcall_service.jobs import comparison, events, exports, submissions, views
from warpcall_service.jobs.database import JobDatabase
from warpcall_service.jobs.models import JobRequest
from warpcall_service.jobs.read_admission import ReadAdmission, StreamLimit
from warpcall_service.jobs.scheduler import Scheduler, memory_bytes, modules
from warpcall_service.jobs.submissions import Filter
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.messages import frame
from warpcall_service.runs.messages import Checked
from warpcall_service.settings import Settings
from warpcall_service.store.database import Store

POLL_S = 1.0  # between two looks at a job that another server may run


class JobService:
    """Everything about jobs, for the routes.

    Attributes:
        database: for routes that only look something up.
        scheduler: runs them.
    """

    def __init__(
        self, settings: Settings, engine: LocalEngine, store: Store, usage_counter: UsageCounter
    ) -> None:
        self._settings = settings
        self._engine = engine
        self.database = JobDatabase(store)
        self.scheduler = Scheduler(settings, engine, self.database, usage_counter)
        self._heavy = ReadAdmission(settings.queue_timeout_s)
        self._comparing = asyncio.Lock()  # a lane has one question of a comparison at a time
        self._streams = StreamLimit(settings.user_max_streams)

    def start(self) -> None:
        """Begin to run jobs, in the running loop, over an engine that was started."""
        self.scheduler.start()

    async def stop(self) -> None:
        """Put back what runs."""
        await self.scheduler.stop()
        self.database.close()

    async def submit(
        self, caller: Caller, request: JobRequest, idempotency_key: str | None
    ) -> SubmittedJob:
        """Queue a job, or find the one that makes it unnecessary.

        Raises:
            InvalidInput: it names the field.
            Busy: the user has too many that are not finished.
            Forbidden: a high priority is for administrators.
            Unavailable: the database cannot be written, or no lane can check it.
        """
        if request.priority == "high":
            caller.check("admin")
        known = await self.database.read(self._repeated, caller, request, idempotency_key)
        if known is not None:
            return known
        checked = await self._check(request)
        found, number = await self.database.write(
            self._submit, caller, request, checked, idempotency_key
        )
        if not found.reused:
            self.database.notify(number)
            self.scheduler.wake()
        return found

    async def preview(self, caller: Caller, request: JobRequest) -> JobPreview:
        """What a submission would come to; raises as `submit`."""
        checked = await self._check(request)
        return await self.database.read_for(caller.name, _preview, caller, request, checked)

    async def find(self, caller: Caller, job_id: str) -> JobDetails:
        """One job."""
        return await self.database.read_for(
            caller.name, views.job, caller, job_id, self.scheduler.devices
        )

    async def list(self, caller: Caller, wanted: Filter) -> JobList:
        """A page of jobs."""
        return await self.database.read_for(
            caller.name, views.jobs, caller, wanted, self.scheduler.devices
        )

    async def queue(self, caller: Caller) -> Queue:
        """Everyone's jobs that run or wait, in order."""
        return await self.database.read_for(caller.name, views.whole_queue, self.scheduler.devices)

    async def cancel(self, caller: Caller, job_id: str) -> JobDetails:
        """End a job; again, or after its end, is harmless."""
        number = await self.database.write(_cancel, caller, job_id)
        self.scheduler.cancel(number)
        self.database.notify(number)
        return await self.find(caller, job_id)

    async def events(
        self, caller: Caller, job_id: str, after: int, stopping: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """What happens to a job after an event, until its end, as text of an event stream.

        Empty now and then, when nothing happens.

        Raises:
            Busy: the user has too many such streams.
        """
        with self._streams.opened(caller.name):
            number = await self.database.read_for(caller.name, _number, caller, job_id)
            while True:
                changed = self.database.subscribe(number)
                state, last = await self.database.latest(number)
                if last > after:
                    after, text = await self.database.render_for(
                        caller.name, _events, number, after, last
                    )
                    yield text
                elif state not in UNFINISHED or stopping():
                    return
                else:
                    yield b""
                    await _wait(changed)

    async def results(
        self, caller: Caller, job_id: str, form: str, samples: bool
    ) -> AsyncGenerator[bytes, None]:
        """The results of a job in a format, in parts.

        Raises:
            Busy: the user has too many heavy reads under way.
        """
        user = caller.name
        async with self._heavy.admitted(user):
            steps = await self.database.render_for(
                user, exports.begin, caller, job_id, form, samples
            )
            for step in steps:
                yield await self.database.render_for(user, step)

    async def compare(
        self, caller: Caller, first_id: str, second_id: str
    ) -> AsyncGenerator[bytes, None]:
        """Two jobs side by side, as JSON, in parts.

        Raises:
            Busy: the user has too many heavy reads under way.
        """
        user = caller.name
        async with self._heavy.admitted(user):
            pair = await self.database.render_for(
                user, comparison.pair, caller, first_id, second_id
            )
            yield pair.head()
            for part in pair.parts():
                question = await self.database.render_for(user, comparison.question, pair, part)
                async with self._comparing:
                    answer = await self._engine.request_plan(question, "this comparison")
                yield pair.rows(part, answer)
            yield pair.tail()

    async def _check(self, request: JobRequest) -> Checked:
        """Ask a lane, which knows the ops and the implementations."""
        asked = request.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        question = {
            "op": request.op,
            "implementations": request.implementations,
            "precision": request.precision,
            "max_cases": self._settings.job_max_cases,
            "host_bytes": memory_bytes(self._settings),
            "modules": modules(self._settings),
            **{name: asked[name] for name in ("cases", "sweep") if asked.get(name) is not None},
        }
        # A check takes milliseconds, also of 1,000 cases. But the first one of a process imports
        # the operator's modules, which may take as long as the start of a lane.
        limit_s = self._settings.start_timeout_s if question["modules"] else None
        answer: Mapping[str, Any] = await self._engine.request_plan(
            frame({"job": question}), "this job", limit_s=limit_s
        )
        checked: Checked = answer  # type: ignore[assignment]  # as check.py gives it
        nominal_s = submissions.nominal_s(request, checked)
        limit_s = self._settings.job_wall_s
        if nominal_s > limit_s:
            raise InvalidInput(
                f"a job may run for {limit_s:g} s, these {len(checked['cases'])} cases with "
                f"{len(request.implementations)} implementations at {request.precision} take some "
                f"{nominal_s:.0f} s",
                field="sweep" if request.sweep is not None else "cases",
            )
        return checked

    def _repeated(
        self, session: Session, caller: Caller, request: JobRequest, key: str | None
    ) -> SubmittedJob | None:
        row = submissions.find_repeated(session, caller, request, key)
        if row is None:
            return None
        return views.submitted(session, row, False, self.scheduler.devices)

    def _submit(
        self,
        session: Session,
        caller: Caller,
        request: JobRequest,
        checked: Checked,
        key: str | None,
    ) -> tuple[SubmittedJob, int]:
        limit = self._settings.user_max_jobs
        row, created = submissions.submit(session, caller, request, checked, key, limit)
        session.flush()
        return views.submitted(session, row, created, self.scheduler.devices), row.number


def _preview(session: Session, caller: Caller, request: JobRequest, checked: Checked) -> JobPreview:
    expected = submissions.estimate(session, request, checked)
    found = None if request.fresh else submissions.find_answered(session, caller, request, checked)
    return JobPreview(
        cases=len(checked["cases"]),
        nominal_s=expected.nominal_s,
        estimated_s=expected.estimated_s,
        device_bytes=max(case["device_bytes"] for case in checked["cases"]),
        environment=checked["environment"],
        reuses=None if found is None else found.id,
    )


def _cancel(session: Session, caller: Caller, job_id: str) -> int:
    row = submissions.find(session, caller, job_id)
    submissions.cancel(session, row)
    return row.number


def _number(session: Session, caller: Caller, job_id: str) -> int:
    return submissions.find(session, caller, job_id).number


def _events(session: Session, number: int, after: int, last: int) -> tuple[int, bytes]:
    """The sequence of the last event that was read, and the text of what came after `after`."""
    rows = events.after(session, number, after)
    return rows[-1].sequence if rows else last, events.as_text(rows)


async def _wait(changed: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), POLL_S)
