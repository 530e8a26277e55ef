"""The HTTP routes of benchmark jobs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Literal

from fastapi import Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import StringConstraints

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
from warpcall.jobs import (
    JobDetails,
    JobKind,
    JobList,
    JobPreview,
    PrintedList,
    Queue,
    State,
    SubmittedJob,
)
from warpcall.jobs.results import CaseDetails, Comparison, History, Results
from warpcall_bench.jobs import exports
from warpcall_bench.jobs.models import (
    MAX_BODY_BYTES,
    MAX_COMMAND_BYTES,
    MAX_SEQUENCE,
    CaseKey,
    ImplementationName,
    JobChange,
    JobRequest,
    Name,
    OpName,
    ScratchRequest,
    Word,
    without_version,
)
from warpcall_bench.jobs.service import JobService
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.json_body import check_members, check_structure, read_model
from warpcall_bench.settings import BenchSettings
from warpcall_bench.streamed import Streamed, streamed
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import problem_responses, ref
from warpcall_service.http.router import Router

EVENTS = "text/event-stream"
EVERYONE = "all"  # no user has this name
MAX_CHANGE_BYTES = 1024
FILE_BYTES = 320  # of a file in a request: its path and its SHA-256
KEEP_ALIVE_POLLS = 15  # polls without an event between two comments that keep a connection open

JobId = Annotated[str, StringConstraints(max_length=64)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=r"^[\x20-\x7e]{1,255}$",
        description="A text that is new for each new job. A submission that is sent again with the same "
        "text returns the job of the first one.",
    ),
]
LastEventId = Annotated[
    int,
    Header(
        ge=0, le=MAX_SEQUENCE, description="Sequence of the last event that the client has seen"
    ),
]
After = Annotated[
    int,
    Query(
        ge=0,
        le=MAX_SEQUENCE,
        description="The same as Last-Event-ID, for clients that cannot set headers",
    ),
]
Position = Annotated[int, Path(ge=0, le=MAX_SEQUENCE)]
Limit = Annotated[int, Query(ge=1, le=500)]


def jobs(service: JobService, stopping: Callable[[], bool]) -> Router:
    """The routes to submit, watch and cancel jobs, and to read their results."""
    router = Router(prefix="/v1/jobs", tags=["jobs"])
    asking: list[type[Problem]] = [InvalidInput, TooLarge, UnsupportedMedia, TimedOut]
    refused = problem_responses([*asking, Busy, Unavailable])
    lost = problem_responses([NotFound, InvalidInput, Unavailable])
    benching = needs("bench")
    body = {"required": True, "content": {JSON: {"schema": ref(JobRequest)}}}

    @router.post(
        "",
        response_model=SubmittedJob,
        status_code=201,
        responses={
            200: {"model": SubmittedJob, "description": "The job existed before"},
            **refused,
        },
        dependencies=benching["dependencies"],
        openapi_extra={**benching["openapi_extra"], "requestBody": body},
    )
    async def submit_job(
        request: Request, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Queue a benchmark job.

        The answer is 200 with an existing job if its Idempotency-Key is the same, or if it measured
        the same in the same environment.
        """
        wanted = await _read(request)
        trace = service.traceparent(request.scope["state"]["exchange"])
        found = await service.submit(caller, wanted, idempotency_key, trace)
        return answered(found, 200 if found.reused else 201)

    @router.post(
        "/preview",
        response_model=JobPreview,
        responses=refused,
        dependencies=benching["dependencies"],
        openapi_extra={**benching["openapi_extra"], "requestBody": body},
    )
    async def preview_job(request: Request, caller: CurrentCaller) -> Response:
        """How many cases a submission has and how long it would take. Nothing is queued."""
        return answered(await service.preview(caller, await _read(request)))

    @router.get("", response_model=JobList, responses=lost)
    async def list_jobs(
        caller: CurrentCaller,
        user: Name | None = None,
        state: State | None = None,
        op: OpName | None = None,
        tag: Word | None = None,
        before: JobId | None = None,
        limit: Limit = 50,
        kind: Annotated[JobKind, Query(description="`scratch` lists scratch runs")] = "benchmark",
    ) -> Response:
        """The caller's own jobs, or those of another user that the caller may read, the latest first.

        `user=all` lists all jobs that the caller may read.
        """
        name = None if op is None else without_version(op)
        user = None if user == EVERYONE else user or caller.name
        wanted = Filter(user, state, name, tag, before, limit, kind=kind)
        return answered(await service.list(caller, wanted))

    @router.get("/queue", response_model=Queue, responses=problem_responses([Unavailable]))
    async def show_queue(caller: CurrentCaller) -> Response:
        """The jobs of all users that run or wait, in the order in which they will run."""
        return answered(await service.queue(caller))

    @router.get("/history", response_model=History, responses=lost)
    async def show_history(
        caller: CurrentCaller,
        op: OpName,
        implementation: ImplementationName,
        case: Annotated[
            CaseKey, Query(description="Key of the case, as results have it under `case`")
        ],
        limit: Limit = 100,
    ) -> Response:
        """What an implementation took in a case, job by job, the latest first."""
        return answered(
            await service.history(caller, without_version(op), implementation, case, limit)
        )

    @router.get("/{id}", response_model=JobDetails, responses=lost)
    async def show_job(id: JobId, caller: CurrentCaller) -> Response:
        """One job: its state, its place in the queue, its request and its environment.

        Also a scratch run, with the `exit_status` of its command.
        """
        return answered(await service.find(caller, id, any_kind=True))

    @router.patch(
        "/{id}",
        response_model=JobDetails,
        responses={**lost, **problem_responses([TooLarge, UnsupportedMedia, TimedOut])},
        dependencies=benching["dependencies"],
        openapi_extra={
            **benching["openapi_extra"],
            "requestBody": {"required": True, "content": {JSON: {"schema": ref(JobChange)}}},
        },
    )
    async def change_job(request: Request, id: JobId, caller: CurrentCaller) -> Response:
        """Make a job private, or let all users read it. Only its user and administrators may."""
        change = await read_model(request, JobChange, MAX_CHANGE_BYTES, "a change", check_members)
        return answered(await service.change(caller, id, change))

    @router.post("/{id}/cancel", response_model=JobDetails, responses=lost, **benching)
    async def cancel_job(id: JobId, caller: CurrentCaller) -> Response:
        """End a job, whether it waits or runs. What it has measured is kept.

        Only its user and administrators may.
        """
        return answered(await service.cancel(caller, id))

    @router.get(
        "/{id}/events",
        response_class=StreamingResponse,
        responses={
            200: {"content": {EVENTS: {"schema": {"type": "string"}}}},
            204: {"description": "The job has ended, and the client has seen all events"},
            **lost,
            **problem_responses([Busy]),
        },
    )
    async def watch_job(
        id: JobId, caller: CurrentCaller, last_event_id: LastEventId = 0, after: After = 0
    ) -> Response:
        """The events of a job as server-sent events, until its end.

        The id of an event is its `sequence`. A client that reconnects with Last-Event-ID misses no
        event and sees none twice.
        """
        batches = service.events(caller, id, max(last_event_id, after), stopping)
        first = await anext(
            batches, None
        )  # an unknown job is answered with a problem, not a stream
        if first is None:
            return Response(status_code=204)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return Streamed(first or b": here\n\n", _lively(batches), EVENTS, headers)

    @router.get(
        "/{id}/results",
        response_model=Results,
        responses={
            200: {
                "content": {
                    media: {"schema": {"type": "string"}}
                    for form, media in exports.MEDIA.items()
                    if form != "json"
                }
            },
            **problem_responses([NotFound, InvalidInput, Busy, Unavailable]),
        },
    )
    async def show_results(
        id: JobId,
        caller: CurrentCaller,
        format: Literal["json", "csv"] = "json",
        samples: Annotated[bool, Query(description="Include all samples; only in JSON")] = False,
    ) -> Response:
        """What the job has measured so far: a row for each implementation of each case."""
        return await streamed(service.results(caller, id, format, samples), exports.MEDIA[format])

    @router.get("/{id}/cases/{position}", response_model=CaseDetails, responses=lost)
    async def show_case(id: JobId, position: Position, caller: CurrentCaller) -> Response:
        """One case that the job has measured: how, its rows, and all samples."""
        return answered(await service.case(caller, id, position))

    @router.get(
        "/{id}/printed",
        response_model=PrintedList,
        responses=problem_responses([NotFound, InvalidInput, Busy, Unavailable]),
    )
    async def show_printed(id: JobId, caller: CurrentCaller) -> Response:
        """What uploads printed in the cases of a job: until the first call of a case had returned, and
        the end of it where a later call failed."""
        return await streamed(service.printed(caller, id), JSON)

    @router.get(
        "/{id}/compare/{other}",
        response_model=Comparison,
        responses={**lost, **problem_responses([Busy])},
    )
    async def compare_jobs(id: JobId, other: JobId, caller: CurrentCaller) -> Response:
        """What both jobs measured: the times of job `other` relative to those of job `id`."""
        return await streamed(service.compare(caller, id, other), JSON)

    return router


