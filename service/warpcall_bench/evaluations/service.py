"""What the routes of evaluations call: one candidate, from its source to its verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpcall.errors import Forbidden, InvalidInput
from warpcall.evaluations import Evaluation
from warpcall_bench.evaluations import verdicts
from warpcall_bench.evaluations.models import MAX_CASES, Candidate, EvaluationOptions
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.models import JobRequest
from warpcall_bench.jobs.service import JobService
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.messages import Checked
from warpcall_bench.runs.operator_modules import LIMIT
from warpcall_bench.uploads.database import IMPLEMENTATIONS, SHOWN_DIGITS
from warpcall_bench.uploads.models import UploadRequest
from warpcall_bench.uploads.new_versions import NewImplementation
from warpcall_bench.uploads.service import CheckedImplementation, UploadService
from warpcall_service.http.exchange import ClientGone
from warpcall_service.identity import Caller
from warpcall_service.text import brief

OF_SOURCE = ("source", "function", "launches")  # fields of a refusal that is a verdict on a source

Left = Callable[[], bool]


@dataclass(frozen=True)
class Named:
    """A candidate by the name that its job has for it.

    Attributes:
        new: its source; None for an implementation that is stored.
    """

    name: str
    new: NewImplementation | None

    @property
    def versioned(self) -> Named:
        """The same with its version in the name, for a job with several versions of one name."""
        if self.new is None:
            return self
        return Named(f"{self.name}@{self.new.sha256[:SHOWN_DIGITS]}", self.new)


@dataclass(frozen=True)
class Located:
    """Where the verdict on a candidate is: the number of a job, and its place there."""

    number: int
    place: int
    reused: bool


class Evaluations:
    """Evaluates candidates, each as one implementation of a job beside the baseline."""

    def __init__(self, jobs: JobService, uploads: UploadService, stopping: Left) -> None:
        self._jobs = jobs
        self._uploads = uploads
        self._stopping = stopping

    async def evaluate(
        self,
        caller: Caller,
        candidate: Candidate,
        options: EvaluationOptions,
        key: str | None,
        wait_s: float,
        left: Left,
        traceparent: str = "",
    ) -> Evaluation:
        """Evaluate one candidate, and wait for the verdict. Afterwards its job goes on.

        Args:
            key: the Idempotency-Key.
            wait_s: the longest time to wait.
            left: whether the client has left, which ends the waiting.

        Raises:
            InvalidInput: the request cannot be measured; the error names the field.
            Busy, Forbidden, TooLarge, Unavailable: as for an upload and for a job.
        """
        until = time.monotonic() + wait_s
        async with AsyncExitStack() as stack:
            if wait_s:
                await stack.enter_async_context(self._jobs.watching(caller))
            found = await self._submit(caller, candidate, options, key, traceparent)
            if isinstance(found, Evaluation):
                return found
            return await self._verdict(caller, found, until, left)

    async def find(self, caller: Caller, id_: str, wait_s: float, left: Left) -> Evaluation:
        """An evaluation, after waiting for its end as `evaluate`.

        Raises:
            NotFound: there is no such evaluation, or it is private to another user.
            Busy: the user has too many streams open.
        """
        until = time.monotonic() + wait_s

        def read(session: Session) -> Located:
            job, place = verdicts.find(session, caller, id_)
            return Located(job.number, place, reused=False)

        async with AsyncExitStack() as stack:
            if wait_s:
                await stack.enter_async_context(self._jobs.watching(caller))
            found = await self._jobs.read(caller, read)
            return await self._verdict(caller, found, until, left)

    async def _submit(
        self,
        caller: Caller,
        candidate: Candidate,
        options: EvaluationOptions,
        key: str | None,
        traceparent: str,
    ) -> Evaluation | Located:
        """Queue the job of a candidate, or find one that has its verdict, or refuse its source."""
        named = self.named(caller, candidate, options)
        request = options.job([options.first, named.name])
        if (known := await self._repeated(caller, request, named, key)) is not None:
            return known
        checked = await self.check(caller, options, [named])
        if (measured := await self.measured(caller, request, checked, named)) is not None:
            return measured
        uploads = []
        if named.new is not None:
            try:
                uploads.append(await self._uploads.check_implementation(caller, named.new))
            except InvalidInput as error:
                if error.field not in OF_SOURCE:
                    raise
                return verdicts.refused(request, named.name, named.new, error.detail)
        return (await self.submit(caller, request, checked, uploads, options, key, traceparent))[0]

    def named(self, caller: Caller, candidate: Candidate, options: EvaluationOptions) -> Named:
        """The name of a candidate in its job.

        Raises:
            InvalidInput: it can have none, or is the baseline.
            TooLarge: its source is too large.
        """
        if candidate.source is None:
            name = candidate.implementation or ""
            if name in (options.first, LIMIT):
                raise InvalidInput(
                    f"implementation must be another one than the baseline and the {LIMIT}, got "
                    f"{brief(name)}",
                    field="implementation",
                )
            return Named(name, None)
        if not caller.may("upload"):
            raise Forbidden("a source needs a key with the role upload", field="source")
        given = candidate.model_dump(
            exclude_none=True, include={*Candidate.model_fields} - {"implementation"}
        )
        op = options.op.partition("@")[0] if "/" in options.op else options.op
        upload = UploadRequest(op=op, private=options.private, **given)
        new = self._uploads.named(upload)
        return Named(f"{caller.name}/{new.name}", new)

    async def check(
        self, caller: Caller, options: EvaluationOptions, candidates: list[Named]
    ) -> Checked:
        """Check what is measured. Sources need not be stored yet.

        Raises:
            InvalidInput: it cannot be measured; the error names the field.
        """
        stored = [one.name for one in candidates if one.new is None]
        request = options.job([options.first, *stored])
        try:
            checked = await self._jobs.check(caller, request)
        except InvalidInput as error:
            if error.field != "implementations":
                raise
            # A job has one list of them, an evaluation has two members.
            field = "baseline" if options.first in error.detail else "implementation"
            detail = error.detail.replace("implementations:", f"{field}:", 1)
            raise InvalidInput(detail, field=field) from None
        if len(checked["cases"]) > MAX_CASES:
            raise InvalidInput(
                f"sweep: an evaluation may have {MAX_CASES} cases, this sweep has "
                f"{len(checked['cases'])}; a job may have more",
                field="sweep",
            )
        return checked

    async def measured(
        self, caller: Caller, request: JobRequest, checked: Checked, named: Named
    ) -> Located | None:
        """A job of the caller that has measured a candidate before; None if it is to be measured."""
        if request.fresh:
            return None
        sha256 = named.new.sha256 if named.new else checked["sources"].get(named.name)
        if sha256 is None:
            return None

        def read(session: Session) -> Located | None:
            alone = request.model_copy(update={"implementations": request.implementations[:1]})
            by_default = self._jobs.private_by_default
            private = submissions.is_private(session, caller, alone, checked, by_default)
            found = verdicts.find_measured(
                *(session, caller, request, checked, named.name, sha256, private)
            )
            return None if found is None else Located(found[0].number, found[1], reused=True)

        return await self._jobs.read(caller, read)

    async def submit(
        self,
        caller: Caller,
        request: JobRequest,
        checked: Checked,
        uploads: list[CheckedImplementation],
        options: EvaluationOptions,
        key: str | None,
        traceparent: str,
    ) -> list[Located]:
        """Store sources and queue the job that measures them, in one transaction.

        Sources that the caller did not ask to keep are deleted in the same transaction: the job keeps
        them until it ends.

        Returns:
            Where the verdict on each implementation but the first is, in their order.
        """

        @contextmanager
        def beside(session: Session) -> Iterator[None]:
            stored = [one.store(session) for one in uploads]
            yield
            if not options.keep:
                for row, created in stored:
                    if created:
                        version = row.sha256
                        user, name = row.user_name, row.name
                        IMPLEMENTATIONS.delete(session, caller, user, name, version)

        job = await self._jobs.submit_checked(
            caller, request, checked, key, traceparent, beside if uploads else None
        )

        def number(session: Session) -> int:
            return submissions.find(session, caller, job.id).number

        found = await self._jobs.read(caller, number)
        places = range(1, len(request.implementations))
        return [Located(found, place, job.reused) for place in places]

    async def read(self, caller: Caller, found: Located, index: int = 0) -> Evaluation:
        """The verdict on a candidate, as far as it is known."""

        def read(session: Session) -> Evaluation:
            job = session.get_one(Job, found.number)
            return verdicts.evaluation(session, job, found.place, index=index, reused=found.reused)

        return await self._jobs.read(caller, read)

    async def _repeated(
        self, caller: Caller, request: JobRequest, named: Named, key: str | None
    ) -> Located | None:
        """Where the verdict is that a request with the same Idempotency-Key asked for.

        Raises:
            InvalidInput: that request had another source, or was another one.
        """
        known = await self._jobs.repeated(caller, request, key)
        if known is None:
            return None

        def read(session: Session) -> Located:
            job = submissions.find(session, caller, known.id)
            source = json.loads(job.sources or "{}").get(named.name)
            if named.new is not None and source != named.new.sha256:
                raise InvalidInput(
                    f"Idempotency-Key must be a new one for a new source, {brief(key or '')} came "
                    f"with the job {job.id}, which measures another one",
                    field="idempotency-key",
                )
            return Located(job.number, 1, reused=True)

        return await self._jobs.read(caller, read)

    async def _verdict(
        self, caller: Caller, found: Located, until: float, left: Left
    ) -> Evaluation:
        """The verdict, at the end of the job or as far as it is known at the time `until`."""
        while True:
            wait = self._jobs.subscribe([found.number])
            evaluation = await self.read(caller, found)
            if evaluation.done or time.monotonic() >= until or self._stopping():
                return evaluation
            if left():
                raise ClientGone
            await wait()
