"""Reads the list of servers in a thread of its own, so that no call waits for it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping

from warpcall import wire
from warpcall._blocking import run_now
from warpcall._config import Config, configure_node
from warpcall._jobs.parse import parse
from warpcall._nodes.targets import Target, Targets
from warpcall._transport.base import Reply, Request, Transport
from warpcall.errors import TransportError, WarpcallError
from warpcall.nodes import Node, NodeList

REFRESH_S = 2.0  # between two reads, while the client calls
ALONE_S = 30.0  # the same, if the list has one server only
SOON_S = 0.2  # between two reads after a failure
ANSWER_S = 2.0  # within which a server must answer a read or a probe
ABSENT_S = 4 * REFRESH_S  # without calls to a server that does not answer the reader
LONGEST_S = 60.0  # of one read; after it, its thread is taken for lost, as in a process that forked
NODE = wire.NODE_HEADER.lower()
PROBE_HEADERS = {"User-Agent": "warpcall-python", "Accept": "application/json"}


class Reader:
    """Keeps the lists of `targets` as the servers list themselves.

    A server's address is used only if the given server lists it, `configure_node` allows it, and the
    server that answers there has the id that is listed. The probe for this has no key.

    Args:
        headers: of every request that has a key.
        make: makes a blocking transport.
    """

    def __init__(
        self, targets: Targets, headers: Mapping[str, str], make: Callable[[Config], Transport]
    ) -> None:
        self._targets = targets
        self._headers = headers
        self._make = make
        self._lock = threading.Lock()
        self._transports: dict[str, Transport] = {}
        self._named: dict[tuple[str, str], Config] = {}  # addresses that a given server has listed
        self._due = self._began = 0.0
        self._running_in = 0  # the process that reads
        self._closed = False
        self.reads = 0  # that have ended, whether they succeeded or not

    def note_answer(self) -> None:
        """Read the list again if it is old. An answer has shown that there may be several servers."""
        if time.monotonic() >= self._due:
            self.start()

    def note_failure(self) -> None:
        """Read the list soon: a server has failed a request."""
        self._due = min(self._due, self._began + SOON_S)
        self.note_answer()

    def start(self) -> None:
        """Begin to read, unless it is being read."""
        self._targets.is_cluster = True
        with self._lock:
            now = time.monotonic()
            runs = self._running_in == os.getpid() and now < self._began + LONGEST_S
            if runs or self._closed:
                return
            self._running_in, self._began, self._due = os.getpid(), now, now + REFRESH_S
        threading.Thread(target=self._run, name="warpcall-nodes", daemon=True).start()

    def close(self) -> None:
        """Close the connections. A read that runs ends by itself, and closes them then."""
        with self._lock:
            self._closed = True
            runs = self._running_in == os.getpid()
        if not runs:
            self._close_transports()

    def _close_transports(self) -> None:
        with self._lock:
            transports, self._transports = self._transports, {}
        for transport in transports.values():
            run_now(transport.close())

    def _run(self) -> None:
        try:
            self._read()
        except (WarpcallError, OSError, RuntimeError):  # RuntimeError: the client was closed
            pass
        finally:
            self.reads += 1
            with self._lock:
                self._running_in = 0
                closed = self._closed
            if closed:
                self._close_transports()

    def _read(self) -> None:
        targets = self._targets
        found = self._ask_any()
        if found is None:
            return
        source, listed = found
        alive = [node for node in listed.nodes if node.gone_since is None]
        members = {node.id: target for node in alive if (target := self._target_of(node, source))}
        self._probe(members)
        targets.members = members
        for_calls = [node for node in alive if node.state == "alive"]
        ready = [members[node.id] for node in for_calls if node.id in members]
        ready = [target for target in ready if target.ready]
        if len(for_calls) < 2 or any(target.config.path for target in targets.given):
            ready = []  # nothing is to be spread, or the user has asked for the socket of one server
        elif len(ready) < len(for_calls):
            # Some servers cannot be reached from here. An address that was given may lead to them.
            own = members.values()
            ready += [given for given in targets.given if given not in own]
        targets.candidates = ready
        if len(alive) < 2:
            self._due = self._began + ALONE_S

    def _target_of(self, node: Node, source: Target) -> Target | None:
        """The server of an entry of the list; None if its address must not be used."""
        if source in self._targets.given:
            config = configure_node(source.config, node.url)
            if config is not None:
                self._named[node.id, node.url] = config
        found = self._named.get((node.id, node.url))
        return None if found is None else self._targets.target_at(found)

    def _ask_any(self) -> tuple[Target, NodeList] | None:
        """The list of the first server that answers, those at the given addresses before others."""
        targets = self._targets
        for target in (*targets.given, *targets.members.values()):
            try:
                reply = self._get(target, wire.NODES_PATH, self._headers)
                if reply.status != 200:
                    continue
                listed = parse(NodeList, json.loads(reply.body.tobytes()), "nodes")
            except TransportError:
                target.note_failure(ABSENT_S)
            except ValueError:
                continue
            else:
                target.failed_until = 0.0
                return target, listed
        return None

    def _probe(self, members: Mapping[str, Target]) -> None:
        """Ask the servers that are not known to answer whether they do, all at the same time."""
        doubtful = {
            node_id: target
            for node_id, target in members.items()
            if not target.ready or target.failed_until
        }
        threads = [
            threading.Thread(target=self._probe_one, args=item, daemon=True)
            for item in doubtful.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _probe_one(self, node_id: str, target: Target) -> None:
        target.ready = False
        try:
            reply = self._get(target, "/readyz", PROBE_HEADERS)
        except (WarpcallError, OSError, RuntimeError):
            target.note_failure(ABSENT_S)
            return
        if reply.headers.get(NODE) == node_id and reply.status == 200:
            target.failed_until = 0.0
            target.ready = True

    def _get(self, target: Target, path: str, headers: Mapping[str, str]) -> Reply:
        config = target.config
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            transport = self._transports.get(config.url)
            if transport is None:
                transport = self._transports[config.url] = self._make(config)
        deadline = time.monotonic() + ANSWER_S
        return run_now(transport.send(Request("GET", config.prefix + path, deadline, headers)))
