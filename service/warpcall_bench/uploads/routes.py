"""The HTTP routes of implementations and of problems."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel

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
from warpcall.implementations import (
    Environment,
    ImplementationDetails,
    ImplementationList,
    MissingFiles,
    UploadedImplementation,
)
from warpcall.problems import ProblemDetails, ProblemList, UploadedProblem
from warpcall_bench.json_body import check_structure, read_model
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.database import UploadFilter
from warpcall_bench.uploads.implementations import MAX_LAUNCHES_BYTES
from warpcall_bench.uploads.models import (
    Cursor,
    ListedName,
    MissingFilesRequest,
    ProblemUpload,
    UploadRequest,
    Version,
)
from warpcall_bench.uploads.service import IMPLEMENTATION, PROBLEM, UploadService
from warpcall_bench.uploads.tables import PATH_LENGTH
from warpcall_bench.uploads.trees import SHA256
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import problem_responses, ref
from warpcall_service.http.route_io import body_of
from warpcall_service.http.router import Router

# Of a body beside the source. JSON writes a line end, a quote or a backslash as two characters.
FURTHER_BYTES = (4 << 10) + 2 * MAX_LAUNCHES_BYTES
FILE_BYTES = 320  # of a file in the list of files: its path and its SHA-256
ESCAPED = 2

OneVersion = Annotated[
    Version | None,
    Query(description="The first digits of a version, at least 8; by default the latest version"),
]
FilePath = Annotated[str, Path(max_length=PATH_LENGTH)]
Sha256 = Annotated[str, Path(pattern=f"^{SHA256}$", description="Of the content, in hex")]
BYTES = "application/octet-stream"
Before = Annotated[Cursor | None, Query(description="`next` of the page before this one")]
UploadLimit = Annotated[int, Query(ge=1, le=500, description="On the number of uploaded ones")]
Limit = Annotated[int, Query(ge=1, le=500)]

# Arguments of the decorators of routes.
ONE = "/{user}/{name}"
LISTING: dict[str, Any] = {
    "responses": problem_responses([InvalidInput, Busy, Unavailable, TimedOut])
}
SHOWING: dict[str, Any] = {"responses": problem_responses([NotFound, InvalidInput, Unavailable])}
DELETING: dict[str, Any] = {
    "status_code": 204,
    "responses": problem_responses([NotFound, InvalidInput, Unavailable, Forbidden]),
    **needs("upload"),
}


def uploading(request: type[BaseModel], answer: type[object]) -> dict[str, Any]:
    """Arguments of the decorator of a route that takes an upload, and answers 201 or 200."""
    needed = needs("upload")
    problems = (InvalidInput, TooLarge, UnsupportedMedia, TimedOut, Forbidden, Busy, Unavailable)
    body = {"required": True, "content": {JSON: {"schema": ref(request)}}}
    return {
        "response_model": answer,
        "status_code": 201,
        "responses": {
            200: {"model": answer, "description": "It was stored before"},
            **problem_responses(problems),
        },
        "dependencies": needed["dependencies"],
        "openapi_extra": {**needed["openapi_extra"], "requestBody": body},
    }


def implementations(settings: BenchSettings, service: UploadService) -> Router:
    """The routes to upload implementations, and to list, read and delete them."""
    router = Router(prefix="/v1/implementations", tags=["implementations"])
    most, what = most_bytes(settings), "the JSON of an upload"

    @router.post("", **uploading(UploadRequest, UploadedImplementation))
    async def upload_implementation(request: Request, caller: CurrentCaller) -> Response:
        """Upload source with an implementation of an op, which jobs can then time.

        The source is checked first: Python is imported in a process of its own, and CUDA C++ is
        compiled there. If that fails, the problem names the line. The answer is 200 if the same source was stored before.
        """
        wanted = await read_model(request, UploadRequest, most, what, check_structure)
        return _stored(await service.add_implementation(caller, wanted))

    @router.get("", response_model=ImplementationList, **LISTING)
    async def list_implementations(
        caller: CurrentCaller,
        op: ListedName | None = None,
        user: ListedName | None = None,
        before: Before = None,
        limit: UploadLimit = 50,
    ) -> Response:
        """Everything that jobs can time and that the caller may read.

        The first page begins with the shipped implementations and those of the operator. Uploaded
        ones follow, the latest version of each name, the one that was uploaded last first.
        """
        return answered(
            await service.list_implementations(caller, UploadFilter(op, user, before, limit))
        )

    @router.get(
        "/environment",
        response_model=Environment,
        responses=problem_responses([Busy, Unavailable, TimedOut]),
    )
    async def show_environment(caller: CurrentCaller) -> Response:
        """What uploaded source may use: versions, tools, packages, and limits."""
        return answered(await service.environment())

    @router.get(ONE, response_model=ImplementationDetails, **SHOWING)
    async def show_implementation(
        user: str, name: str, caller: CurrentCaller, version: OneVersion = None
    ) -> Response:
        """An uploaded implementation with its source, and all its versions."""
        found = await service.find(IMPLEMENTATION, caller, user, name, version)
        return answered(found)

    @router.get(
        f"{ONE}/files/{{path:path}}",
        response_class=Response,
        responses={
            200: {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}},
            **problem_responses([NotFound, InvalidInput, Unavailable]),
        },
    )
    async def read_file(
        user: str, name: str, path: FilePath, caller: CurrentCaller, version: OneVersion = None
    ) -> Response:
        """A file of an uploaded implementation, as it was sent."""
        found = await service.read_files(caller, user, name, version, path)
        headers = {
            "content-disposition": f'attachment; filename="{path.rpartition("/")[2]}"',
            "x-content-type-options": "nosniff",
        }
        return Response(found[path], media_type=BYTES, headers=headers)

    @router.delete(ONE, **DELETING)
    async def delete_implementation(
        user: str, name: str, caller: CurrentCaller, version: OneVersion = None
    ) -> Response:
        """Delete a version, or by default all versions.

        They disappear at once. Jobs that are queued already still time them, and what jobs have
        measured is kept.
        """
        await service.delete(IMPLEMENTATION, caller, user, name, version)
        return Response(status_code=204)

    return router


def files(settings: BenchSettings, service: UploadService) -> Router:
    """The routes to send the files of uploads of several files."""
    router = Router(prefix="/v1/files", tags=["implementations"])
    needed = needs("upload")
    problems = (InvalidInput, TooLarge, TimedOut, Forbidden, Unavailable)
    most_bytes = int(settings.upload_max_tree_bytes)

    @router.post(
        "/missing",
        response_model=MissingFiles,
        responses=problem_responses((*problems, UnsupportedMedia)),
        dependencies=needed["dependencies"],
        openapi_extra={
            **needed["openapi_extra"],
            "requestBody": {
                "required": True,
                "content": {JSON: {"schema": ref(MissingFilesRequest)}},
            },
        },
    )
    async def find_missing_files(request: Request, caller: CurrentCaller) -> Response:
        """Which files of an upload of several files the caller has not sent yet.

        Files of other users make no difference. The others are kept for an hour, and while a version
        of the caller needs them.
        """
        most = FURTHER_BYTES + FILE_BYTES * settings.upload_max_files
        what = "the JSON of a list of files"
        wanted = await read_model(request, MissingFilesRequest, most, what, check_structure)
        return answered(await service.missing_files(caller, wanted.sha256))

    @router.put(
        "/{sha256}",
        status_code=204,
        responses=problem_responses(problems),
        dependencies=needed["dependencies"],
        openapi_extra={
            **needed["openapi_extra"],
            "requestBody": {
                "required": True,
                "content": {BYTES: {"schema": {"type": "string", "format": "binary"}}},
            },
        },
    )
    async def send_file(request: Request, caller: CurrentCaller, sha256: Sha256) -> Response:
        """Send a file for uploads of several files; the body is its content as it is.

        Only the caller's own uploads can have it. It is deleted when none has needed it for an hour.
        """
        content = await body_of(request, most_bytes, "a file")
        await service.add_file(caller, sha256, content)
        return Response(status_code=204)

    return router


def problems(settings: BenchSettings, service: UploadService) -> Router:
    """The routes to upload problems, and to list, read and delete them."""
    router = Router(prefix="/v1/problems", tags=["problems"])
    most, what = most_bytes(settings, files=0), "the JSON of an upload"

    @router.post("", **uploading(ProblemUpload, UploadedProblem))
    async def upload_problem(request: Request, caller: CurrentCaller) -> Response:
        """Upload Python source that declares a problem: an op of the user's, for jobs to measure.

        The source is checked first: it is imported in a process of its own, which finds out the
        inputs of default sizes and the shapes of the outputs. If that fails, the error names the
        line. The answer is 200 if the same source was stored before.
        """
        wanted = await read_model(request, ProblemUpload, most, what, check_structure)
        return _stored(await service.add_problem(caller, wanted))

    @router.get("", response_model=ProblemList, **LISTING)
    async def list_problems(
        caller: CurrentCaller,
        user: ListedName | None = None,
        before: Before = None,
        limit: Limit = 50,
    ) -> Response:
        """The problems that the caller may read: the latest version of each name, the one that was
        uploaded last first."""
        return answered(
            await service.list_problems(caller, UploadFilter(None, user, before, limit))
        )

    @router.get(ONE, response_model=ProblemDetails, **SHOWING)
    async def show_problem(
        user: str, name: str, caller: CurrentCaller, version: OneVersion = None
    ) -> Response:
        """A problem with its source and its declaration, and all its versions."""
        found = await service.find(PROBLEM, caller, user, name, version)
        return answered(found)

    @router.delete(ONE, **DELETING)
    async def delete_problem(
        user: str, name: str, caller: CurrentCaller, version: OneVersion = None
    ) -> Response:
        """Delete a version, or by default all versions.

        They disappear at once. Jobs that are queued already still measure them. What jobs have
        measured is kept, and so are implementations of the problem.
        """
        await service.delete(PROBLEM, caller, user, name, version)
        return Response(status_code=204)

    return router


def most_bytes(settings: BenchSettings, files: int | None = None) -> int:
    """The most bytes that the body of an upload may have; without `files`, as many as allowed."""
    listed = FILE_BYTES * (settings.upload_max_files if files is None else files)
    return ESCAPED * int(settings.upload_max_bytes) + FURTHER_BYTES + listed


def _stored(found: UploadedImplementation | UploadedProblem) -> Response:
    return answered(found, 201 if found.created else 200)
