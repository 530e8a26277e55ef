"""The types of `GET /readyz`: whether calls can run now."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from warpcall._extras.tables import table_of_objects
from warpcall.jobs import Payload


@dataclass(frozen=True, kw_only=True)
class Lane(Payload):
    """A device of the server and its worker process."""

    name: str
    """Name of the device, such as "cuda:0"."""
    state: str
    """"ready" if it can run calls, otherwise as in Device."""
    reason: str
    """Why it is not ready; empty if it is."""
    device: str
    """Name for readers, such as "cuda:0 (NVIDIA H200)"; empty until it was ready once."""
    restarts: int
    """How often its process was replaced since the server started."""
    queued: int
    """Calls that wait for it."""
    in_flight: int
    """Calls that it runs, or that were sent ahead to its process."""


@dataclass(frozen=True, kw_only=True)
class Check(Payload):
    """A check of the running server. `warpcall-server doctor` and administrators see what it found."""

    name: str
    """"devices", "bubblewrap", "database", "shared-memory", "clock", "disk", "tls" or "keys"."""
    state: str
    """"ok", "warning" if the server works and its operator should look at it, or "failed"."""


@dataclass(frozen=True, kw_only=True)
class Health(Payload):
    """Whether calls can run now."""

    status: str
    """"ready" or "unready"."""
    reasons: list[str]
    """Why it is not ready; also what is wrong with single devices of a server that is ready."""
    uploads: str
    """"off", "sandboxed" or "trusted" as the server is set, or "unavailable:" and why the sandbox
    of uploaded code cannot be used."""
    lanes: list[Lane]
    """Its devices; empty while the server starts."""
    checks: list[Check] = field(default_factory=list)
    """Its checks, whose findings may be 30 s old; empty from older servers."""

    def _repr_html_(self) -> str:
        about = "; ".join((self.status, *self.reasons))
        table = table_of_objects(
            ("name", "state", "reason", "device", "queued", "in_flight"), self.lanes
        )
        return f"<p>{html.escape(about)}</p>{table or ''}"
