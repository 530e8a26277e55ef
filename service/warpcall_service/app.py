"""The application: the routes and the calls over one engine, behind the gateway."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.exceptions import HTTPException

from warpcall.errors import InvalidInput, NotFound, Problem
from warpcall_service import logs
from warpcall_service.api import kernels, openapi, pages
from warpcall_service.api.metrics import Metrics
from warpcall_service.auth.rate_limits import Limits
from warpcall_service.auth.sync import AccountSync
from warpcall_service.calls import openapi as tensor_openapi
from warpcall_service.calls import tensor_routes
from warpcall_service.calls.run import Calls
from warpcall_service.calls.tensor_calls import PROGRAMS, TENSORS, TensorCalls
from warpcall_service.calls.tensor_registry import TensorRegistry
from warpcall_service.calls.upload import Uploads
from warpcall_service.formats.json_pool import JsonPool
from warpcall_service.gateway import CALLS, Gateway
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.problems import Internal, MethodNotAllowed, render
from warpcall_service.jobs import routes as job_routes
from warpcall_service.jobs.service import JobService
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.oip import routes as oip_routes
from warpcall_service.oip import shared_memory_routes
from warpcall_service.oip.infer import Inference, is_infer
from warpcall_service.oip.models import Models
from warpcall_service.oip.reader import InferReader
from warpcall_service.oip.shared_memory import SharedMemory
from warpcall_service.oip.statistics import Statistics
from warpcall_service.settings import Settings
from warpcall_service.store.database import StoreError

MAX_REASONS = 64  # that are remembered, so that nothing grows without end
REPEAT_LOG_S = 60.0  # between two lines of the log that say why the database cannot be used
SUMMARY = "GPU kernels as a service: tensors up, kernel, tensors back."

log = logging.getLogger("warpcall.store")


def create_app(
    settings: Settings,
    engine: LocalEngine,
    account_sync: AccountSync,
    job_service: JobService,
    json: JsonPool,
    stopping: Callable[[], bool],
) -> Gateway:
    """The ASGI application over an engine that was started.

    Args:
        account_sync: has the gate that everyone passes, and the usage_counter of what they use.
        job_service: takes benchmark jobs.
        json: reads and writes the JSON of calls.
        stopping: whether the server is about to leave, for /readyz.
    """
    limits = Limits(settings)
    tensors = TensorRegistry(settings, engine)
    metrics = Metrics(
        lambda: [
            *lane_metrics(engine),
            *tensors.metrics(),
            *job_service.scheduler.metrics(),
            *account_sync.metrics(),
            log_metric(),
        ]
    )
    app = FastAPI(
        title="Warpcall", summary=SUMMARY, version=_version(), docs_url=None, redoc_url=None
    )
    app.include_router(kernels.kernels(engine))
    app.include_router(kernels.me(settings, engine, limits))
    app.include_router(job_routes.jobs(job_service, stopping))
    app.include_router(tensor_routes.tensors(settings, tensors))
    app.include_router(kernels.health(engine, metrics, account_sync, stopping))
    models, statistics = Models(engine.catalog), Statistics()
    shared = SharedMemory(int(settings.user_max_shared_bytes))
    app.include_router(
        oip_routes.routes(
            settings,
            engine,
            models,
            statistics,
            app.version,
            lambda: stopping() or bool(account_sync.authenticator.keys_unusable),
        )
    )
    app.include_router(shared_memory_routes.routes(settings, shared))
    app.include_router(pages.pages(engine.catalog))
    plain = app.openapi
    described = functools.cache(
        lambda: openapi.describe(plain(), engine.catalog, tensor_openapi.PATHS)
    )
    app.openapi = described  # type: ignore[method-assign]  # as FastAPI documents it
    described()  # now: it takes 0.1 s, for which the first request for it would stop the event loop
    app.add_exception_handler(Problem, _problem_response)
    app.add_exception_handler(StoreError, _StoreErrors().respond)
    app.add_exception_handler(RequestValidationError, _validation_response)
    app.add_exception_handler(HTTPException, _routing_response)
    app.add_exception_handler(Exception, _internal_response)
    uploads = Uploads(settings, engine, json)
    calls = Calls(settings, engine, uploads)
    tensor_calls = TensorCalls(settings, engine, calls, tensors)
    reader = InferReader(settings, engine, uploads, shared)
    inference = Inference(settings, calls, models, reader, statistics)
    return Gateway(
        settings,
        app,
        calls,
        tensor_calls,
        inference,
        account_sync.authenticator,
        limits,
        account_sync.usage_counter,
        metrics,
    )


def lane_metrics(engine: LocalEngine) -> Iterable[Metric]:
    """The current state of every lane, as Prometheus metrics."""
    gauges = {
        "ready": "1 if the lane can take calls now, else 0",
        "queued": "Calls that wait in the lane's queue",
        "in_flight": "Calls that were sent to the lane's worker and are not answered yet",
        "plan_requests": "Plans and checks of jobs that the lane's worker has not answered yet",
        "arena_used": "Bytes of the lane's arena that are allocated to calls",
        "arena_free": "Bytes of the lane's arena that are free",
        "arena_waiting": "Requests that wait for memory in the lane's arena",
    }
    families = {
        name: GaugeMetricFamily(f"warpcall_lane_{name}", text, labels=["lane"])
        for name, text in gauges.items()
    }
    restarts = CounterMetricFamily(
        "warpcall_lane_restarts",
        "Worker processes that died or were killed, and were replaced, by lane",
        labels=["lane"],
    )
    for lane in engine.status():
        restarts.add_metric([lane.name], lane.restarts)
        for name, family in families.items():
            value = lane.state == "ready" if name == "ready" else getattr(lane, name)
            family.add_metric([lane.name], float(value))
    return [*families.values(), restarts]


def log_metric() -> Metric:
    """How many lines of the log could not be written."""
    family = CounterMetricFamily(
        "warpcall_log_lines_dropped",
        "Lines of the log that were dropped because it was not read, or its disk was full",
    )
    family.add_metric([], logs.dropped())
    return family


def _version() -> str:
    try:
        return version("warpcall-server")
    except PackageNotFoundError:  # run from its sources
        return "0"


async def _problem_response(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    exchange: Exchange = request.scope["state"]["exchange"]
    exchange.outcome = problem.code
    status, headers, body = render(problem, exchange.request_id, request.url.path)
    response = Response(body, status)
    response.raw_headers = headers
    return response


class _StoreErrors:
    """Answers requests that needed the database, and logs why, however many requests there are."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}  # by reason

    async def respond(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, StoreError)
        now = time.monotonic()
        if now - self._logged_at.get(error.reason, -math.inf) > REPEAT_LOG_S:
            if len(self._logged_at) >= MAX_REASONS:
                self._logged_at.clear()
            self._logged_at[error.reason] = now
            log.error("requests are answered with 503: %s", error.reason)
        return await _problem_response(request, error)


async def _validation_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fault: dict[str, Any] = dict(error.errors()[0])
    field = ".".join(map(str, fault["loc"][1:]))
    message = fault["msg"].removeprefix("Value error, ")
    return await _problem_response(
        request, InvalidInput(f"{field}: {message}, got {fault['input']!r:.60}", field=field)
    )


async def _routing_response(request: Request, error: Exception) -> Response:
    """What routing raises: no such path, or a path without such a method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        allowed = {*(error.headers or {}).get("Allow", "").split(", ")} - {""}
        if path.startswith(CALLS):
            allowed.add("POST")  # calls do not pass through the router
        elif path.startswith(TENSORS):
            allowed |= {"GET", "PUT"}  # nor do these
        return await _problem_response(
            request, MethodNotAllowed(request.method, ", ".join(sorted(allowed)))
        )
    if is_infer(path) or path == PROGRAMS:
        return await _problem_response(request, MethodNotAllowed(request.method, "POST"))
    return await _problem_response(
        request, NotFound(f"there is nothing at {path[:200]!r}", field="path")
    )


async def _internal_response(request: Request, error: Exception) -> Response:
    return await _problem_response(
        request, Internal()
    )  # Starlette raises the error again: Gateway logs it
