"""The pages of share links: the links of a job or of a user, and the forms to make and revoke them.

The address of a new link is shown once. The answer to the form is a redirect, so the token travels
to the next page in a cookie, which that page deletes: the server has only a hash of it, and another
server of the same database may answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session

from warpcall.errors import InvalidInput, TooLarge
from warpcall_bench.jobs import answers, submissions
from warpcall_bench.jobs.routes import EVERYONE, JobId
from warpcall_bench.jobs.service import JobService
from warpcall_bench.pages.sharing import LIFETIMES, sharing
from warpcall_bench.pages.view import View, page, render
from warpcall_bench.shares import database
from warpcall_bench.shares.models import ShareRequest
from warpcall_bench.shares.service import PATH, ShareService
from warpcall_service.formats.form import Form, go_to, read_form
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.identity import Caller
from warpcall_service.text import brief

MAX_FORM_BYTES = 4096
DAY_S = 86_400.0
MOST_ROWS = 500  # of the list
# Without a path, a browser sends it back only to what lies below the path of the form, so it needs
# no knowledge of a proxy's path prefix.
COOKIE = "warpcall-new-share"
COOKIE_S = 60

ShareId = Annotated[str, Path(max_length=64)]


def request_of(form: Form) -> ShareRequest:
    """The share link that a form describes.

    Raises:
        InvalidInput: the time or the other job is not one that a form has.
    """
    lifetime = form.text("expires")
    if lifetime not in LIFETIMES:
        raise InvalidInput(
            f"the time must be {', '.join(LIFETIMES)}, got {brief(lifetime)}", field="expires"
        )
    days = LIFETIMES[lifetime]
    try:
        return ShareRequest(
            other=form.text("other") or None, expires_s=None if days is None else days * DAY_S
        )
    except ValidationError:
        raise InvalidInput(
            f"the other job must be an id, got {brief(form.text('other'))}", field="other"
        ) from None


def routes(jobs: JobService, shares: ShareService) -> APIRouter:
    """The two lists, and what their forms post to."""
    router = APIRouter(include_in_schema=False)

    async def render_job(
        request: Request,
        caller: Caller,
        job_id: str,
        errors: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        view = View.of(request)
        token = request.cookies.get(COOKIE, "")

        def show(session: Session) -> str:
            job = answers.job(session, caller, job_id, jobs.scheduler.devices)
            part = sharing(session, view, job)
            if part is None:
                submissions.find_own(session, caller, job_id)  # says who may share it
            opens = database.open_link(session, token) if token else None
            shown = opens is not None and job.id in (opens.job_id, opens.other_id)
            return render(
                "shares.html",
                view,
                job=job,
                sharing=part,
                errors=errors or {},
                address=_address(request, token) if shown else "",
                address_path=view.url("share", token),
            )

        answer = page(request, await jobs.read(caller, show), status)
        if token:
            answer.headers["set-cookie"] = _cookie(request, "", 0)
        return answer

    @router.get("/shares")
    async def list_shares(
        request: Request, caller: CurrentCaller, user: Annotated[str, Query(max_length=64)] = ""
    ) -> Response:
        caller.check("bench")
        everyone = user == EVERYONE
        found = await shares.list(caller, user=None if everyone else caller.name)
        text = render(
            "shares.html",
            View.of(request),
            job=None,
            sharing=None,
            links=found.shares[:MOST_ROWS],
            everyone=everyone,
            errors={},
            address="",
        )
        return page(request, text)

    @router.get("/jobs/{id}/shares")
    async def list_shares_of_job(request: Request, caller: CurrentCaller, id: JobId) -> Response:
        caller.check("bench")
        return await render_job(request, caller, id)

    @router.post("/jobs/{id}/shares")
    async def share(request: Request, caller: CurrentCaller, id: JobId) -> Response:
        caller.check("bench")
        form = await read_form(request, MAX_FORM_BYTES)
        try:
            made = await shares.create(caller, id, request_of(form))
        except (InvalidInput, TooLarge) as problem:
            return await render_job(request, caller, id, {"": problem.detail}, problem.status)
        return go_to("shares", _cookie(request, made.url.removeprefix(PATH), COOKIE_S))

    @router.post("/shares/{id}/revoke")
    async def revoke(request: Request, caller: CurrentCaller, id: ShareId) -> Response:
        caller.check("bench")
        form = await read_form(request, MAX_FORM_BYTES)
        await shares.revoke(caller, id)
        job = form.text("job")
        return go_to(
            f"../../jobs/{job}/shares" if submissions.ID.fullmatch(job) else "../../shares"
        )

    return router


def _cookie(request: Request, token: str, max_age_s: int) -> str:
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{COOKIE}={token}; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}"


def _address(request: Request, token: str) -> str:
    """The whole address of a link. Scripts replace it by the one that the browser sees."""
    prefix = request.scope.get("root_path", "")
    return f"{request.url.scheme}://{request.url.netloc}{prefix}{PATH}{token}"
