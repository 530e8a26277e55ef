"""The page `/admin/health`: what is wrong, and how full the servers are."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from warpcall.health import ClusterHealth, ServerHealth
from warpcall.nodes import Node
from warpcall_bench.forms.admin import require_admin
from warpcall_bench.pages.shown import Servers
from warpcall_bench.pages.view import View, page, render
from warpcall_service.extension import Report
from warpcall_service.http.caller import CurrentCaller

LEVELS = {"failed": "failed", "warning": "partial"}  # of badges, by the state of a check
NODE_LEVELS = {"alive": "succeeded", "draining": "partial", "stopped": "unknown", "gone": "failed"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """A check that is not well.

    Attributes:
        level: of its badge.
        host: names the server for readers.
    """

    name: str
    state: str
    level: str
    text: str
    advice: str
    host: str


@dataclass(frozen=True, slots=True)
class Server:
    """A server; its health is None if it is not known. `host` names it for readers."""

    node: Node
    host: str
    level: str
    health: ServerHealth | None


@dataclass(frozen=True, slots=True)
class HealthShown:
    """What the page shows."""

    troubles: list[Trouble]
    database: str
    database_bytes: int | None
    schema: str | None
    jobs: dict[str, int]
    servers: list[Server]

    @classmethod
    def of(cls, health: ClusterHealth) -> HealthShown:
        """The health of the servers: failed checks first, servers that run first."""
        hosts = Servers("", health.nodes).hosts
        troubles = [
            Trouble(one.name, one.state, LEVELS[one.state], one.text, one.advice, hosts[node.id])
            for node in health.nodes
            if node.id in health.servers
            for one in health.servers[node.id].checks
            if one.state in LEVELS
        ]
        servers = [
            Server(node, hosts[node.id], NODE_LEVELS[node.state], health.servers.get(node.id))
            for node in health.nodes
        ]
        return cls(
            troubles=sorted(troubles, key=lambda one: one.state),
            database=health.database,
            database_bytes=health.database_bytes,
            schema=health.schema,
            jobs=health.jobs,
            servers=sorted(servers, key=lambda one: (one.health is None, one.host)),
        )


def routes(report: Report) -> APIRouter:
    """The page, for administrators only."""
    router = APIRouter(include_in_schema=False)

    @router.get("/admin/health")
    async def show(request: Request, caller: CurrentCaller) -> Response:
        require_admin(request, caller)
        shown = HealthShown.of(await report.read())
        return page(request, render("health.html", View.of(request), health=shown))

    return router
