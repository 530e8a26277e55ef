"""The checks of a running server: /readyz names them and their states."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from warpcall_service.auth.sync import AccountSync
from warpcall_service.doctor import checks
from warpcall_service.findings import Finding
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.settings import Settings
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.threads import StoreThreads

KEPT_S = 30.0  # how long findings about files and the database are kept
SEVERITY = {"ok": 0, "warning": 1, "failed": 2}  # values of a metric, by the state of a finding
WAIT_S = 1.0  # for which a request waits for new ones
DEADLINE_S = (
    20.0  # of all checks together: a disk that hangs must not hold back the others' answers
)

log = logging.getLogger("warpcall.doctor")


class LiveChecks:
    """Runs those checks of `doctor` that say something of a server which runs.

    Files and the database are looked at in a thread, as their disks may hang, and at most once in
    KEPT_S, as everyone may ask.

    Args:
        uploads: returns whether uploaded code can run.

    Attributes:
        disk: the use of the data folder's disk, when it was looked at last; None if it cannot be read.
        database_bytes: size of the database then; None if it cannot be read.
        certificate_end_s: as `checks.certificate_end_s`.
    """

    def __init__(
        self,
        settings: Settings,
        engine: LocalEngine,
        store: Store,
        accounts: AccountSync,
        uploads: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._store = store
        self._accounts = accounts
        self._uploads = uploads
        self._threads = StoreThreads(store, 1)
        self.disk: checks.DiskUse | None = None
        self.database_bytes: int | None = None
        self.certificate_end_s: float | None = None
        self._found: list[Finding] = []
        self._checked_at = float("-inf")
        self._checking: asyncio.Task[None] | None = None

    async def findings(self) -> list[Finding]:
        """All findings. Those about files and the database may be KEPT_S old."""
        self._refresh()
        if self._checking is not None and not self._checking.done():
            await asyncio.wait((self._checking,), timeout=WAIT_S)
        return self._all()

    def latest(self) -> list[Finding]:
        """All findings, without waiting: begins to renew those that are older than KEPT_S."""
        self._refresh()
        return self._all()

    def metrics(self) -> Iterable[Metric]:
        """The checks, and the disk, database and certificate, as Prometheus metrics.

        A value that is not known, or does not exist, is absent.
        """
        found = GaugeMetricFamily(
            "warpcall_check_state",
            "What a check of the running server found: 0 if it is ok, 1 for a warning, 2 if it failed",
            labels=["check"],
        )
        for one in self.latest():
            found.add_metric([one.name], SEVERITY[one.state])
        gauges = {
            "warpcall_disk_free_bytes": (
                "Free bytes of the data folder's disk",
                self.disk and self.disk.free,
            ),
            "warpcall_disk_bytes": (
                "Bytes of the data folder's disk, used and free",
                self.disk and self.disk.total,
            ),
            "warpcall_database_bytes": (
                "Bytes of the database on its disk",
                self.database_bytes,
            ),
            "warpcall_certificate_end_seconds": (
                "End of the time of the certificate tls_cert, in seconds since 1970",
                self.certificate_end_s,
            ),
        }
        families = [found]
        for name, (text, value) in gauges.items():
            family = GaugeMetricFamily(name, text, labels=[])
            if value is not None:
                family.add_metric([], value)
            families.append(family)
        return families

    def _refresh(self) -> None:
        stale = time.monotonic() > self._checked_at + KEPT_S
        if stale and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._check())

    def _all(self) -> list[Finding]:
        return [self._devices(), self._sandbox(), self._database(), *self._found]

    def close(self) -> None:
        """End the thread, unless it is blocked."""
        self._threads.close()

    async def _check(self) -> None:
        try:
            self._found = await self._threads.call(self._look, DEADLINE_S)
        except StoreError:
            text = f"files and the database could not be checked within {DEADLINE_S:g} s"
            self._found = [Finding("disk", "failed", text, "look at the disk of the data folder")]
        except Exception:
            log.exception("the checks of the running server failed")
        self._checked_at = time.monotonic()

    def _look(self) -> list[Finding]:
        settings = self._settings
        self.disk = checks.disk_of(settings)
        self.database_bytes = self._database_nbytes()
        self.certificate_end_s = checks.certificate_end_s(settings)
        return [
            checks.check_shared_memory(settings),
            checks.check_clock(self._store),
            checks.check_disk(settings),
            checks.check_tls(settings),
            checks.check_roles(settings, self._accounts.keys),
        ]

    def _database_nbytes(self) -> int | None:
        try:
            return self._store.nbytes()
        except (StoreError, OSError):
            return None

    def _devices(self) -> Finding:
        lanes = self._engine.status()
        bad = [
            f"{lane.name}: {lane.state}, {lane.reason}" for lane in lanes if lane.state != "ready"
        ]
        if not bad:
            return Finding("devices", "ok", ", ".join(lane.device for lane in lanes))
        advice = "docs/failures.md says what to do for each state of a device"
        some = len(bad) < len(lanes)
        return Finding("devices", "warning" if some else "failed", "; ".join(bad), advice)

    def _sandbox(self) -> Finding:
        uploads = self._uploads()
        if uploads.startswith("unavailable:"):
            advice = "docs/settings.md, Uploaded code, says what forbids it and what to do"
            return Finding("bubblewrap", "failed", uploads, advice)
        return Finding("bubblewrap", "ok", f"uploads are {uploads}")

    def _database(self) -> Finding:
        if why := self._accounts.reasons():
            advice = "docs/failures.md says what to do for each cause"
            return Finding("database", "failed", "; ".join(why), advice)
        return Finding("database", "ok", self._store.label)
