"""Health, readiness and metrics, for probes and for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from fastapi import Response
from fastapi.responses import JSONResponse

from warpcall.health import Check, Health, Lane
from warpcall_service.api.metrics import Metrics
from warpcall_service.auth.sync import AccountSync
from warpcall_service.doctor.live import LiveChecks
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import needs
from warpcall_service.http.openapi_parts import Model
from warpcall_service.http.router import Router
from warpcall_service.lanes.engine import LocalEngine

SHOWN = tuple(field.name for field in fields(Lane))
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Alive(Model):
    """The server answers."""

    status: str


def health(
    engine: LocalEngine,
    metrics: Metrics,
    account_sync: AccountSync,
    uploads: Callable[[], str],
    stopping: Callable[[], bool],
    live: LiveChecks,
) -> Router:
    """The routes of probes, and the metrics.

    Args:
        uploads: returns whether uploaded code can run.
        live: the checks of a running server.
    """
    router = Router(tags=["health"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", response_model=Alive)
    async def healthz() -> Response:
        """200 as long as the server answers requests."""
        return JSONResponse({"status": "ok"})

    @router.head("/readyz", include_in_schema=False)
    @router.get(
        "/readyz",
        response_model=Health,
        responses={503: {"model": Health, "description": "No call can run now"}},
    )
    async def readyz() -> Response:
        """200 while calls can run; 503 with the reasons while they cannot."""
        lanes = engine.status()
        ready = engine.ready and not stopping() and not account_sync.authenticator.keys_unusable
        reasons = ["the server is stopping"] if stopping() else []
        reasons += account_sync.reasons()
        reasons += [f"{lane.name}: {lane.state}, {lane.reason}" for lane in lanes if lane.reason]
        found = Health(
            status="ready" if ready else "unready",
            reasons=reasons,
            uploads=uploads(),
            checks=[Check(name=one.name, state=one.state) for one in await live.findings()],
            lanes=[Lane(**{name: getattr(lane, name) for name in SHOWN}) for lane in lanes],
        )
        return answered(found, 200 if ready else 503)

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
