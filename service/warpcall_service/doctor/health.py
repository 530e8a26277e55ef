"""How full this server is, and what went wrong on it: for administrators, and for other servers.

Each server writes its health with its heartbeats, so that any of them can show that of all.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from warpcall_service import logs
from warpcall_service.doctor.live import LiveChecks
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.status import LaneStatus
from warpcall_service.settings import Settings
from warpcall_service.store.times import moment

KEPT_S = 10.0  # for which the health in heartbeats is not computed again
MOST_USERS = 10  # with stored tensors
MAX_TEXT = 300  # characters of a finding


class HealthReport:
    """Reports the health of this server, as `warpcall.health.ServerHealth` has it.

    Attributes:
        tensor_bytes: returns the bytes of stored tensors by user.
        artefact_bytes: returns the bytes of artefacts in the data folder.
    """

    def __init__(
        self,
        settings: Settings,
        engine: LocalEngine,
        live: LiveChecks,
        uploads: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._live = live
        self._uploads = uploads
        self._kept: dict[str, Any] = {}
        self._kept_at = float("-inf")
        self.tensor_bytes: Callable[[], Mapping[str, int]] = dict
        self.artefact_bytes: Callable[[], int] = int

    def for_others(self) -> dict[str, Any]:
        """The health for heartbeats, at most KEPT_S old."""
        if time.monotonic() > self._kept_at + KEPT_S:
            self._kept, self._kept_at = self.now(), time.monotonic()
        return self._kept

    def now(self) -> dict[str, Any]:
        """The health at present. Findings may be some seconds older."""
        disk = self._live.disk
        most = sorted(self.tensor_bytes().items(), key=lambda item: -item[1])[:MOST_USERS]
        return {
            "uploads": self._uploads()[:MAX_TEXT],
            "data_dir": str(self._settings.data_dir),
            "disk_free_bytes": disk.free if disk else None,
            "disk_bytes": disk.total if disk else None,
            "artefact_bytes": self.artefact_bytes(),
            "devices": [_device(lane) for lane in self._engine.status()],
            "tensor_bytes": dict(most),
            "errors": [
                {"at": at, "logger": name, "message": message}
                for at, name, message in logs.recent_errors()
            ],
            "log_lines_dropped": logs.dropped(),
            "checks": [
                {**dataclasses.asdict(one), "text": one.text[:MAX_TEXT]}
                for one in self._live.latest()
                if one.state != "ok"
            ],
        }


def _device(lane: LaneStatus) -> dict[str, Any]:
    at = moment(lane.last_restart_ms) if lane.last_restart_ms else None
    return {
        "name": lane.name,
        "label": lane.device,
        "state": lane.state,
        "reason": lane.reason[:MAX_TEXT],
        "restarts": lane.restarts,
        "last_restart": lane.last_restart[:MAX_TEXT],
        "last_restart_at": at,
        "arena_used_bytes": lane.arena_used,
        "arena_bytes": lane.arena_used + lane.arena_free,
    }
