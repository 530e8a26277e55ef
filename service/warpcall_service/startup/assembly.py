"""Puts the parts of the application together, starts them, and stops them in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from warpcall_service.app import create_app
from warpcall_service.artefacts.service import Artefacts
from warpcall_service.auth.sync import AccountSync
from warpcall_service.auth.users import Snapshot
from warpcall_service.compile_reports.service import CompileReports
from warpcall_service.gateway import Gateway
from warpcall_service.jobs.service import JobService
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.monitors.service import MonitorService
from warpcall_service.nodes.membership import Membership
from warpcall_service.nodes.server_identity import ServerIdentity
from warpcall_service.runs.operator_modules import OperatorModules
from warpcall_service.runs.sandbox import Sandbox
from warpcall_service.settings import Settings
from warpcall_service.store.database import Store
from warpcall_service.uploads.checks import Checks
from warpcall_service.uploads.problems import ProblemService
from warpcall_service.uploads.service import ImplementationService


@dataclass(frozen=True)
class Application:
    """The application while it runs.

    Attributes:
        gateway: the ASGI application.
        accounts: has the authenticator of requests, and the counter of usage.
        nodes: the servers that share the database.
    """

    gateway: Gateway
    accounts: AccountSync
    nodes: Membership


@asynccontextmanager
async def application(
    settings: Settings,
    engine: LocalEngine,
    store: Store,
    keys: Snapshot,
    identity: ServerIdentity,
    url: str,
    stopping: Callable[[], bool],
    *,
    supervised: bool = False,
) -> AsyncIterator[Application]:
    """Start the application, and stop it in the end, also the engine.

    Args:
        engine: was started.
        store: was migrated.
        keys: that it has.
        identity: of this server among those that share the database.
        url: at which other servers can reach this one.
        stopping: returns whether the server is about to stop.
        supervised: whether a supervisor started this server.
    """
    account_sync = AccountSync(store, keys, settings.keys_max_age_s)
    account_sync.start()
    modules = OperatorModules(settings)
    modules.start()
    sandbox = Sandbox(settings)
    watching = asyncio.create_task(sandbox.watch())
    checks = Checks(settings)
    usage = account_sync.usage_counter
    membership = Membership(engine, store, identity, url, stopping, supervised=supervised)
    artefacts = Artefacts(settings, store, membership)
    job_service = JobService(
        settings, engine, store, modules, sandbox, checks, usage, membership, artefacts
    )
    job_service.start()
    artefacts.start()
    await membership.start()
    monitors = MonitorService(settings, job_service)
    monitors.start()
    implementations = ImplementationService(settings, engine, store, modules, sandbox, checks)
    problems = ProblemService(settings, store, checks, sandbox)
    reports = CompileReports(settings, engine, store, sandbox, checks)
    try:
        gateway = create_app(
            settings,
            engine,
            account_sync,
            job_service,
            implementations,
            problems,
            checks,
            reports,
            sandbox,
            membership,
            artefacts,
            monitors,
            stopping,
        )
        yield Application(gateway, account_sync, membership)
    finally:
        watching.cancel()
        await asyncio.wait((watching,))
        implementations.close()
        problems.close()
        await monitors.stop()
        reports.close()
        await job_service.stop()
        await artefacts.stop()
        await membership.stop()
        await modules.stop()
        await engine.stop()
        await account_sync.stop()
