"""The types of the nodes API: the servers that share a database.

The SDK returns these types, and the server builds its answers and its OpenAPI from them: this
module is the only list of their fields. Times of day are texts as in RFC 3339, UTC.

A client ignores fields that it does not know, so a newer server may send more than a class has
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from warpcall._extras.tables import table_of_objects
from warpcall.jobs import Payload

NodeState = Literal["alive", "draining", "stopped", "gone"]
"""Whether a server runs, is about to stop, has stopped in good order, or writes no heartbeats."""


@dataclass(frozen=True, kw_only=True)
class NodeLane(Payload):
    """A device of a node and its worker process."""

    name: str
    """Name of the lane, such as "cuda:0"."""
    state: str
    """"ready" if it can run calls."""
    model: str | None
    """Model of the GPU, such as "NVIDIA H200", or of the CPU; null until the worker has started."""
    driver: str | None
    """Version of the GPU's driver; null for a CPU."""
    environment: str | None
    """Class of the machine and its software, as jobs have it; null until the worker has started."""


@dataclass(frozen=True, kw_only=True)
class Node(Payload):
    """One of the servers that share a database."""

    id: str
    """Name of the server among the others; it stays the same when the server restarts."""
    url: str
    """Address at which callers and the other servers reach it."""
    host: str
    """Host name of its machine."""
    state: NodeState
    """Whether it runs."""
    started_at: str
    """When it started."""
    beat_at: str
    """When it wrote its last heartbeat."""
    gone_since: str | None
    """When it stopped, or wrote its last heartbeat if it is gone; null while it runs."""
    version: str
    """Version of the server."""
    versions: dict[str, str | None]
    """Versions of "python", "torch", "triton" and "cuda"; null for what it does not have."""
    ops_sha256: str | None
    """Hash of the source of its ops; null until a worker has started."""
    lanes: list[NodeLane]
    """Its devices."""


@dataclass(frozen=True, kw_only=True)
class NodeList(Payload):
    """The servers that share a database with the one that answers, and that one."""

    node: str
    """Id of the server that answers."""
    read_s_ago: float
    """Seconds since it read the others from the database; it reads them every second."""
    nodes: list[Node]
    """The servers, in the order in which they started."""

    def _repr_html_(self) -> str | None:
        return table_of_objects(("id", "host", "state", "url", "version", "gone_since"), self.nodes)
