"""Servers on networks of their own: each in a network namespace, with a cable to callers and one to the database.

    callers (this thread) --- bridge "calls" --- server a, b, c --- bridge "data" --- PostgreSQL

The bridges are in a namespace, too, which the thread of the test enters, with the threads and the
processes that it starts: a browser of another test stops loading when the machine's networks change.
A cable is a pair of veth interfaces. A partition takes its end out of the bridge: the server's
interface stays up, and no packet arrives any more, in either direction. Neither side learns of it.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import pytest

from tests.forks import start_template

Side = Literal["calls", "data"]
SIDES: tuple[Side, ...] = ("calls", "data")
NETWORKS = {"calls": "198.18", "data": "198.19"}  # RFC 2544: for tests of devices, never routed
FIRST = 10  # the last number of the first server's address
IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _may_have_namespaces() -> bool:
    if IP is None or shutil.which("nsenter") is None or os.geteuid() != 0:
        return False
    name = f"wc{secrets.token_hex(3)}"
    made = subprocess.run([IP, "netns", "add", name], capture_output=True, check=False)
    subprocess.run([IP, "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


# A developer may lack the rights. Where REQUIRE_NETWORKS is set, their absence is a failure.
needs_networks = pytest.mark.skipif(
    not os.environ.get("REQUIRE_NETWORKS") and not _may_have_namespaces(),
    reason="network namespaces need root and iproute2: apt install iproute2",
)


class Network:
    """The bridges, and the namespaces of the servers.

    Attributes:
        database: address at which PostgreSQL listens.
        names: the namespaces, one for each server.
    """

    def __init__(self, servers: int) -> None:
        tag, self._number = secrets.token_hex(3), secrets.randbelow(256)
        self._bridges = {"calls": f"wcc{tag}", "data": f"wcd{tag}"}
        self._bridged, self._before = f"wcb{tag}", os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.names = [f"wc{tag}{n}" for n in range(servers)]
        self.database = self.address("data", None)

    def address(self, side: Side, server: int | None) -> str:
        """The address of a server; None means this process's, and PostgreSQL's."""
        last = 1 if server is None else FIRST + server
        return f"{NETWORKS[side]}.{self._number}.{last}"

    def under(self, server: int) -> Sequence[str]:
        """The command that starts another one in a server's namespace."""
        return ("nsenter", f"--net=/run/netns/{self.names[server]}")

    def connect(self, server: int, side: Side) -> None:
        _ip("link", "set", self._cable(server, side), "master", self._bridges[side])

    def cut(self, server: int, side: Side) -> None:
        """Lose every packet between a server and one side, until `connect`."""
        _ip("link", "set", self._cable(server, side), "nomaster")

    def processes(self) -> list[int]:
        """Ids of the processes in the namespaces."""
        return [int(pid) for name in self.names for pid in _ip("netns", "pids", name).split()]

    def make(self) -> None:
        _ip("netns", "add", self._bridged)
        _enter(f"/run/netns/{self._bridged}")
        _ip("link", "set", "lo", "up")
        for side, bridge in self._bridges.items():
            _ip("link", "add", bridge, "type", "bridge")
            _ip("addr", "add", f"{NETWORKS[side]}.{self._number}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
        for server, name in enumerate(self.names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            for side in SIDES:
                cable, address = self._cable(server, side), self.address(side, server)
                _ip("link", "add", cable, "type", "veth", "peer", "name", side, "netns", name)
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", side)
                _ip("-n", name, "link", "set", side, "up")
                _ip("link", "set", cable, "up")
                self.connect(server, side)

    def remove(self) -> None:
        """Remove everything that there is, and return to the machine's networks."""
        for bridge in self._bridges.values():
            subprocess.run([str(IP), "link", "del", bridge], capture_output=True, check=False)
        _enter(f"/proc/self/fd/{self._before}")
        os.close(self._before)
        for name in (*self.names, self._bridged):
            subprocess.run([str(IP), "netns", "del", name], capture_output=True, check=False)

    def _cable(self, server: int, side: Side) -> str:
        return f"{self._bridges[side]}{server}"


@contextmanager
def network_of(servers: int) -> Iterator[Network]:
    """A network for a number of servers, removed at the end."""
    start_template()  # in the machine's network: servers of later tests are its forks, too
    network = Network(servers)
    try:
        network.make()
        yield network
    finally:
        network.remove()


def _enter(namespace: str) -> None:
    """Let this thread be in a network namespace."""
    opened = os.open(namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(opened, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(opened)


def _ip(*words: str) -> str:
    done = subprocess.run([str(IP), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
