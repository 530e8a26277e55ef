"""The HTTP routes of groups."""

from __future__ import annotations

from typing import Literal

from fastapi import Request, Response

from warpcall.errors import (
    Busy,
    InvalidInput,
    NotFound,
    Problem,
    TimedOut,
    TooLarge,
    Unavailable,
    UnsupportedMedia,
)
from warpcall.groups import GroupInfo, GroupResults, SubmittedGroup
from warpcall.wire import GROUPS_PATH
from warpcall_bench.groups.models import GroupRequest
from warpcall_bench.groups.service import GroupService
from warpcall_bench.jobs import exports
from warpcall_bench.jobs.models import MAX_BODY_BYTES
from warpcall_bench.jobs.routes import IdempotencyKey, JobId
from warpcall_bench.jobs.service import JobService
from warpcall_bench.json_body import check_members, read_model
from warpcall_bench.streamed import streamed
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import problem_responses, ref
from warpcall_service.http.router import Router


def groups(service: GroupService, jobs: JobService) -> Router:
    """The routes to submit, read and cancel groups."""
    router = Router(prefix=GROUPS_PATH, tags=["jobs"])
    asking: list[type[Problem]] = [InvalidInput, TooLarge, UnsupportedMedia, TimedOut]
    refused = problem_responses([*asking, Busy, Unavailable])
    lost = problem_responses([NotFound, InvalidInput, Unavailable])
    benching = needs("bench")

    @router.post(
        "",
        response_model=SubmittedGroup,
        status_code=201,
        responses={
            200: {"model": SubmittedGroup, "description": "The group existed before"},
            **refused,
        },
        dependencies=benching["dependencies"],
        openapi_extra={
            **benching["openapi_extra"],
            "requestBody": {"required": True, "content": {JSON: {"schema": ref(GroupRequest)}}},
        },
    )
    async def submit_group(
        request: Request, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Queue the same benchmark job for each of several models of a GPU.

        Each part is an ordinary job, which waits and runs by itself. A part whose model no server has
        waits until one comes; at least one of the models must be known. The answer is 200 with an existing
        group if its Idempotency-Key is the same, or if its jobs have measured the same in the same
        environments.
        """
        wanted = await read_model(
            request, GroupRequest, MAX_BODY_BYTES, "the description of a group", check_members
        )
        wanted.job.check_form()
        trace = jobs.traceparent(request.scope["state"]["exchange"])
        found = await service.submit(caller, wanted, idempotency_key, trace)
        return answered(found, 200 if found.reused else 201)

    @router.get("/{id}", response_model=GroupInfo, responses=lost)
    async def show_group(id: JobId, caller: CurrentCaller) -> Response:
        """One group: its parts with their jobs, and which of them wait for a device that no server has."""
        return answered(await service.find(caller, id))

    @router.post("/{id}/cancel", response_model=GroupInfo, responses=lost, **benching)
    async def cancel_group(id: JobId, caller: CurrentCaller) -> Response:
        """End all jobs of a group. What they have measured is kept.

        Only its user and administrators may.
        """
        return answered(await service.cancel(caller, id))

    @router.get(
        "/{id}/results",
        response_model=GroupResults,
        responses={
            200: {"content": {exports.MEDIA["csv"]: {"schema": {"type": "string"}}}},
            **problem_responses([NotFound, InvalidInput, Busy, Unavailable]),
        },
    )
    async def show_group_results(
        id: JobId, caller: CurrentCaller, format: Literal["json", "csv"] = "json"
    ) -> Response:
        """What the parts have measured so far: for each implementation of each case a column for each
        model. CSV has a row for each of them, with the columns `gpu` and `job`."""
        return await streamed(service.results(caller, id, format), exports.MEDIA[format])

    return router
