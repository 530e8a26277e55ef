"""The types of `GET /readyz`: whether calls can run now."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from warpcall._extras.tables import table_of_objects
from warpcall.jobs import Payload
from warpcall.nodes import Node


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


@dataclass(frozen=True, kw_only=True)
class CheckFinding(Payload):
    """What a check of a server found, for its operator."""

    name: str
    """Name of the check, as in Check."""
    state: str
    """"ok", "warning" or "failed"."""
    text: str
    """What it found."""
    advice: str
    """What to do; empty if there is nothing to do."""


@dataclass(frozen=True, kw_only=True)
class DeviceHealth(Payload):
    """A device of a server, for its operator."""

    name: str
    """Name of the device, such as "cuda:0"."""
    label: str
    """Name for readers, such as "cuda:0 (NVIDIA H200)"; empty until it was ready once."""
    state: str
    """"ready" if it can run calls, otherwise as in Device."""
    reason: str
    """Why it is not ready; empty if it is."""
    restarts: int
    """How often its process was replaced since the server started."""
    last_restart: str
    """Why its process was replaced last; empty if it was not."""
    last_restart_at: str | None
    """When that was; null if it was not."""
    arena_used_bytes: int
    """Bytes of its arena that are allocated to calls."""
    arena_bytes: int
    """Bytes of its arena."""


@dataclass(frozen=True, kw_only=True)
class LoggedError(Payload):
    """A line of a server's log, of the level error."""

    at: str
    """When it was written."""
    logger: str
    """Part of the server that wrote it."""
    message: str
    """The message, at most 200 characters of it."""


@dataclass(frozen=True, kw_only=True)
class ServerHealth(Payload):
    """How full one server is, and what went wrong on it. That of others may be 15 s old."""

    uploads: str
    """As in Health."""
    data_dir: str
    """Its data folder."""
    disk_free_bytes: int | None
    """Free bytes of the disk of the data folder; null if they cannot be read."""
    disk_bytes: int | None
    """Bytes of that disk; null likewise."""
    artefact_bytes: int
    """Bytes of artefacts in the data folder, as of the last ten minutes."""
    devices: list[DeviceHealth]
    """Its devices."""
    tensor_bytes: dict[str, int]
    """Bytes of stored tensors by user, of the ten users with most."""
    errors: list[LoggedError]
    """The last five errors in its log, the newest one first."""
    log_lines_dropped: int
    """Lines of the log that could not be written since it started."""
    checks: list[CheckFinding]
    """Its checks that are not "ok"."""


@dataclass(frozen=True, kw_only=True)
class ClusterHealth(Payload):
    """How full the servers that share a database are, for administrators."""

    database: str
    """The database, without its password."""
    database_bytes: int | None
    """Its size; null if it cannot be read."""
    schema: str | None
    """Its schema; null if it cannot be read."""
    jobs: dict[str, int]
    """Number of jobs that are "queued" or "running", and that "failed today" (UTC)."""
    nodes: list[Node]
    """The servers, as in NodeList."""
    servers: dict[str, ServerHealth]
    """Their health by id; without those that have left, and servers of older versions."""
