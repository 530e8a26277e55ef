"""Puts the parts of the application together, starts them, and stops them in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from warpcall_service.api.cluster_health import ClusterReport
from warpcall_service.api.devices import for_heartbeat
from warpcall_service.app import create_app
from warpcall_service.auth.sync import AccountSync
from warpcall_service.auth.users import Snapshot
from warpcall_service.calls.values import ValueCalls
from warpcall_service.doctor.health import HealthReport
from warpcall_service.doctor.live import LiveChecks
from warpcall_service.extension import Core, Extension, Parts
from warpcall_service.gateway import Gateway
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.nodes.membership import Membership
from warpcall_service.nodes.server_identity import ServerIdentity
from warpcall_service.settings import Settings
from warpcall_service.store.database import Store
from warpcall_service.tracing.wanted import open_traces


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
    extension: Extension | None,
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
        extension: None for a server that only serves calls.
        supervised: whether a supervisor started this server.
    """
    account_sync = AccountSync(
        store, keys, engine.quotas, settings.keys_max_age_s, *_folders(extension)
    )
    engine.on_unanswered = account_sync.add_device_time
    membership = Membership(engine, store, identity, url, stopping, supervised=supervised)
    calls = ValueCalls(settings, engine)
    parts = Parts()
    live = LiveChecks(settings, engine, store, account_sync, lambda: parts.uploads())
    own = HealthReport(settings, engine, live, lambda: parts.uploads())
    own.artefact_bytes = lambda: parts.artefact_bytes()
    report = ClusterReport(store, membership, own, lambda session: parts.count_jobs(session))
    traces = open_traces(identity.id, account_sync.authenticator.link_folders)
    core = Core(settings, engine, calls, store, account_sync, membership, stopping, report, traces)
    async with AsyncExitStack() as stops:
        if traces is not None:
            stops.push_async_callback(traces.close)
        stops.push_async_callback(account_sync.stop)
        stops.push_async_callback(engine.stop)
        account_sync.start()
        stops.push_async_callback(membership.stop)
        await membership.start()
        stops.callback(live.close)
        stops.callback(report.close)
        if extension is None:
            stops.callback(identity.release)
        else:  # it releases the identity when no process of a job is left
            parts = await stops.enter_async_context(extension.running(core))
        gateway = create_app(
            *(settings, engine, account_sync, membership, parts, stopping, live, report),
            traces,
        )
        membership.report = own.for_others
        membership.devices = lambda: for_heartbeat(engine)
        yield Application(gateway, account_sync, membership)


def _folders(extension: Extension | None) -> tuple[tuple[str, ...], ...]:
    """The paths of an extension that need no key, as `AccountSync` takes them."""
    if extension is None:
        return ()
    return extension.open_folders, extension.link_folders, extension.public_folders
