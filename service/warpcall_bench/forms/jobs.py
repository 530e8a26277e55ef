"""The pages to submit a job, and the buttons of a job that there is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from warpcall.errors import InvalidInput, Problem
from warpcall.jobs import JobDetails, JobPreview, Queue
from warpcall_bench.forms import new_job
from warpcall_bench.forms.new_job import dtypes_of, field_of, read_job
from warpcall_bench.forms.ops import Declared, Ops, is_problem
from warpcall_bench.groups.service import GroupService
from warpcall_bench.jobs.models import ImplementationName, JobChange, JobRequest, without_version
from warpcall_bench.jobs.routes import JobId
from warpcall_bench.jobs.service import JobService
from warpcall_bench.pages.view import View, new_token, page, render
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.database import UploadFilter
from warpcall_bench.uploads.service import UploadService
from warpcall_service.formats.form import Form, go_to, read_form
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.identity import Caller

MAX_BUTTON_BYTES = 4096
LISTED = 200  # uploaded implementations in the form; others are typed

# A form sends an empty text for a field that was left empty.
Empty = Annotated[str, Query(max_length=0)]


@dataclass(frozen=True, slots=True)
class Choice:
    """An implementation in the form."""

    name: str
    doc: str
    kind: str
    chosen: bool
    is_first: bool


@dataclass(frozen=True, slots=True)
class Cost:
    """What a preview says, with the queue that the job would join."""

    preview: JobPreview
    queue: Queue

    @property
    def running(self) -> int:
        return sum(entry.position == 0 for entry in self.queue.entries)

    @property
    def waiting(self) -> int:
        return len(self.queue.entries) - self.running


class JobForms:
    """What the routes of this file do."""

    def __init__(
        self,
        settings: BenchSettings,
        ops: Ops,
        jobs: JobService,
        uploads: UploadService,
    ) -> None:
        self._private = settings.jobs_private
        self.ops = ops
        self._jobs = jobs
        self._uploads = uploads

    async def filled(self, caller: Caller, job_id: str) -> tuple[Declared, Form]:
        """The op and the form of a job that there is.

        Raises:
            NotFound: there is no such job, it may not be read, or its op is gone.
        """
        job = await self._jobs.find(caller, job_id)
        op = await self.ops.find(caller, str(job.request["op"]))
        return op, new_job.texts_of(_kept_private(job), op)

    async def render(
        self,
        request: Request,
        caller: Caller,
        op: Declared,
        form: Form,
        errors: dict[str, str] | None = None,
        cost: Cost | None = None,
        status: int = 200,
    ) -> Response:
        """The page with the form as it was typed."""
        common, others = dtypes_of(op)
        text = render(
            "new_job.html",
            View.of(request),
            op=op,
            of_problem=is_problem(op),
            form=form,
            errors=errors or {},
            choices=await self._choices(caller, op, form),
            common_dtypes=common,
            other_dtypes=others,
            options=new_job.OPTIONS,
            longest=new_job.LONGEST,
            cost=cost,
            token=form.token or new_token(),
            private_by_default=self._private,
            example=new_job.EXAMPLE_SHAPES,
        )
        return page(request, text, status)

    async def preview(self, caller: Caller, wanted: JobRequest) -> Cost:
        """What a job would cost."""
        preview = await self._jobs.preview(caller, wanted)
        return Cost(preview, await self._jobs.queue(caller))

    async def submit(self, request: Request, caller: Caller, wanted: JobRequest, token: str) -> str:
        """Queue a job, and return its id. The same form sent twice gives the same job."""
        trace = self._jobs.traceparent(request.scope["state"]["exchange"])
        sha256 = hashlib.sha256(wanted.model_dump_json().encode()).hexdigest()
        key = f"{token}-{sha256[:16]}" if token else None
        return (await self._jobs.submit(caller, wanted, key, trace)).id

    async def again(self, request: Request, caller: Caller, job_id: str, token: str) -> str:
        """Queue a job that measures what another one has measured, and return its id.

        Raises:
            InvalidInput: the request of the job is not one of today.
        """
        job = await self._jobs.find(caller, job_id)
        fields = {**_kept_private(job), "fresh": True}
        if job.private:  # it may have become so after its submission
            fields["private"] = True
        if fields.get("priority") == "high" and not caller.may("admin"):
            del fields["priority"]
        try:
            wanted = JobRequest.model_validate(fields)
        except ValidationError:
            raise InvalidInput(
                f"the request of the job {job_id} is from an older version of the server; "
                "change it in the form of a new job",
                field="id",
            ) from None
        return await self.submit(request, caller, wanted, token)

    async def cancel(self, caller: Caller, job_id: str) -> None:
        """End a job."""
        await self._jobs.cancel(caller, job_id)

    async def set_private(self, caller: Caller, job_id: str, private: bool) -> None:
        """Make a job private, or let all users read it."""
        await self._jobs.change(caller, job_id, JobChange(private=private))

    async def _choices(self, caller: Caller, op: Declared, form: Form) -> list[Choice]:
        """What can be timed: all that is known, and what the form has besides."""
        listed = await self._uploads.list_implementations(
            caller, UploadFilter(op=without_version(op["name"]), limit=LISTED)
        )
        known = [(one.name, one.doc, str(one.kind)) for one in listed.implementations]
        chosen, first = form.all("implementation"), form.text("baseline")
        names = {name for name, _, _ in known}
        for name in dict.fromkeys((first, *chosen)):
            if name and name not in names:
                known.append((name, "", "uploaded"))
        return [
            Choice(name, doc, kind, name in chosen or name == first, name == first)
            for name, doc, kind in known
        ]


def _kept_private(job: JobDetails) -> dict[str, Any]:
    """The request of a job, private if the job has been made so since."""
    return {**job.request, **({"private": True} if job.private else {})}


def routes(
    settings: BenchSettings,
    ops: Ops,
    jobs: JobService,
    groups: GroupService,
    uploads: UploadService,
) -> APIRouter:
    """The page of a new job, and what the buttons of a job post to."""
    router = APIRouter(include_in_schema=False)
    forms = JobForms(settings, ops, jobs, uploads)

    @router.get("/new")
    async def new(
        request: Request,
        caller: CurrentCaller,
        op: ImplementationName | Empty = "",
        like: JobId = "",
        implementation: ImplementationName | Empty = "",
    ) -> Response:
        caller.check("bench")
        if like:
            declared, form = await forms.filled(caller, like)
        elif op:
            declared = await ops.find(caller, op)
            form = new_job.empty(declared, implementation)
        else:
            problems = await ops.problems(caller)
            text = render("new_job_op.html", View.of(request), ops=ops.shipped, problems=problems)
            return page(request, text)
        return await forms.render(request, caller, declared, form)

    @router.post("/new")
    async def submit(request: Request, caller: CurrentCaller) -> Response:
        caller.check("bench")
        form = await read_form(request)
        op = await ops.find(caller, form.text("op"))
        read = read_job(form, op)
        if read.request is None:
            return await forms.render(request, caller, op, form, read.errors, status=422)
        try:
            if form.text("action") == "submit":
                job_id = await forms.submit(request, caller, read.request, form.token)
                return go_to(f"jobs/{job_id}")
            cost = await forms.preview(caller, read.request)
        except Problem as problem:
            name = field_of(problem.field or "", op)
            errors = {name: problem.detail.removeprefix("sweep: ")}
            return await forms.render(request, caller, op, form, errors, status=problem.status)
        return await forms.render(request, caller, op, form, cost=cost)

    @router.post("/jobs/{id}/cancel")
    async def cancel(request: Request, caller: CurrentCaller, id: JobId) -> Response:
        caller.check("bench")
        await forms.cancel(caller, id)
        return go_to(f"../{id}")

    @router.post("/groups/{id}/cancel")
    async def cancel_group(request: Request, caller: CurrentCaller, id: JobId) -> Response:
        caller.check("bench")
        await groups.cancel(caller, id)
        return go_to(f"../{id}")

    @router.post("/jobs/{id}/private")
    async def set_private(request: Request, caller: CurrentCaller, id: JobId) -> Response:
        caller.check("bench")
        form = await read_form(request, MAX_BUTTON_BYTES)
        await forms.set_private(caller, id, form.text("private") == "yes")
        return go_to(f"../{id}")

    @router.post("/jobs/{id}/again")
    async def again(request: Request, caller: CurrentCaller, id: JobId) -> Response:
        caller.check("bench")
        form = await read_form(request, MAX_BUTTON_BYTES)
        return go_to(f"../{await forms.again(request, caller, id, form.token)}")

    return router
