"""The HTTP routes of evaluations."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Header, Request, Response
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
from warpcall.evaluations import Evaluation
from warpcall.wire import EVALUATIONS_PATH
from warpcall_bench.evaluations.batches import Batches
from warpcall_bench.evaluations.models import BatchRequest, EvaluationRequest
from warpcall_bench.evaluations.service import Evaluations
from warpcall_bench.jobs.routes import IdempotencyKey
from warpcall_bench.jobs.service import JobService
from warpcall_bench.json_body import check_members, read_model, structure_nbytes
from warpcall_bench.settings import BenchSettings
from warpcall_bench.streamed import Streamed
from warpcall_bench.uploads.routes import most_bytes
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import to_json
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.openapi_parts import problem_responses, ref
from warpcall_service.http.router import Router

MAX_WAIT_S = 300  # that a request may wait; a longer `Prefer: wait` is taken for this
MAX_BATCH_BYTES = 4 << 20  # of the body of a batch: 16 KiB for each of 256 sources
LINES = "application/x-ndjson"
MAX_STRUCTURE_BYTES = 64 << 10  # of a body without the content of its texts
WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:$|[,;])')

EvaluationId = Annotated[str, StringConstraints(max_length=64)]
Prefer = Annotated[
    str | None,
    Header(
        max_length=1024,
        description=f"`wait=60` waits up to 60 seconds for the verdict, at most {MAX_WAIT_S} (RFC "
        "7240). By default the answer comes at once.",
    ),
]
SUBMITTING: list[type[Problem]] = [
    InvalidInput,
    TooLarge,
    UnsupportedMedia,
    TimedOut,
    Forbidden,
    Busy,
    Unavailable,
]
WAITING: dict[int | str, dict[str, Any]] = {
    202: {"model": Evaluation, "description": "The job has not ended yet"}
}


def evaluations(
    settings: BenchSettings, service: Evaluations, batches: Batches, jobs: JobService
) -> Router:
    """The routes to evaluate candidates, and to read evaluations."""
    router = Router(prefix=EVALUATIONS_PATH, tags=["evaluations"])
    benching = needs("bench")
    body = {"required": True, "content": {JSON: {"schema": ref(EvaluationRequest)}}}
    of_batch = {"required": True, "content": {JSON: {"schema": ref(BatchRequest)}}}
    most = most_bytes(settings) + MAX_STRUCTURE_BYTES

    @router.post(
        "",
        response_model=Evaluation,
        responses={**WAITING, **problem_responses(SUBMITTING)},
        dependencies=benching["dependencies"],
        openapi_extra={**benching["openapi_extra"], "requestBody": body},
    )
    async def evaluate(
        request: Request,
        caller: CurrentCaller,
        idempotency_key: IdempotencyKey = None,
        prefer: Prefer = None,
    ) -> Response:
        """Evaluate one candidate: whether it compiles, is right, and how fast it is.

        It is a benchmark job underneath. A source that cannot be imported is a verdict, and no error.
        The answer is 202 if the verdict is not final within the time of `Prefer: wait=60`. `source` needs a key
        with the role `upload`.
        """
        what = "the JSON of an evaluation"
        wanted = await read_model(request, EvaluationRequest, most, what, check_body)
        exchange: Exchange = request.scope["state"]["exchange"]
        found = await service.evaluate(
            caller,
            wanted,
            wanted,
            idempotency_key,
            wait_of(prefer),
            lambda: exchange.connection.is_closing,
            jobs.traceparent(exchange),
        )
        return _answered(found, prefer)

    @router.post(
        "/batch",
        response_class=StreamingResponse,
        responses={
            200: {"content": {LINES: {"schema": {"$ref": "#/components/schemas/Evaluation"}}}},
            **problem_responses(SUBMITTING),
        },
        dependencies=benching["dependencies"],
        openapi_extra={**benching["openapi_extra"], "requestBody": of_batch},
    )
    async def evaluate_batch(request: Request, caller: CurrentCaller) -> Response:
        """Evaluate up to 256 candidates of one op, and answer with a line of JSON for each.

        A line is an `Evaluation`, and comes when its verdict is final; `index` says of which of `sources` it
        is. Empty lines keep the connection open. If the batch cannot go on, the last line is a problem, which
        has a `type`. If the client leaves, jobs that have not begun are cancelled, unless `when_left` is
        "continue".
        """
        what = "the JSON of a batch"
        wanted = await read_model(request, BatchRequest, MAX_BATCH_BYTES, what, check_body)
        lines = batches.evaluate(
            caller, wanted, jobs.traceparent(request.scope["state"]["exchange"])
        )
        first = await anext(lines)  # what is wrong with the request is a problem, and no stream
        return Streamed(first, lines, LINES, {"cache-control": "no-store"})

    @router.get(
        "/{id}",
        response_model=Evaluation,
        responses={**WAITING, **problem_responses([NotFound, InvalidInput, Busy, Unavailable])},
    )
    async def show_evaluation(
        request: Request, id: EvaluationId, caller: CurrentCaller, prefer: Prefer = None
    ) -> Response:
        """An evaluation, as far as it is measured. The answer is 202 until it is final.

        The id is that of a job, a hyphen, and the place of an implementation in the job, where the
        first one is the baseline. So every implementation of every job can be read as an evaluation.
        """
        exchange: Exchange = request.scope["state"]["exchange"]
        found = await service.find(
            caller, id, wait_of(prefer), lambda: exchange.connection.is_closing
        )
        return _answered(found, prefer)

    return router


def check_body(body: bytes) -> None:
    """Refuse a body that a parser would take too long over, and what `check_members` refuses."""
    nbytes = structure_nbytes(body, MAX_STRUCTURE_BYTES)
    if nbytes > MAX_STRUCTURE_BYTES:
        raise InvalidInput(
            f"body must have at most {MAX_STRUCTURE_BYTES} bytes without its texts, got {nbytes}",
            field="body",
        )
    check_members(body)


def wait_of(prefer: str | None) -> float:
    """The seconds that `Prefer` asks to wait. Preferences that are not understood are ignored."""
    found = WAIT.search(prefer.lower()) if prefer else None
    return min(float(found[1]), MAX_WAIT_S) if found else 0.0


def _answered(found: Evaluation, prefer: str | None) -> Response:
    headers = {}
    if wait_s := wait_of(prefer):
        headers["preference-applied"] = f"wait={wait_s:.0f}"
    if found.links is not None and not found.done:
        headers["location"] = found.links.evaluation
    return Response(to_json(found), 200 if found.done else 202, headers, media_type=JSON)
