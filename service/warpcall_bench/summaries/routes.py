"""The routes of boards, of the progress of a job, and of usage."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Response
from pydantic import StringConstraints

from warpcall.errors import InvalidInput, NotFound, Unavailable
from warpcall.jobs import JobProgress
from warpcall.jobs.results import Board
from warpcall.regressions import ALLOWED, MOST_ALLOWED, Regression
from warpcall_bench.jobs.models import CaseKey, Name, OpName, without_version
from warpcall_bench.jobs.routes import JobId
from warpcall_bench.jobs.service import JobService
from warpcall_bench.summaries.board import board
from warpcall_bench.summaries.progress import job_progress
from warpcall_bench.summaries.regression import regression
from warpcall_bench.summaries.usage import MAX_DAYS, UsageList, usage_of
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import Text, problem_responses
from warpcall_service.http.router import Router

MARKDOWN = "text/markdown"

Allowed = Annotated[
    float,
    Query(
        gt=0,
        le=MOST_ALLOWED,
        allow_inf_nan=False,
        description="By how much the second implementation may take longer, as a share of the time "
        "of the first",
    ),
]
DeviceName = Annotated[Text, StringConstraints(min_length=1, max_length=255)]


def summaries(jobs: JobService) -> Router:
    """The routes that sum up stored jobs, and what users used."""
    router = Router(tags=["jobs"])

    @router.get(
        "/v1/board", response_model=Board, responses=problem_responses([InvalidInput, Unavailable])
    )
    async def show_board(
        caller: CurrentCaller,
        op: OpName,
        device: Annotated[
            DeviceName | None,
            Query(description="Name of a device; by default the one that measured the op last"),
        ] = None,
        case: Annotated[
            CaseKey | None,
            Query(description="Key of one case, which is then shown with the steps to its best"),
        ] = None,
        all_: Annotated[
            bool,
            Query(alias="all", description="Whether uploads that are not verified are ranked, too"),
        ] = False,
    ) -> Response:
        """The best valid result of each implementation in each case of an op on a device.

        Code of an upload could fake its own time. So of uploads only verified kernels have a rank,
        unless `all` is true. The latest 500 jobs of the op on that device count that the caller may read.
        """
        name = without_version(op)
        wanted = (name, device or "", case or "")
        return answered(await jobs.read(caller, board, caller, *wanted, ranks_all=all_))

    @router.get(
        "/v1/jobs/{id}/progress",
        response_model=JobProgress,
        responses=problem_responses([NotFound, InvalidInput, Unavailable]),
    )
    async def show_progress(id: JobId, caller: CurrentCaller) -> Response:
        """Where the time of a job went, and what it does now: its phase, and medians so far."""
        return answered(await jobs.read(caller, job_progress, caller, id))

    @router.get(
        "/v1/jobs/{id}/regression",
        response_model=Regression,
        responses={
            200: {"content": {MARKDOWN: {"schema": {"type": "string"}}}},
            **problem_responses([NotFound, InvalidInput, Unavailable]),
        },
    )
    async def show_regression(
        id: JobId,
        caller: CurrentCaller,
        allowed: Allowed = ALLOWED,
        format: Literal["json", "markdown"] = "json",
    ) -> Response:
        """Whether the second implementation of a job is slower than the first one.

        Jobs count too that measured again what this one left open: those of the same user with the
        tag `repeats-ID`.
        """
        found = await jobs.read(caller, regression, caller, id, allowed)
        if format == "markdown":
            return Response(found.to_markdown(), media_type=MARKDOWN)
        return answered(found)

    @router.get(
        "/v1/usage",
        response_model=UsageList,
        responses=problem_responses([InvalidInput, Unavailable]),
        **needs("admin"),
    )
    async def show_usage(
        caller: CurrentCaller,
        days: Annotated[
            int, Query(ge=1, le=MAX_DAYS, description="Number of days, up to today (UTC)")
        ] = 30,
        user: Annotated[Name | None, Query(description="Only this user")] = None,
    ) -> Response:
        """What each user has used, by day and op: requests, bytes and device time.

        The last five seconds may not be included yet.
        """
        found = UsageList(usage=await jobs.read(caller, usage_of, days, user))
        return Response(found.model_dump_json(), media_type=JSON)

    return router