def scratch_runs(settings: BenchSettings, service: JobService) -> Router:
    """The route to submit scratch runs. They are watched, cancelled and read as other jobs."""
    router = Router(prefix="/v1/scratch", tags=["jobs"])
    needed = needs("scratch")
    problems = (InvalidInput, TooLarge, UnsupportedMedia, TimedOut, Forbidden, Busy, Unavailable)
    most = MAX_COMMAND_BYTES + FILE_BYTES * settings.upload_max_files

    @router.post(
        "",
        response_model=SubmittedJob,
        status_code=201,
        responses={
            200: {"model": SubmittedJob, "description": "The scratch run existed before"},
            **problem_responses(problems),
        },
        dependencies=needed["dependencies"],
        openapi_extra={
            **needed["openapi_extra"],
            "requestBody": {"required": True, "content": {JSON: {"schema": ref(ScratchRequest)}}},
        },
    )
    async def submit_scratch_run(
        request: Request, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Queue a command that runs once in the sandbox, with a device to itself for a bounded time.

        It is a job of the kind `scratch`, which is not judged. What it writes are its events `output`, and
        the files that it sends back are its artefacts, which the events `file` name. `GET /v1/jobs/{id}` has its `exit_status`.
        """
        what = "the description of a scratch run"
        wanted = await read_model(request, ScratchRequest, most, what, check_structure)
        found = await service.submit_scratch(caller, wanted, idempotency_key)
        return answered(found, 200 if found.reused else 201)

    return router


async def _lively(batches: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The batches, with some of the empty ones replaced by comments that keep the connection open."""
    quiet = 0
    async with contextlib.aclosing(batches):
        async for batch in batches:
            quiet = 0 if batch else quiet + 1
            yield b": still here\n\n" if quiet and quiet % KEEP_ALIVE_POLLS == 0 else batch


async def _read(request: Request) -> JobRequest:
    wanted = await read_model(
        request, JobRequest, MAX_BODY_BYTES, "the description of a job", check_members
    )
    wanted.check_form()
    return wanted
