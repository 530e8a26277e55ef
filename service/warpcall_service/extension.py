"""The interface to the server's one extension, which is the benchmark platform.

The core serves calls and works without an extension. It names the extension only here. A running
server offers its extension a `Core`, and gets `Parts` from it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import typer
    from fastapi import APIRouter, Request, Response
    from prometheus_client.core import Metric
    from sqlalchemy.orm import Session
    from starlette.types import Scope

    from warpcall.devices import Device
    from warpcall.errors import Problem
    from warpcall.health import ClusterHealth
    from warpcall.nodes import Node, NodeList
    from warpcall.wire import TensorInfo
    from warpcall_service.findings import Finding
    from warpcall_service.formats.params import Params
    from warpcall_service.http.exchange import Exchange
    from warpcall_service.lanes.activity import Activity
    from warpcall_service.lanes.device_lease import DeviceLease
    from warpcall_service.lanes.messages import Hello
    from warpcall_service.lanes.status import LaneStatus, State
    from warpcall_service.nodes.server_identity import ServerIdentity
    from warpcall_service.quotas import Quotas, Use
    from warpcall_service.settings import Settings
    from warpcall_service.store.database import Store

MODULE = "warpcall_bench.extension"  # with the `Extension` as EXTENSION

T = TypeVar("T")


class DeviceLane(Protocol):
    """A device and its worker process; implemented by `lanes.lane.Lane`, which says more."""

    name: str
    state: State
    hello: Hello
    activity: Activity
    device_lease: DeviceLease

    @property
    def warming(self) -> str: ...
    def status(self) -> LaneStatus: ...
    async def close(self, state: State, reason: str) -> None: ...


class Engine(Protocol):
    """The lanes of this server; implemented by `lanes.engine.LocalEngine`."""

    catalog: list[dict[str, Any]]

    @property
    def all_lanes(self) -> Sequence[DeviceLane]: ...
    async def request_plan(self, request: bytes, what: str) -> dict[str, Any]: ...


class Calls(Protocol):
    """Runs single calls; implemented by `calls.values.ValueCalls`."""

    async def run_values(
        self,
        exchange: Exchange,
        op: str,
        inputs: Sequence[tuple[TensorInfo, memoryview]],
        params: Params,
        most_output_nbytes: int,
    ) -> tuple[Sequence[TensorInfo], bytes, str]: ...


class Accounts(Protocol):
    """Users, their keys and quotas; implemented by `auth.sync.AccountSync`."""

    quotas: Quotas

    async def change(self, function: Callable[[Session], T]) -> T: ...
    def count_wrong_link(self, exchange: Exchange) -> None: ...
    def add_device_time(self, user: str, op: str, seconds: float) -> None: ...


class Nodes(Protocol):
    """The servers that share the database; implemented by `nodes.membership.Membership`."""

    id: str
    identity: ServerIdentity

    @property
    def is_shared(self) -> bool: ...
    @property
    def is_draining(self) -> bool: ...
    def nodes(self) -> NodeList: ...
    def remote_devices(self) -> list[Device]: ...
    def other(self, node_id: str) -> Node | None: ...
    async def await_others(self, node_ids: Iterable[str]) -> None: ...
    def open_lanes(self) -> int: ...


class Report(Protocol):
    """The health of all servers; implemented by `api.cluster_health.ClusterReport`."""

    async def read(self) -> ClusterHealth: ...


class TraceSpan(Protocol):
    """A part of a trace; implemented by `tracing.tracer.OpenSpan`. Times are nanoseconds since 1970."""

    def child(self, name: str, began_ns: int) -> TraceSpan: ...
    def rename(self, name: str) -> None: ...
    def end(
        self,
        ended_ns: int,
        attributes: Mapping[str, str | int | float | bool] | None = None,
        error: str = "",
    ) -> None: ...


class Traces(Protocol):
    """Makes traces; implemented by `tracing.traces.ServerTraces`."""

    def traceparent(self, exchange: Exchange) -> str: ...
    def begin_run(self, name: str, began_ns: int, link: str) -> TraceSpan | None: ...


@dataclass(frozen=True)
class Core:
    """What a running server offers its extension.

    Attributes:
        settings: of the extension's class.
        stopping: returns whether the server is about to stop.
        traces: None if the server makes none.
    """

    settings: Settings
    engine: Engine
    calls: Calls
    store: Store
    accounts: Accounts
    nodes: Nodes
    stopping: Callable[[], bool]
    report: Report
    traces: Traces | None = None


@dataclass(frozen=True)
class Parts:
    """What an extension adds to a running server. Without arguments it adds nothing.

    Attributes:
        routers: its routes.
        schemas: models and dataclasses that operations refer to by name in `openapi_extra`.
        webhooks: of OpenAPI: the requests that the server sends, by name.
        metrics: returns its metrics at each scrape.
        uploads: returns whether uploaded code can run, for `/readyz`, as `warpcall.health` has it.
        count_jobs: returns how many jobs are "queued", "running", and "failed today".
        quota_use: returns what the database knows of the use of quotas, of one user or, for None, of
            all.
        artefact_bytes: returns the bytes of artefacts in this server's data folder.
        problem_page: returns a problem as a page; None for requests that do not want pages.
        login_location: returns where a browser that needs a session for a request gets one; None
            for all other requests.
    """

    routers: Sequence[APIRouter] = ()
    schemas: Sequence[type[Any]] = ()
    webhooks: Mapping[str, Any] = field(default_factory=dict)
    metrics: Callable[[], Iterable[Metric]] = tuple
    uploads: Callable[[], str] = lambda: "off"
    count_jobs: Callable[[Session], dict[str, int]] = lambda _: {}
    quota_use: Callable[[Session, str | None], Use] = lambda *_: {}
    artefact_bytes: Callable[[], int] = int
    problem_page: Callable[[Request, Problem, str], Response | None] = lambda *_: None
    login_location: Callable[[Scope, Problem], str | None] = lambda *_: None


@dataclass(frozen=True)
class Extension:
    """What an extension is before a server runs.

    Attributes:
        settings: returns the class of its settings, which has those of the core as well.
        open_folders: paths below these need no key.
        link_folders: paths below these go on with the token of a share link in place of a key.
        public_folders: these paths, and those below them, need no key, and know the caller if there
            is one.
        plan_requests: the requests that the planning thread of a worker answers for the extension:
            by name the function as `module:function`, which gets the request and the device's name.
        add_commands: adds commands to `warpcall-server`.
        checks: finds for `warpcall-server doctor` whether this machine has what the extension needs.
        data_folders: folders in the data folder whose files belong to a backup.
        preload: loads, in a thread, what the first requests would wait for.
        running: starts the extension, and stops it in the end.
    """

    settings: Callable[[], type[Settings]]
    open_folders: tuple[str, ...]
    link_folders: tuple[str, ...]
    public_folders: tuple[str, ...]
    plan_requests: Mapping[str, str]
    add_commands: Callable[[typer.Typer], None]
    checks: Callable[[Settings], list[Finding]]
    data_folders: tuple[str, ...]
    preload: Callable[[], None]
    running: Callable[[Core], AbstractAsyncContextManager[Parts]]


def load() -> Extension | None:
    """The extension; None if it is not installed."""
    package = MODULE.rpartition(".")[0]
    try:
        found: Extension = importlib.import_module(MODULE).EXTENSION
    except ModuleNotFoundError as error:
        if error.name not in (MODULE, package):
            raise
        return None
    return found


def load_settings(**overrides: Any) -> Settings:
    """Read the settings of the core and, if it is installed, of the extension.

    Args:
        overrides: settings that take precedence over the environment's.

    Raises:
        SettingsError: a variable is misspelt, or a value is out of range.
    """
    from warpcall_service.settings import Settings  # not above: workers need none

    found = load()
    return (Settings if found is None else found.settings()).load(**overrides)
