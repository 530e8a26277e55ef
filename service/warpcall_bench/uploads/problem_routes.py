"""The HTTP routes of problems."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from warpcall.errors import (
    Busy,
    Forbidden,
    InvalidInput,
    NotFound,
    Problem,
    TimedOut,
    TooLarge,
    Unavailable,
    UnsupportedMedia,
)
from warpcall.problems import ProblemDetails, ProblemList, UploadedProblem
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.database import Filter
from warpcall_bench.uploads.models import Cursor, ListedName, ProblemUpload
from warpcall_bench.uploads.problems import ProblemService
from warpcall_bench.uploads.routes import OneVersion, most_bytes
from warpcall_service.formats.flat_json import check_flat
from warpcall_service.formats.json_body import read_model
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import to_json
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import problem_responses, ref

Limit = Annotated[int, Query(ge=1, le=500)]


def problems(settings: BenchSettings, service: ProblemService) -> APIRouter:
    """The routes to upload problems, and to list, read and delete them."""
    router = APIRouter(prefix="/v1/problems", tags=["problems"])
    uploading = needs("upload")
    asking: list[type[Problem]] = [InvalidInput, TooLarge, UnsupportedMedia, TimedOut]
    lost = problem_responses([NotFound, InvalidInput, Unavailable])
    body = {"required": True, "content": {JSON: {"schema": ref(ProblemUpload)}}}

    @router.post(
        "",
        response_model=UploadedProblem,
        status_code=201,
        responses={
            200: {"model": UploadedProblem, "description": "It was stored before"},
            **problem_responses([*asking, Forbidden, Busy, Unavailable]),
        },
        dependencies=uploading["dependencies"],
        openapi_extra={**uploading["openapi_extra"], "requestBody": body},
    )
    async def upload_problem(request: Request, caller: CurrentCaller) -> Response:
        """Upload Python source that declares a problem: an op of the user's, for jobs to measure.

        The source is checked first: it is imported in a process of its own, which finds out the
        inputs of default sizes and the shapes of the outputs. If that fails, the error names the
        line. The answer is 200 if the same source was stored before.
        """
        most = most_bytes(settings)
        wanted = await read_model(request, ProblemUpload, most, "the JSON of an upload", check_flat)
        found = await service.add(caller, wanted)
        return Response(to_json(found), 201 if found.created else 200, media_type=JSON)

    @router.get(
        "",
        response_model=ProblemList,
        responses=problem_responses([InvalidInput, Busy, Unavailable, TimedOut]),
    )
    async def list_problems(
        caller: CurrentCaller,
        user: ListedName | None = None,
        before: Annotated[
            Cursor | None, Query(description="`next` of the page before this one")
        ] = None,
        limit: Limit = 50,
    ) -> Response:
        """The problems that the caller may read: the latest version of each name, the one that was
        uploaded last first."""
        found = await service.list(caller, Filter(None, user, before, limit))
        return Response(to_json(found), media_type=JSON)

    @router.get("/{user}/{name}", response_model=ProblemDetails, responses=lost)
    async def show_problem(
        user: str, name: str, caller: CurrentCaller, version: OneVersion = None
    ) -> Response:
        """A problem with its source and its declaration, and all its versions."""
        found = await service.find(caller, user, name, version)
        return Response(to_json(found), media_type=JSON)

    @router.delete(
        "/{user}/{name}",
        status_code=204,
        responses={**lost, **problem_responses([Forbidden])},
        **uploading,
    )
    async def delete_problem(
        user: str, name: str, caller: CurrentCaller, version: OneVersion = None
    ) -> Response:
        """Delete a version, or by default all versions.

        They disappear at once. Jobs that are queued already still measure them. What jobs have
        measured is kept, and so are implementations of the problem.
        """
        await service.delete(caller, user, name, version)
        return Response(status_code=204)

    return router
