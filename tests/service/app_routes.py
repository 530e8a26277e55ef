"""The routes of the server's application, as it declares them, with those that OpenAPI leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import APIRoute

from warpcall_bench.monitors.service import MonitorService
from warpcall_bench.services import Services
from warpcall_bench.settings import BenchSettings
from warpcall_service.api.cluster_health import ClusterReport
from warpcall_service.app import create_app
from warpcall_service.auth.sync import AccountSync
from warpcall_service.auth.users import Snapshot
from warpcall_service.calls.values import ValueCalls
from warpcall_service.doctor.health import HealthReport
from warpcall_service.doctor.live import LiveChecks
from warpcall_service.extension import Core
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.nodes.membership import Membership
from warpcall_service.nodes.server_identity import ServerIdentity
from warpcall_service.store.database import Store


def app_routes(folder: Path) -> set[tuple[str, str]]:
    """Every method and path. Ops have no routes, because no lane is started.

    Args:
        folder: an empty one, for the database.
    """
    return asyncio.run(_routes(folder))


@dataclass(frozen=True, slots=True)
class Application:
    """The parts of a server that does not serve, and has started nothing."""

    store: Store
    monitors: MonitorService
    app: FastAPI


async def _routes(folder: Path) -> set[tuple[str, str]]:
    async with services(folder) as found:
        routes = [route for route in found.app.routes if isinstance(route, APIRoute)]
        return {(method, route.path) for route in routes for method in route.methods or ()}


@asynccontextmanager
async def services(folder: Path) -> AsyncIterator[Application]:
    """The parts of a server with an empty database in a folder."""
    settings = BenchSettings.load(data_dir=folder)
    store = Store(None, folder)
    store.migrate()
    engine = LocalEngine(settings)
    account_sync = AccountSync(store, Snapshot(), engine.quotas, settings.keys_max_age_s)
    identity = ServerIdentity.of(settings)
    membership = Membership(engine, store, identity, "http://127.0.0.1:8000", lambda: False)
    calls = ValueCalls(settings, engine)
    live = LiveChecks(settings, engine, store, account_sync, lambda: "off")
    own = HealthReport(settings, engine, live, lambda: "off")
    report = ClusterReport(store, membership, own, lambda session: {})
    platform = Services(
        Core(settings, engine, calls, store, account_sync, membership, lambda: False, report)
    )
    gateway = create_app(
        settings, engine, account_sync, membership, platform.parts(), lambda: False, live, report
    )
    app = gateway._app
    assert isinstance(app, FastAPI)
    try:
        yield Application(store, platform.monitors, app)
    finally:
        await platform.stop()
