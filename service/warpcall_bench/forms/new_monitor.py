"""The form to add a monitor: it repeats a job that there is, or one case of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, NotFound, Problem
from warpcall.jobs import JobDetails
from warpcall.monitors import LEAST
from warpcall_bench.jobs import answers
from warpcall_bench.jobs.models import CaseKey, JobRequest
from warpcall_bench.jobs.routes import JobId
from warpcall_bench.jobs.service import JobService
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.monitors.models import (
    LARGEST_LEAST,
    NOT_FOR_MONITORS,
    SMALLEST_LEAST,
    MonitorRequest,
)
from warpcall_bench.monitors.service import MonitorService
from warpcall_bench.monitors.webhook_hosts import described
from warpcall_bench.pages.view import View, new_token, page, render
from warpcall_bench.settings import BenchSettings
from warpcall_service.formats.form import CHOICE, Form, go_to, read_form
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.identity import Caller
from warpcall_service.text import brief

MAX_FORM_BYTES = 32 << 10  # the name of a case has at most 4096 characters, and each three bytes
TIMES = {
    "1 hour": 3600,
    "3 hours": 10_800,
    "6 hours": 21_600,
    "12 hours": 43_200,
    "1 day": 86_400,
    "7 days": 604_800,
    "30 days": 2_592_000,
}
DEFAULT_TIME = "6 hours"
LISTED = 20  # jobs to choose from
SHOWN = 20  # cases
FIELDS = ("every", "least", "notify", "private")

# A form sends an empty text for a field that was left empty.
Empty = Annotated[str, Query(max_length=0)]


@dataclass(frozen=True, slots=True)
class Repeated:
    """What a monitor would repeat.

    Attributes:
        case: the only case; empty for all cases of the job.
        cases: names of the first cases.
        request: the fields of the job's request.
    """

    job: JobDetails
    case: str
    cases: list[str]
    request: dict[str, Any]

    @property
    def number(self) -> int:
        """Number of cases."""
        return 1 if self.case else self.job.cases_total


def find_repeated(
    session: Session, caller: Caller, job_id: str, case: str, devices: Any
) -> Repeated:
    """What a monitor like a job would repeat.

    Args:
        case: name of the only case to repeat; empty for all.

    Raises:
        NotFound: there is no such job, it may not be read, or it has no such case.
    """
    shown = answers.job(session, caller, job_id, devices)
    request = {k: v for k, v in shown.request.items() if k not in NOT_FOR_MONITORS}
    if shown.private:  # it may have become so after its submission
        request["private"] = True
    rows = answers.keys_and_specs(session, shown.id, case, SHOWN)
    if not rows:
        raise NotFound(f"the job {shown.id} has no case {brief(case)}", field="case")
    if case:
        request.pop("sweep", None)
        request["cases"] = [json.loads(rows[0][1])]
    return Repeated(shown, case, [key for key, _ in rows], request)


def request_of(form: Form, repeated: Repeated) -> MonitorRequest:
    """The monitor that a form describes.

    Raises:
        InvalidInput: a field is not one of those in the form, or the job's request is not one of
            today; the error names the field of the form.
    """
    every = form.text("every")
    if every not in TIMES:
        raise InvalidInput(
            f"the time must be {', '.join(TIMES)}, got {brief(every)}", field="every"
        )
    percent = form.text("least")
    try:
        least = float(percent) / 100 if percent else LEAST
    except ValueError:
        raise InvalidInput(
            f"give a number of percent, got {brief(percent)}", field="least"
        ) from None
    if not SMALLEST_LEAST <= least <= LARGEST_LEAST:
        bounds = f"{100 * SMALLEST_LEAST:g} to {100 * LARGEST_LEAST:g} percent"
        raise InvalidInput(f"give {bounds}, got {brief(percent)}", field="least")
    private = CHOICE.get(form.text("private"))
    fields = {**repeated.request, **({} if private is None else {"private": private})}
    try:
        wanted = MonitorRequest(
            job=JobRequest.model_validate(fields),
            every_s=TIMES[every],
            least=least,
            notify=form.text("notify") or None,
        )
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["loc"] == ("notify",):
            raise InvalidInput(
                "the URL is too long, or has characters that no URL has", field="notify"
            ) from None
        raise InvalidInput(
            f"the request of the job {repeated.job.id} is from an older version of the server; "
            "submit it again in the form of a new job",
            field="like",
        ) from None
    wanted.check_form()
    return wanted


def routes(settings: BenchSettings, jobs: JobService, monitors: MonitorService) -> APIRouter:
    """The page with the form, and what it posts to."""
    router = APIRouter(include_in_schema=False)
    times = [name for name, s in TIMES.items() if s >= settings.monitor_min_every_s]
    default = DEFAULT_TIME if DEFAULT_TIME in times else next(iter(times), "")

    async def find(caller: Caller, job_id: str, case: str) -> Repeated:
        return await jobs.read(caller, find_repeated, caller, job_id, case, jobs.scheduler.devices)

    async def show(
        request: Request,
        repeated: Repeated,
        form: Form,
        errors: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        text = render(
            "new_monitor.html",
            View.of(request),
            repeated=repeated,
            form=form,
            errors=errors or {},
            times=times,
            private_by_default=settings.jobs_private,
            urls=described(settings.webhook_origins),
            token=form.token or new_token(),
        )
        return page(request, text, status)

    @router.get("/monitors/new")
    async def new_monitor(
        request: Request,
        caller: CurrentCaller,
        like: JobId = "",
        case: CaseKey | Empty = "",
    ) -> Response:
        caller.check("bench")
        if not like:
            found = await jobs.list(caller, Filter(user=caller.name, limit=LISTED))
            return page(request, render("new_monitor_job.html", View.of(request), jobs=found.jobs))
        empty = Form.of([("every", default), ("least", f"{100 * LEAST:g}")])
        return await show(request, await find(caller, like, case), empty)

    @router.post("/monitors/new")
    async def add(request: Request, caller: CurrentCaller) -> Response:
        caller.check("bench")
        form = await read_form(request, MAX_FORM_BYTES)
        repeated = await find(caller, form.text("like"), form.text("case"))
        try:
            wanted = request_of(form, repeated)
            added = await monitors.add(caller, wanted, form.token)
        except Problem as problem:
            name = {"every_s": "every"}.get(problem.field or "", problem.field or "")
            errors = {name if name in FIELDS else "": problem.detail}
            return await show(request, repeated, form, errors, problem.status)
        if added.secret is None:
            return go_to(f"../monitors/{added.id}")
        text = render("monitor_secret.html", View.of(request), monitor=added)
        return page(request, text)

    return router
