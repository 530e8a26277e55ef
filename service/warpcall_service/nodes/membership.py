"""This server among the servers that share its database: its heartbeats, and who the others are.

Each server that may share its database writes a heartbeat every second, and reads those of the others with it. A
server without a heartbeat for GONE_S is gone. The times are compared by the database's clock. While
the database fails, what was read last stays, and the answer says how old it is.

A SQLite database belongs to one machine, and only servers below one supervisor share it. A server
of its own with SQLite lists only itself. It writes nothing, since a write each second would wake the
disk of a machine that is not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import platform
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from warpcall import __version__
from warpcall.devices import Device
from warpcall.nodes import Node, NodeList, NodeState
from warpcall_service.formats.payloads import checked
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.status import CLOSED
from warpcall_service.nodes import registry
from warpcall_service.nodes.registry import Beat
from warpcall_service.nodes.remote_devices import RemoteDevices
from warpcall_service.nodes.server_identity import IdentityUnavailable, ServerIdentity
from warpcall_service.nodes.tables import HOST_LENGTH, NodeRow
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.threads import StoreThreads
from warpcall_service.store.times import moment, now_ms

BEAT_S = 1.0  # between two heartbeats
GONE_S = 5.0  # without a heartbeat, after which a server is gone
DEADLINE_S = 5.0  # of one heartbeat
END_S = 2.0  # of the last write, when the server stops
NEWS_S = 3.0  # for which requests, and the start, wait for the next heartbeat
MAX_ABSENT = 1000  # ids that no server has, after which all are forgotten
STATES: tuple[NodeState, ...] = ("alive", "draining", "stopped", "gone")

log = logging.getLogger("warpcall.nodes")


class Membership:
    """What this server knows of the servers that share its database.

    Args:
        identity: gives the server's id. If another server has the data folder, the id is random.
        url: at which the others reach this server.
        is_stopping: returns whether this server is about to stop.
        supervised: whether other servers of the same supervisor share the database.

    Attributes:
        identity: of this server.
        host: name of this server's machine.
        devices: returns this server's devices for the others, as `remote_devices.written`; set
            before it is known.
        report: returns the health of this server, for the others; set before it is known.
        id: of this server, for the whole life of its process.
    """

    def __init__(
        self,
        engine: LocalEngine,
        store: Store,
        identity: ServerIdentity,
        url: str,
        is_stopping: Callable[[], bool],
        *,
        supervised: bool = False,
    ) -> None:
        self.identity = identity
        self.report: Callable[[], dict[str, Any]] | None = None
        self.devices: Callable[[], list[dict[str, Any]]] | None = None
        self._reports: dict[str, dict[str, Any]] = {}
        self._remote = RemoteDevices()
        try:
            self.id = identity.acquire()
        except IdentityUnavailable:  # the scheduler says so in the log
            self.id = secrets.token_hex(8)
        self._engine = engine
        self._url = url
        self.host = socket.gethostname()[:HOST_LENGTH]
        self._is_stopping = is_stopping
        self._threads = StoreThreads(store, 1) if supervised or store.path is None else None
        self._others: dict[str, Node] = {}
        self._absent: set[str] = set()  # ids that requests named, and that no server had
        self._read_at = time.monotonic()
        self._was_read = asyncio.Condition()
        self._started_ms = self._beat_ms = now_ms()
        self._registered = False
        self._drained = False
        self._trouble = ""
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to write heartbeats, and wait for the first one, at most NEWS_S.

        Callers give others the addresses of a server and of its tensors as soon as they know them.
        The others must find it in the database then.
        """
        if self._threads is not None:
            self._beating = asyncio.create_task(self._beat_for_ever(self._threads))
            await self._await_heartbeat()

    async def stop(self) -> None:
        """Write that this server leaves, within END_S."""
        if self._beating is None or self._threads is None:
            return
        self._beating.cancel()
        await asyncio.wait((self._beating,))
        with contextlib.suppress(StoreError):  # the others see that it is gone, GONE_S later
            await self._threads.write(
                lambda session: registry.write_end(session, self.id), deadline_s=END_S
            )
        self._threads.close()

    def nodes(self) -> NodeList:
        """All servers, this one included."""
        found = [*self._others.values(), self._own()]
        return NodeList(
            node=self.id,
            read_s_ago=0.0 if self._threads is None else time.monotonic() - self._read_at,
            nodes=sorted(found, key=_age),
        )

    def remote_devices(self) -> list[Device]:
        """The devices of the other servers that run, in the order in which these started."""
        return [
            device
            for node in sorted(self._others.values(), key=_age)
            if node.gone_since is None
            for device in self._remote.of(node.id)
        ]

    def reports(self) -> dict[str, dict[str, Any]]:
        """The health of the other servers that run, by id, as they wrote it."""
        return {
            name: self._reports[name]
            for name, node in self._others.items()
            if node.gone_since is None and name in self._reports
        }

    @property
    def is_draining(self) -> bool:
        """Whether this server takes no more jobs: it is drained, or about to stop."""
        return self._drained or self._is_stopping()

    @property
    def is_shared(self) -> bool:
        """Whether other servers can share the database."""
        return self._threads is not None

    def other(self, node_id: str) -> Node | None:
        """Another server, as it was read last; None if there is none with this id."""
        return self._others.get(node_id)

    async def await_others(self, node_ids: Iterable[str]) -> None:
        """Wait for the next heartbeat, at most NEWS_S, if one of these servers is not known.

        The others know a server BEAT_S after it has started, and it takes requests before. For a
        server that has left long ago only the first request waits.
        """
        missing = {one for one in node_ids if one != self.id and one not in self._others}
        missing -= self._absent
        if self._threads is None or not missing:
            return
        if await self._await_heartbeat():
            if len(self._absent) >= MAX_ABSENT:
                self._absent.clear()
            self._absent |= missing - self._others.keys()

    def open_lanes(self) -> int:
        """Number of devices of the servers that run, without failed and quarantined ones."""
        others = [node for node in self._others.values() if node.gone_since is None]
        theirs = sum(lane.state not in CLOSED for node in others for lane in node.lanes)
        return theirs + sum(lane.state not in CLOSED for lane in self._engine.all_lanes)

    def metrics(self) -> Iterable[Metric]:
        """The servers by state, and the devices of each, as Prometheus metrics."""
        family = GaugeMetricFamily(
            "warpcall_nodes",
            "Servers that share the database, by state: alive, draining, stopped or gone",
            labels=["state"],
        )
        states = Counter(node.state for node in self.nodes().nodes)
        for state in STATES:
            family.add_metric([state], states[state])
        lanes = GaugeMetricFamily(
            "warpcall_node_lanes_ready",
            "Devices that are ready, of each server that shares the database and has not left",
            labels=["node", "host"],
        )
        for node in self.nodes().nodes:
            if node.gone_since is None:
                ready = sum(lane.state == "ready" for lane in node.lanes)
                lanes.add_metric([node.id, node.host], ready)
        return [family, lanes]

    async def _await_heartbeat(self) -> bool:
        """Wait for a heartbeat that begins from now on; returns False if none ends in NEWS_S."""
        now = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEWS_S), self._was_read:
                return await self._was_read.wait_for(lambda: self._read_at >= now)
        return False

    async def _beat_for_ever(self, threads: StoreThreads) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._beat(threads)
            except StoreError as error:
                self._note(error.reason)
            except Exception:  # if this task ended, the others would take this server for gone
                log.exception("the heartbeat of this server cannot be written")
            else:
                self._note("")
            await asyncio.sleep(max(0.0, began + BEAT_S - time.monotonic()))

    async def _beat(self, threads: StoreThreads) -> None:
        first = not self._registered
        facts = self._facts()
        if self.report is not None:
            facts["health"] = self.report()
        if self.devices is not None:
            facts["devices"] = self.devices()
        beat = Beat(self.id, self._url, self.host, json.dumps(facts), self.is_draining, first)
        began = time.monotonic()
        now, rows = await threads.write(
            lambda session: registry.write_beat(session, beat), deadline_s=DEADLINE_S
        )
        self._registered, self._read_at, self._beat_ms = True, began, now
        others = [row for row in rows if row.id != self.id]
        self._reports = {row.id: found for row in others if (found := _report(row))}
        self._others = {row.id: _node(row, now) for row in others}
        for row in others:
            self._remote.note(row.id, row.host, json.loads(row.facts).get("devices"))
        self._remote.forget_others(self._others)
        self._absent -= self._others.keys()
        self._drained = any(row.drained for row in rows if row.id == self.id)
        async with self._was_read:
            self._was_read.notify_all()
        if first:
            self._started_ms = now

    def _own(self) -> Node:
        return _node(
            NodeRow(
                id=self.id,
                url=self._url,
                host=self.host,
                facts=json.dumps(self._facts()),
                draining=self.is_draining,
                started_ms=self._started_ms,
                beat_ms=now_ms() if self._threads is None else self._beat_ms,
            ),
            None,
        )

    def _facts(self) -> dict[str, Any]:
        """Versions, the hash of the ops, and the lanes, as `Node` has them."""
        known = [lane.hello.get("fingerprint", {}) for lane in self._engine.all_lanes]
        first: dict[str, Any] = next(filter(None, known), {})
        versions = {name: first.get(name) for name in ("torch", "triton", "cuda")}
        lanes = [
            {
                "name": lane.name,
                "state": lane.state,
                "model": found.get("device"),
                "driver": found.get("driver"),
                "environment": lane.hello.get("environment"),
            }
            for lane, found in zip(self._engine.all_lanes, known, strict=True)
        ]
        return {
            "version": __version__,
            "versions": {"python": platform.python_version(), **versions},
            "ops_sha256": first.get("kernels_sha256"),
            "lanes": lanes,
        }

    def _note(self, trouble: str) -> None:
        """Log a failure when it begins and when it ends."""
        if bool(trouble) != bool(self._trouble):
            if trouble:
                log.error("this server cannot tell the others that it is alive: %s", trouble)
            else:
                log.info("this server can tell the others again that it is alive")
        self._trouble = trouble


def _age(node: Node) -> tuple[str, str]:
    """The order of servers: that in which they started."""
    return node.started_at, node.id


def _report(row: NodeRow) -> dict[str, Any] | None:
    """The health that a server wrote; None from older servers."""
    found = json.loads(row.facts).get("health")
    return found if isinstance(found, dict) else None


def _node(row: NodeRow, now: int | None) -> Node:
    """The server of a row.

    Args:
        now: the present time by the database's clock; None means that the server is this one.
    """
    state: NodeState = "draining" if row.draining else "alive"
    since = None
    if row.stopped_ms is not None:
        state, since = "stopped", row.stopped_ms
    elif now is not None and now - row.beat_ms > GONE_S * 1000:
        state, since = "gone", row.beat_ms
    return checked(
        Node,
        {
            "id": row.id,
            "url": row.url,
            "host": row.host,
            "state": state,
            "started_at": moment(row.started_ms),
            "beat_at": moment(row.beat_ms),
            "gone_since": None if since is None else moment(since),
            **json.loads(row.facts),
        },
    )
