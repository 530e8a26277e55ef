"""The servers that a client can send requests to, and which of them gets the next one."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence

from warpcall._config import Config
from warpcall._transport.base import Transport

FAILED_S = 2.0  # after a failure, in which other servers are preferred
CALL_BYTES = 16 << 10  # a call's weight beside its bytes: many small calls are work, too
HOME = "home"  # the route of requests that any server answers from the database
SPREAD = "spread"  # the route of calls without stored tensors
STORE = "store"  # the route of what creates stored tensors without an id that the caller chose
_WITH_NODE = re.compile(r".+\.([0-9a-f]{16})")


def node_of(tensor_id: str) -> str | None:
    """Id of the server that has a stored tensor; None if the tensor's id names none."""
    found = _WITH_NODE.fullmatch(tensor_id)
    return None if found is None else found[1]


class Target:
    """A server's address, and the connections to it.

    Attributes:
        outstanding: bytes of this client's calls that the server has not answered, each with
            CALL_BYTES more.
        ready: whether the server has answered a probe under its own id, and was ready.
        failed_until: when the server is tried again after a failure, on the clock of
            time.monotonic.
    """

    __slots__ = ("_lock", "config", "failed_until", "outstanding", "ready", "transport")

    def __init__(self, config: Config, transport: Transport) -> None:
        self.config = config
        self.transport = transport
        self.outstanding = 0
        self.ready = False
        self.failed_until = 0.0
        self._lock = threading.Lock()

    def count(self, nbytes: int) -> None:
        """Add to the outstanding bytes, in any thread."""
        with self._lock:
            self.outstanding += nbytes

    def note_failure(self, for_s: float = FAILED_S) -> None:
        """Prefer other servers for some seconds."""
        self.failed_until = max(self.failed_until, time.monotonic() + for_s)

    def is_preferred(self, tried: Collection[Target]) -> bool:
        """Whether to try this server now, after `tried`."""
        return self not in tried and self.failed_until <= time.monotonic()


class Targets:
    """Chooses the server of each request.

    The lists are replaced as a whole, so that threads can read them while another one writes them.

    Args:
        configs: the addresses that the client was given, the preferred one first.
        make: makes a transport of this client.

    Attributes:
        given: the servers at these addresses.
        members: the servers that share a database with them, by their ids.
        candidates: those that calls are spread over; empty means that calls go to the given ones.
        is_cluster: whether there are, or may be, several servers.
        store: id of the server that has this client's newest stored tensors. A call can only use
            tensors of one server, so that the next ones are stored there, too.
    """

    def __init__(self, configs: Sequence[Config], make: Callable[[Config], Transport]) -> None:
        self.given = [Target(config, make(config)) for config in configs]
        self.members: dict[str, Target] = {}
        self.candidates: Sequence[Target] = ()
        self.is_cluster = len(configs) > 1
        self.store: str | None = None
        self._make = make
        self._draw: Callable[[], float] = random.random
        self._known = {target.config.url: target for target in self.given}

    def target_at(self, config: Config) -> Target:
        """The server at an address; the same one each time."""
        found = self._known.get(config.url)
        if found is None:
            found = self._known[config.url] = Target(config, self._make(config))
        return found

    def everyone(self) -> list[Target]:
        """All servers to which there may be connections."""
        return list(self._known.values())

    def choose(self, route: str, tried: Collection[Target] = ()) -> Target:
        """The server of a request.

        Args:
            route: HOME, SPREAD, STORE, or the id of the server that has the request's stored tensors.
            tried: servers that have failed it. One of them is chosen if there is no other.
        """
        if route is STORE:
            kept = None if self.store is None else self.members.get(self.store)
            if kept is not None and kept.ready and kept.is_preferred(tried):
                return kept
        if route in (SPREAD, STORE):
            return self._less_busy(tried) or self._home(tried)
        owner = None if route is HOME else self.members.get(route)
        return owner if owner is not None and owner not in tried else self._home(tried)

    def has_other(self, tried: Collection[Target]) -> bool:
        """Whether there is a server that has not failed the request."""
        return any(target not in tried for target in self._usable())

    def at_location(self, location: str, path: str) -> Target | None:
        """The server to which a redirection leads, if it is a listed or given one and the same path.

        Any other address could be anybody's, who would get the key and the tensors.
        """
        for target in (*self.members.values(), *self.given):
            if location == target.config.url + path:
                return target
        return None

    def _less_busy(self, tried: Collection[Target]) -> Target | None:
        """The better of two random servers, by the bytes that are on their way."""
        now = time.monotonic()
        found = [t for t in self.candidates if t.failed_until <= now and t not in tried]
        if len(found) < 2:
            return found[0] if found else None
        first = int(self._draw() * len(found))
        second = (first + 1 + int(self._draw() * (len(found) - 1))) % len(found)
        a, b = found[first], found[second]
        return b if b.outstanding < a.outstanding else a

    def _home(self, tried: Collection[Target]) -> Target:
        if not self.is_cluster:
            return self.given[0]
        known = self._usable()
        for target in known:
            if target.is_preferred(tried):
                return target
        return next((target for target in known if target not in tried), self.given[0])

    def _usable(self) -> list[Target]:
        return [*self.given, *(target for target in self.members.values() if target.ready)]
