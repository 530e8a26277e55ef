"""The application: every route and handler, built over one engine, behind the gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from warpcall import __version__
from warpcall_service.api import devices, errors, health, install, kernels, me, openapi
from warpcall_service.api.cluster_health import ClusterReport, cluster_health
from warpcall_service.api.metrics import Metrics, device_metrics, lane_metrics, log_metric
from warpcall_service.api.openapi_route import openapi_json
from warpcall_service.auth import quota_routes, session_routes
from warpcall_service.auth.rate_limits import Limits
from warpcall_service.auth.sync import AccountSync
from warpcall_service.calls import tensor_routes
from warpcall_service.calls.quick import QuickCalls
from warpcall_service.calls.run import CallRunner
from warpcall_service.calls.tensor_calls import TensorCalls
from warpcall_service.calls.tensor_nodes import TensorNodes
from warpcall_service.calls.tensor_registry import TensorRegistry
from warpcall_service.calls.upload import Uploads
from warpcall_service.doctor.live import LiveChecks
from warpcall_service.extension import Parts
from warpcall_service.gateway import Gateway
from warpcall_service.http.access_log import Answered, log_request
from warpcall_service.http.direct_routes import DirectRoutes
from warpcall_service.http.router import Router
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.nodes import routes as node_routes
from warpcall_service.nodes.membership import Membership
from warpcall_service.oip import routes as oip_routes
from warpcall_service.oip import shared_memory_routes
from warpcall_service.oip.infer import Inference
from warpcall_service.oip.models import Models
from warpcall_service.oip.reader import InferReader
from warpcall_service.oip.repeats import Repeats
from warpcall_service.oip.shared_memory import SharedMemory
from warpcall_service.oip.statistics import Statistics
from warpcall_service.settings import Settings

if TYPE_CHECKING:
    from warpcall_service.tracing.traces import ServerTraces

SUMMARY = "GPU kernels as a service: tensors up, kernel, tensors back."


def create_app(
    settings: Settings,
    engine: LocalEngine,
    account_sync: AccountSync,
    membership: Membership,
    parts: Parts,
    stopping: Callable[[], bool],
    live: LiveChecks,
    report: ClusterReport,
    traces: ServerTraces | None = None,
) -> Gateway:
    """Build the ASGI application over an engine that was started.

    Args:
        account_sync: has the authenticator of requests, and the counter of usage.
        membership: knows the servers that share the database.
        parts: what the extension adds.
        stopping: returns whether the server is stopping; /readyz is then 503.
        live: the checks that /readyz names.
        report: gathers the health of all servers.
        traces: makes the spans of requests; None makes none.
    """
    quotas = engine.quotas
    limits = Limits(quotas)
    tensors = TensorRegistry(settings, engine, TensorNodes(membership))
    report.own.tensor_bytes = tensors.nbytes_by_user
    quotas.counters |= {
        "user_max_requests": limits.in_flight,
        "user_max_bytes": engine.nbytes_of,
        "tensor_user_bytes": tensors.nbytes_of,
        "tensor_user_count": tensors.count_of,
    }
    metrics = Metrics(
        lambda: [
            *lane_metrics(engine),
            *device_metrics(engine),
            *tensors.metrics(),
            *parts.metrics(),
            *membership.metrics(),
            *account_sync.metrics(),
            *live.metrics(),
            log_metric(),
            *(() if traces is None else traces.metrics()),
        ]
    )
    uploads = Uploads(settings, engine)
    usage_counter, authenticator = account_sync.usage_counter, account_sync.authenticator

    def record(request: Answered, seconds: float) -> None:
        metrics.record_request(request, seconds)
        usage_counter.record(request)
        log_request(request, seconds, authenticator.link_folders)
        if traces is not None:
            traces.record(request, seconds)

    quick = QuickCalls(settings, engine, authenticator, limits, record)
    calls = CallRunner(settings, engine, uploads, quick)
    tensor_calls = TensorCalls(settings, engine, calls, tensors)
    models, statistics = Models(engine.catalog), Statistics()
    shared = SharedMemory(int(settings.user_max_shared_bytes))
    reader = InferReader(settings, engine, uploads, shared)
    repeats = Repeats(shared, statistics)
    inference = Inference(settings, calls, models, reader, statistics, repeats)
    direct = DirectRoutes()
    app = FastAPI(
        title="Warpcall",
        summary=SUMMARY,
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # `traces` has a span of every request. FastAPI would make a second one of those that it serves.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    answers: list[type[Any]] = []
    for router in (
        kernels.kernels(engine),
        kernels.ops(),
        devices.devices(engine, membership),
        install.install(),
        me.me(engine, limits),
        quota_routes.routes(account_sync, parts.quota_use),
        cluster_health(report),
        node_routes.nodes(membership),
        session_routes.sessions_of(settings, account_sync),
        *parts.routers,
        tensor_routes.calls(engine.catalog, calls, tensor_calls, direct),
        tensor_routes.tensors(tensors, tensor_calls, direct),
        health.health(engine, metrics, account_sync, parts.uploads, stopping, live),
        oip_routes.routes(
            settings,
            engine,
            models,
            statistics,
            app.version,
            inference,
            direct,
            lambda: stopping() or bool(authenticator.keys_unusable),
        ),
        shared_memory_routes.routes(settings, shared),
    ):
        # `include_router` would make each route a second time, when the first request arrives: half a
        # second in which the event loop does nothing else. The routers have their prefix and their tags.
        app.router.routes.extend(router.routes)
        answers.extend(router.models if isinstance(router, Router) else ())
    errors.add_handlers(app, parts.problem_page)
    app.add_route(
        "/openapi.json",
        openapi_json(lambda: openapi.describe(app.openapi(), authenticator, answers, parts)),
    )
    return Gateway(
        settings,
        app,
        direct,
        authenticator,
        limits,
        record,
        parts.login_location,
    )
