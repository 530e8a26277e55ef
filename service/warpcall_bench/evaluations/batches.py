"""Evaluates many candidates of one op, and answers with their verdicts in the order in which they are
known.

Sources are checked some at a time in one process, before a device is asked for. Those that can be
imported are measured by jobs of up to MOST_TOGETHER of them, which measure the baseline and the limit
once for all. While such a job runs, it gives way to short jobs of other users. Each upload has a process of its own in a job, so none can change the others' results.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.errors import Busy, InvalidInput, Problem, TimedOut, Unavailable
from warpcall.evaluations import Evaluation
from warpcall.jobs import UNFINISHED
from warpcall_bench.evaluations import verdicts
from warpcall_bench.evaluations.models import MOST_TOGETHER, BatchRequest
from warpcall_bench.evaluations.service import OF_SOURCE, Evaluations, Left, Located, Named
from warpcall_bench.jobs import queue, submissions
from warpcall_bench.jobs.service import JobService
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.messages import Checked
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.service import CheckedImplementation, UploadService
from warpcall_service.admission import Admission
from warpcall_service.formats.payloads import to_json
from warpcall_service.identity import Caller
from warpcall_service.text import error_text

MAX_BATCHES = 16  # at a time; each holds its sources, up to 4 MiB
OF_USER = 2
MAX_S = 4 * 3600.0  # of one batch
JOB_S = 30.0  # nominal duration of the job of a group, if it has more than one candidate
CHECKED_TOGETHER = 2 * MOST_TOGETHER  # sources: torch is imported once for them
MOST_AHEAD = 8  # jobs of a batch that have not ended; the others are submitted when one has
QUIET_S = 15.0  # after which an empty line keeps the connection open
PAUSE_S = 2.0  # before what was refused as `busy` is tried again

log = logging.getLogger("warpcall.evaluations")


@dataclass
class _Batch:
    """A batch under way.

    Attributes:
        caller, request, checked: who asks for what, and the cases.
        candidates: by the number of the first source of each; the same source is evaluated once.
        same: the numbers of all sources of each candidate, by the first one.
        decided: verdicts that were not sent yet.
        located: where the verdicts that are not known yet will be, by number of the candidate.
        news: is set when `decided` or `located` have changed.
    """

    caller: Caller
    request: BatchRequest
    checked: Checked
    candidates: dict[int, Named]
    same: dict[int, list[int]]
    traceparent: str
    until: float
    decided: list[Evaluation] = field(default_factory=list)
    located: dict[int, Located] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def numbers(self) -> set[int]:
        """The numbers of the jobs that are not known to have ended."""
        return {one.number for one in self.located.values()}

    def decide(self, number: int, found: Evaluation) -> None:
        """A candidate has its verdict."""
        self.decided += [replace(found, index=index) for index in self.same[number]]
        self.news.set()


class Batches:
    """Evaluates batches. `stop` ends those whose clients have left."""

    def __init__(
        self,
        settings: BenchSettings,
        jobs: JobService,
        uploads: UploadService,
        evaluations: Evaluations,
        stopping: Left,
    ) -> None:
        self._jobs = jobs
        self._uploads = uploads
        self._evaluations = evaluations
        self._stopping = stopping
        self._admission = Admission(
            *("batches of evaluations", MAX_BATCHES, 0, settings.queue_timeout_s), of_user=OF_USER
        )
        self._alone: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """End the batches that go on without a client. Their jobs stay in the queue."""
        for task in self._alone:
            task.cancel()
        if self._alone:
            await asyncio.wait(self._alone)

    async def evaluate(
        self, caller: Caller, request: BatchRequest, traceparent: str
    ) -> AsyncGenerator[bytes, None]:
        """The verdicts as lines of JSON. The first piece is empty, and comes when all is checked that
        needs no process. A piece is also empty while nothing happens.

        If the generator is closed before its end, jobs that have not begun are cancelled, unless the
        request says otherwise.

        Raises:
            InvalidInput, TooLarge, Forbidden: the request cannot be measured; the error names the field.
            Busy: the user has too many batches or streams.
        """
        async with self._admission.admitted(caller.name), self._jobs.watching(caller):
            batch = await self._begin(caller, request, traceparent)
            yield b""
            preparing = asyncio.create_task(self._prepare(batch))
            complete = False
            try:
                async for piece in self._lines(batch, preparing):
                    yield piece
                complete = True
            finally:
                if not complete:
                    await asyncio.shield(self._leave(batch, preparing))

    async def _begin(self, caller: Caller, request: BatchRequest, traceparent: str) -> _Batch:
        named: list[Named] = []
        for number, candidate in enumerate(request.sources):
            try:
                named.append(self._evaluations.named(caller, candidate, request))
            except Problem as error:
                if error.field not in ("op", None):
                    error.field = f"sources.{number}.{error.field}"
                raise
        same: dict[int, list[int]] = {}
        first: dict[tuple[str, str], int] = {}
        for number, one in enumerate(named):
            key = (one.name, one.new.sha256 if one.new else "")
            same.setdefault(first.setdefault(key, number), []).append(number)
        names = Counter(named[number].name for number in same)
        candidates = {
            number: one if names[one.name] == 1 else one.versioned
            for number in same
            if (one := named[number])
        }
        checked = await self._evaluations.check(caller, request, [*candidates.values()])
        until = time.monotonic() + MAX_S
        return _Batch(caller, request, checked, candidates, same, traceparent, until)

    async def _prepare(self, batch: _Batch) -> None:
        """Find what was measured before, check the sources of the others, and queue their jobs."""
        waiting: list[tuple[int, Named]] = []
        for number, named in batch.candidates.items():
            alone = batch.request.job([batch.request.first, named.name])
            found = await self._evaluations.measured(batch.caller, alone, batch.checked, named)
            if found is None:
                waiting.append((number, named))
            else:
                batch.decide(number, await self._evaluations.read(batch.caller, found))
        ready: list[tuple[int, Named, CheckedImplementation | None]] = []
        together = _together(batch.request, batch.checked)
        while waiting:
            some, waiting = waiting[:CHECKED_TOGETHER], waiting[CHECKED_TOGETHER:]
            ready += await self._check(batch, some)
            while len(ready) >= together or (ready and not waiting):
                group, ready = ready[:together], ready[together:]
                await self._submit(batch, group)

    async def _check(
        self, batch: _Batch, some: Sequence[tuple[int, Named]]
    ) -> list[tuple[int, Named, CheckedImplementation | None]]:
        """Those of the candidates that can be imported."""
        news = [named.new for _, named in some if named.new is not None]
        while True:
            try:
                answers = iter(await self._uploads.check_implementations(batch.caller, news))
                break
            except (Busy, Unavailable):
                await self._pause(batch)
        ready: list[tuple[int, Named, CheckedImplementation | None]] = []
        for number, named in some:
            answer = next(answers) if named.new is not None else None
            if not isinstance(answer, InvalidInput):
                ready.append((number, named, answer))
                continue
            if answer.field not in OF_SOURCE:
                raise answer
            request = batch.request.job([batch.request.first, named.name])
            batch.decide(number, verdicts.refused(request, named.name, named.new, answer.detail))
        return ready

    async def _submit(
        self, batch: _Batch, group: Sequence[tuple[int, Named, CheckedImplementation | None]]
    ) -> None:
        """Queue the job of a group. At most MOST_AHEAD jobs of a batch wait or run."""
        while len(batch.numbers) >= MOST_AHEAD:
            await self._pause(batch)
        request = batch.request.job([batch.request.first, *(named.name for _, named, _ in group)])
        uploads = [one for _, _, one in group if one is not None]
        while True:
            try:
                found = await self._evaluations.submit(
                    *(batch.caller, request, batch.checked, uploads, batch.request, None),
                    batch.traceparent,
                )
                break
            except (Busy, Unavailable):
                await self._pause(batch)
        for (number, _, _), located in zip(group, found, strict=True):
            batch.located[number] = located
        batch.news.set()

    async def _pause(self, batch: _Batch) -> None:
        """Wait a while for jobs of the batch or of the user to end.

        Raises:
            TimedOut: the batch takes too long.
        """
        if time.monotonic() > batch.until:
            raise TimedOut(f"a batch may take {MAX_S:g} s")
        await asyncio.sleep(PAUSE_S)
        await self._find_ended(batch)

    async def _lines(
        self, batch: _Batch, preparing: asyncio.Task[None]
    ) -> AsyncGenerator[bytes, None]:
        """The lines of all verdicts. If the batch cannot go on, the last line is the problem."""
        preparing.add_done_callback(lambda _: batch.news.set())
        sent_at = time.monotonic()
        while True:
            batch.news.clear()
            was_prepared = preparing.done()
            wait = self._jobs.subscribe(batch.numbers)
            await self._find_ended(batch)
            while batch.decided:
                sent_at = time.monotonic()
                yield to_json(batch.decided.pop(0)) + b"\n"
            if was_prepared and not batch.located:
                if error := preparing.exception():
                    yield _last_line(error)
                return
            if self._stopping():
                yield _last_line(Unavailable("the server stops; the jobs of the batch go on later"))
                return
            if time.monotonic() > batch.until:
                yield _last_line(TimedOut(f"a batch may take {MAX_S:g} s; its jobs go on"))
                return
            is_quiet = time.monotonic() > sent_at + QUIET_S
            if is_quiet:
                sent_at = time.monotonic()
            yield b"\n" if is_quiet else b""
            await _first_of(wait(), batch.news.wait())

    async def _find_ended(self, batch: _Batch) -> None:
        """Read the verdicts of the jobs that have ended."""
        numbers = batch.numbers
        if not numbers:
            return

        def read(session: Session) -> set[int]:
            ended = sa.select(Job.number).where(
                Job.number.in_(numbers), Job.state.not_in(UNFINISHED)
            )
            return {*session.scalars(ended)}

        ended = await self._jobs.read(batch.caller, read)
        for number, located in [*batch.located.items()]:
            if located.number in ended and batch.located.pop(number, None) is not None:
                batch.decide(number, await self._evaluations.read(batch.caller, located))

    async def _leave(self, batch: _Batch, preparing: asyncio.Task[None]) -> None:
        """The client has left: cancel what has not begun, unless the request says otherwise."""
        if batch.request.when_left == "continue":
            self._alone.add(preparing)
            preparing.add_done_callback(self._alone.discard)
            preparing.add_done_callback(_note)
            return
        preparing.cancel()
        await asyncio.wait((preparing,))
        numbers = batch.numbers

        def cancel(session: Session) -> list[int]:
            queue.lock(session)
            waiting = sa.select(Job).where(Job.number.in_(numbers), Job.state == "queued")
            jobs = session.scalars(waiting).all()
            for job in jobs:
                submissions.cancel(session, job)
            return [job.number for job in jobs]

        for number in await self._jobs.write(cancel):
            self._jobs.has_cancelled(number)


def _together(request: BatchRequest, checked: Checked) -> int:
    """How many candidates a job measures, so that it takes at most JOB_S, and one in any case."""
    for number in range(MOST_TOGETHER, 1, -1):
        job = request.job([request.first, *map(str, range(number))])
        if job.nominal_s(len(checked["cases"]), checked["implementation_s"]) <= JOB_S:
            return number
    return 1


def _last_line(error: BaseException) -> bytes:
    """The problem that ended a batch, as its last line. Raises what is no problem."""
    if not isinstance(error, Problem):
        raise error
    return json.dumps(error.to_json()).encode() + b"\n"


def _note(preparing: asyncio.Task[None]) -> None:
    if not preparing.cancelled() and (error := preparing.exception()) is not None:
        log.error("a batch without a client ended early: %s", error_text(error))


async def _first_of(*waits: Awaitable[object]) -> None:
    """Wait for the first of these."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
