"""The route with the health of all servers, for administrators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fastapi import Response
from sqlalchemy.orm import Session

from warpcall.health import ClusterHealth, ServerHealth
from warpcall_service.doctor.health import HealthReport
from warpcall_service.formats.payloads import answered, checked
from warpcall_service.http.caller import needs
from warpcall_service.http.router import Router
from warpcall_service.nodes.membership import Membership
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.threads import StoreThreads

DEADLINE_S = 5.0  # of the questions to the database; the rest is shown without them

Jobs = Callable[[Session], dict[str, int]]


class ClusterReport:
    """Gathers the health of all servers.

    Args:
        jobs: counts jobs by what administrators want to know.

    Attributes:
        own: of this server.
    """

    def __init__(self, store: Store, membership: Membership, own: HealthReport, jobs: Jobs) -> None:
        self._store = store
        self._threads = StoreThreads(store, 1)
        self._membership = membership
        self.own = own
        self._jobs = jobs

    async def read(self) -> ClusterHealth:
        """The health at present. What the database does not answer is left out."""
        nbytes: int | None = None
        schema: str | None = None
        jobs: dict[str, int] = {}
        with contextlib.suppress(StoreError):
            nbytes, schema, jobs = await self._threads.call(self._ask, DEADLINE_S)
        written = {**self._membership.reports(), self._membership.id: self.own.now()}
        servers = {}
        for name, fields in written.items():
            with contextlib.suppress(ValueError):  # of another version
                servers[name] = checked(ServerHealth, fields)
        return ClusterHealth(
            database=self._store.label,
            database_bytes=nbytes,
            schema=schema,
            jobs=jobs,
            nodes=self._membership.nodes().nodes,
            servers=servers,
        )

    def close(self) -> None:
        """End the thread, unless it is blocked."""
        self._threads.close()

    def _ask(self) -> tuple[int, str | None, dict[str, int]]:
        with self._store.read() as session:
            jobs = self._jobs(session)
        return self._store.nbytes(), self._store.revision(), jobs


def cluster_health(report: ClusterReport) -> Router:
    """The route."""
    router = Router(prefix="/v1/health", tags=["health"])

    @router.get("", response_model=ClusterHealth, **needs("admin"))
    async def read_health() -> Response:
        """How full the servers that share a database are, and what went wrong on each."""
        return answered(await report.read())

    return router
