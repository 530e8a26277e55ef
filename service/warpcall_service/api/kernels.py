"""The routes that are not calls: the ops, the server's health, its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from warpcall.errors import Busy, NotFound
from warpcall_service.api.metrics import Metrics
from warpcall_service.auth.rate_limits import Limits
from warpcall_service.auth.sync import AccountSync
from warpcall_service.http.caller import caller_of, needs
from warpcall_service.http.openapi_parts import problem_responses
from warpcall_service.identity import LOCAL
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.settings import Settings
from warpcall_service.text import brief

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class _Model(BaseModel):
    model_config = ConfigDict(strict=True)


class InputModel(_Model):
    """A tensor that an op takes; `dtypes` as on the wire."""

    name: str
    dtypes: list[str]
    shape: str
    doc: str
    optional: bool


class OutputModel(_Model):
    """A tensor that an op gives; `when` says on what a sometimes absent one depends.

    A `dtype` of null is that of the inputs, or the one they promote to.
    """

    name: str
    dtype: str | None
    shape: str
    doc: str
    when: str


class ParamModel(_Model):
    """A value that steers an op; `schema` is its JSON Schema."""

    name: str
    kind: str
    doc: str
    default: bool | int | float | list[int] | None
    required: bool
    json_schema: dict[str, Any] = Field(alias="schema")


class KernelModel(_Model):
    """An op as its file declares it; `source_sha256` is the hash of that file."""

    name: str
    summary: str
    description: str
    equivalent: str
    limits: str
    inputs: list[InputModel]
    outputs: list[OutputModel]
    params: list[ParamModel]
    source_sha256: str


class KernelList(_Model):
    """Every op of this server."""

    kernels: list[KernelModel]


class UserLimits(_Model):
    """What one user may have; more is `busy`. One call may have more bytes.

    `requests_in_flight` is null for `local`, which is everyone on a server without keys.
    """

    requests_in_flight: int | None
    bytes_in_flight: int
    requests_per_s: float


class InFlight(_Model):
    """What one user has at this moment, this request included."""

    requests: int
    bytes: int


class Me(_Model):
    """Who calls, and what he may."""

    name: str
    role: str
    limits: UserLimits
    in_flight: InFlight


class Health(_Model):
    """That the server answers."""

    status: str


class LaneModel(_Model):
    """One device and the process that has it."""

    name: str
    state: str
    reason: str
    device: str
    restarts: int
    queued: int
    in_flight: int


class Readiness(_Model):
    """Whether calls can run now: `status` is "ready" or "unready", `reasons` says why not."""

    status: str
    reasons: list[str]
    lanes: list[LaneModel]


def kernels(engine: LocalEngine) -> APIRouter:
    """The ops that the server has."""
    router = APIRouter(prefix="/v1/kernels", tags=["kernels"])
    declarations = {op["name"]: op for op in engine.catalog}

    @router.get("", response_model=KernelList)
    async def list_kernels() -> Response:
        """Every op: inputs, parameters, limits, what it is equivalent to."""
        return JSONResponse({"kernels": engine.catalog})

    @router.get("/{name}", response_model=KernelModel, responses=problem_responses([NotFound]))
    async def get_kernel(name: str) -> Response:
        """One op."""
        if name not in declarations:
            known = ", ".join(declarations)
            raise NotFound(f"there is no kernel {brief(name)}, there are {known}", field="name")
        return JSONResponse(declarations[name])

    return router


def me(settings: Settings, engine: LocalEngine, limits: Limits) -> APIRouter:
    """The caller himself."""
    router = APIRouter(prefix="/v1/me", tags=["users"])
    allowed = {
        "requests_in_flight": settings.user_max_requests,
        "bytes_in_flight": int(settings.user_max_bytes),
        "requests_per_s": settings.user_requests_per_s,
    }

    @router.get("", response_model=Me, responses=problem_responses([Busy]))
    async def get_me(request: Request) -> Response:
        """Who you are to this server, your limits, and what you have in flight."""
        caller = caller_of(request.scope)
        has = {
            "requests": limits.in_flight(caller.name),
            "bytes": engine.nbytes_of(caller.name),
        }
        who = {"name": caller.name, "role": caller.role}
        his = {**allowed, "requests_in_flight": None} if caller is LOCAL else allowed
        return JSONResponse({**who, "limits": his, "in_flight": has})

    return router


def health(
    engine: LocalEngine, metrics: Metrics, account_sync: AccountSync, stopping: Callable[[], bool]
) -> APIRouter:
    """Live, ready, and in numbers."""
    router = APIRouter(tags=["health"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", response_model=Health)
    async def healthz() -> Response:
        """200 as long as the server answers at all."""
        return JSONResponse({"status": "ok"})

    @router.head("/readyz", include_in_schema=False)
    @router.get(
        "/readyz",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "No call can run now"}},
    )
    async def readyz() -> Response:
        """200 while calls can run, 503 with reasons while they cannot."""
        lanes = engine.status()
        ready = engine.ready and not stopping() and not account_sync.authenticator.keys_unusable
        reasons = ["the server is stopping"] if stopping() else []
        reasons += account_sync.reasons()
        reasons += [f"{lane.name}: {lane.state}, {lane.reason}" for lane in lanes if lane.reason]
        shown = [{name: getattr(lane, name) for name in LaneModel.model_fields} for lane in lanes]
        payload = {"status": "ready" if ready else "unready", "reasons": reasons, "lanes": shown}
        return JSONResponse(payload, 200 if ready else 503)

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {PROMETHEUS: {"schema": {"type": "string"}}}}},
        **needs("admin"),  # it names all users
    )
    async def read_metrics() -> Response:
        """Requests, latency by stage, queues, memory and lanes, in the Prometheus text format."""
        return Response(metrics.text(), media_type=PROMETHEUS)

    return router
