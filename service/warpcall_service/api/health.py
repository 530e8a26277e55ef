"""Health, readiness and metrics, for probes and for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from warpcall_service.api.metrics import Metrics
from warpcall_service.auth.sync import AccountSync
from warpcall_service.http.caller import needs
from warpcall_service.http.openapi_parts import Model
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.runs.sandbox import Sandbox

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Health(Model):
    """The server answers."""

    status: str


class LaneModel(Model):
    """A device and its worker process. `state` is "ready" if it can run calls."""

    name: str
    state: str
    reason: str
    device: str
    restarts: int
    queued: int
    in_flight: int


class Readiness(Model):
    """Whether calls can run now. `status` is "ready" or "unready"; `reasons` says why not.

    `uploads` is "off", "sandboxed" or "trusted" as the server is set, or "unavailable:" and why the
    sandbox of uploaded code cannot be used.
    """

    status: str
    reasons: list[str]
    uploads: str
    lanes: list[LaneModel]


def health(
    engine: LocalEngine,
    metrics: Metrics,
    account_sync: AccountSync,
    sandbox: Sandbox,
    stopping: Callable[[], bool],
) -> APIRouter:
    """The routes of probes, and the metrics."""
    router = APIRouter(tags=["health"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", response_model=Health)
    async def healthz() -> Response:
        """200 as long as the server answers requests."""
        return JSONResponse({"status": "ok"})

    @router.head("/readyz", include_in_schema=False)
    @router.get(
        "/readyz",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "No call can run now"}},
    )
    async def readyz() -> Response:
        """200 while calls can run; 503 with the reasons while they cannot."""
        lanes = engine.status()
        ready = engine.ready and not stopping() and not account_sync.authenticator.keys_unusable
        reasons = ["the server is stopping"] if stopping() else []
        reasons += account_sync.reasons()
        reasons += [f"{lane.name}: {lane.state}, {lane.reason}" for lane in lanes if lane.reason]
        shown = [{name: getattr(lane, name) for name in LaneModel.model_fields} for lane in lanes]
        payload = {
            "status": "ready" if ready else "unready",
            "reasons": reasons,
            "uploads": sandbox.status,
            "lanes": shown,
        }
        return JSONResponse(payload, 200 if ready else 503)

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {PROMETHEUS: {"schema": {"type": "string"}}}}},
        **needs("admin"),  # the metrics name every user
    )
    async def read_metrics() -> Response:
        """Requests, latency by stage, queues, memory and lanes in the text format of Prometheus."""
        return Response(metrics.text(), media_type=PROMETHEUS)

    return router
