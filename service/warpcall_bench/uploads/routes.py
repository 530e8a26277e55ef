"""The HTTP routes of implementations."""

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
from warpcall.implementations import (
    Environment,
    ImplementationDetails,
    ImplementationList,
    UploadedImplementation,
)
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.database import Filter
from warpcall_bench.uploads.models import Cursor, ListedName, UploadRequest, Version
from warpcall_bench.uploads.service import ImplementationService
from warpcall_service.formats.flat_json import check_flat
from warpcall_service.formats.json_body import read_model
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import to_json
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import problem_responses, ref

# Of a body beside the source. JSON writes a line end, a quote or a backslash as two characters.
FURTHER_BYTES = 4 << 10
ESCAPED = 2

OneVersion = Annotated[
    Version | None,
    Query(description="The first digits of a version, at least 8; by default the latest version"),
]
Limit = Annotated[int, Query(ge=1, le=500, description="On the number of uploaded ones")]


def implementations(settings: BenchSettings, service: ImplementationService) -> APIRouter:
    """The routes to upload implementations, and to list, read and delete them."""
    router = APIRouter(prefix="/v1/implementations", tags=["implementations"])
    uploading = needs("upload")
    asking: list[type[Problem]] = [InvalidInput, TooLarge, UnsupportedMedia, TimedOut]
    lost = problem_responses([NotFound, InvalidInput, Unavailable])
    body = {"required": True, "content": {JSON: {"schema": ref(UploadRequest)}}}

    @router.post(
        "",
        response_model=UploadedImplementation,
        status_code=201,
        responses={
            200: {"model": UploadedImplementation, "description": "It was stored before"},
            **problem_responses([*asking, Forbidden, Busy, Unavailable]),
        },
        dependencies=uploading["dependencies"],
        openapi_extra={**uploading["openapi_extra"], "requestBody": body},
    )
    async def upload_implementation(request: Request, caller: CurrentCaller) -> Response:
        """Upload Python source with an implementation of an op, which jobs can then time.

        The source is checked first: it is imported in a process of its own. If that fails, the
        problem names the line. The answer is 200 if the same source was stored before.
        """
        most = most_bytes(settings)
        wanted = await read_model(request, UploadRequest, most, "the JSON of an upload", check_flat)
        found = await service.add(caller, wanted)
        return Response(to_json(found), 201 if found.created else 200, media_type=JSON)

    @router.get(
        "",
        response_model=ImplementationList,
        responses=problem_responses([InvalidInput, Busy, Unavailable, TimedOut]),
    )
    async def list_implementations(
        caller: CurrentCaller,
        op: ListedName | None = None,
        user: ListedName | None = None,
        before: Annotated[
            Cursor | None, Query(description="`next` of the page before this one")
        ] = None,
        limit: Limit = 50,
    ) -> Response:
        """Everything that jobs can time and that the caller may read.

        The first page begins with the shipped implementations and those of the operator. Uploaded
        ones follow, the latest version of each name, the one that was uploaded last first.
        """
        found = await service.list(caller, Filter(op, user, before, limit))
        return Response(to_json(found), media_type=JSON)

    @router.get(
        "/environment",
        response_model=Environment,
        responses=problem_responses([Busy, Unavailable, TimedOut]),
    )
    async def show_environment(caller: CurrentCaller) -> Response:
        """What uploaded source may use: versions, tools, packages, and limits."""
        return Response(to_json(await service.environment()), media_type=JSON)

    @router.get("/{user}/{name}", response_model=ImplementationDetails, responses=lost)
    async def show_implementation(
        user: str, name: str, caller: CurrentCaller, version: OneVersion = None
    ) -> Response:
        """An uploaded implementation with its source, and all its versions."""
        found = await service.find(caller, user, name, version)
        return Response(to_json(found), media_type=JSON)

    @router.delete(
        "/{user}/{name}",
        status_code=204,
        responses={**lost, **problem_responses([Forbidden])},
        **uploading,
    )
    async def delete_implementation(
        user: str, name: str, caller: CurrentCaller, version: OneVersion = None
    ) -> Response:
        """Delete a version, or by default all versions.

        They disappear at once. Jobs that are queued already still time them, and what jobs have
        measured is kept.
        """
        await service.delete(caller, user, name, version)
        return Response(status_code=204)

    return router


def most_bytes(settings: BenchSettings) -> int:
    """The most bytes that the body of an upload may have."""
    return ESCAPED * int(settings.upload_max_bytes) + FURTHER_BYTES
