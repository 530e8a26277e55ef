"""The HTTP routes of share links: make, list and revoke them, and read what they show."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from pydantic import StringConstraints

from warpcall.errors import (
    Busy,
    Forbidden,
    InvalidInput,
    NotFound,
    TimedOut,
    TooLarge,
    Unavailable,
    UnsupportedMedia,
)
from warpcall.jobs import NewShare, SharedJobs, ShareList
from warpcall.jobs.results import CaseDetails, Comparison, Results
from warpcall_bench.jobs import exports
from warpcall_bench.jobs.models import Name
from warpcall_bench.jobs.routes import EVERYONE, JobId, Position
from warpcall_bench.jobs.service import JobService
from warpcall_bench.json_body import check_members, read_model
from warpcall_bench.shares.models import ShareRequest
from warpcall_bench.shares.service import ShareService
from warpcall_bench.streamed import streamed
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.openapi_parts import problem_responses, ref
from warpcall_service.http.router import Router

MAX_BODY_BYTES = 1024

ShareId = Annotated[str, StringConstraints(max_length=64)]
Token = Annotated[str, StringConstraints(max_length=200)]


def shares(service: ShareService, jobs: JobService) -> Router:
    """The routes of share links."""
    router = Router(prefix="/v1", tags=["shares"])
    lost = problem_responses([NotFound, InvalidInput, Unavailable])
    owned = {**lost, **problem_responses([Forbidden])}
    read = {**lost, **problem_responses([Busy])}
    benching = needs("bench")
    body = {"required": True, "content": {JSON: {"schema": ref(ShareRequest)}}}

    @router.post(
        "/jobs/{id}/shares",
        response_model=NewShare,
        status_code=201,
        responses={**owned, **problem_responses([TooLarge, UnsupportedMedia, TimedOut])},
        dependencies=benching["dependencies"],
        openapi_extra={**benching["openapi_extra"], "requestBody": body},
    )
    async def share_job(request: Request, id: JobId, caller: CurrentCaller) -> Response:
        """Make a link with which people without a key read a job, or a comparison.

        The answer has the link; it cannot be shown again. Only the user of the jobs and
        administrators may do this, and only while the jobs are not private.
        """
        wanted = await read_model(
            request, ShareRequest, MAX_BODY_BYTES, "the description of a link", check_members
        )
        return answered(await service.create(caller, id, wanted), 201)

    @router.get("/jobs/{id}/shares", response_model=ShareList, responses=owned)
    async def list_shares_of_job(id: JobId, caller: CurrentCaller) -> Response:
        """The links to one of the caller's jobs, the latest first."""
        return answered(await service.list(caller, job_id=id))

    @router.get("/shares", response_model=ShareList, responses=lost)
    async def list_shares(caller: CurrentCaller, user: Name | None = None) -> Response:
        """The caller's links, the latest first.

        `user=all` also lists the links of others to the caller's jobs, and for administrators all.
        """
        wanted = None if user == EVERYONE else user or caller.name
        return answered(await service.list(caller, user=wanted))

    @router.delete("/shares/{id}", status_code=204, responses=lost, **benching)
    async def revoke_share(id: ShareId, caller: CurrentCaller) -> Response:
        """Revoke a link, by the id that lists show. It opens nothing from then on."""
        await service.revoke(caller, id)
        return Response(status_code=204)

    @router.get("/shared/{token}", response_model=SharedJobs, responses=read)
    async def show_shared(request: Request, token: Token) -> Response:
        """The job, or the two jobs, of a link. No key is needed."""
        return answered(await service.show(_exchange_of(request), token))

    @router.get(
        "/shared/{token}/results",
        response_model=Results,
        responses=read,
    )
    async def show_shared_results(
        request: Request,
        token: Token,
        of: Annotated[
            Literal["job", "other"], Query(description="Which of the two jobs of a comparison")
        ] = "job",
        format: Literal["json", "csv"] = "json",
        samples: Annotated[bool, Query(description="Include all samples; only in JSON")] = False,
    ) -> Response:
        """What the job of a link has measured, as in `GET /v1/jobs/{id}/results`."""
        found = await service.open(_exchange_of(request), token)
        job_id = found.job_id if of == "job" else found.other_id
        if job_id is None:
            raise NotFound("this share link shows one job", field="of")
        return await streamed(
            jobs.results(found.caller, job_id, format, samples), exports.MEDIA[format]
        )

    @router.get("/shared/{token}/cases/{position}", response_model=CaseDetails, responses=read)
    async def show_shared_case(request: Request, token: Token, position: Position) -> Response:
        """One case of the job of a link, as in `GET /v1/jobs/{id}/cases/{position}`."""
        found = await service.open(_exchange_of(request), token)
        if found.other_id is not None:
            raise NotFound("this share link shows a comparison", field="token")
        return answered(await jobs.case(found.caller, found.job_id, position))

    @router.get("/shared/{token}/compare", response_model=Comparison, responses=read)
    async def compare_shared(request: Request, token: Token) -> Response:
        """The comparison that a link shows, as in `GET /v1/jobs/{id}/compare/{other}`."""
        found = await service.open(_exchange_of(request), token)
        if found.other_id is None:
            raise NotFound("this share link shows one job", field="token")
        return await streamed(jobs.compare(found.caller, found.job_id, found.other_id), JSON)

    return router


def _exchange_of(request: Request) -> Exchange:
    exchange: Exchange = request.scope["state"]["exchange"]
    return exchange
