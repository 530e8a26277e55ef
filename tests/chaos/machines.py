"""Servers that are killed and cut off, and what kills them."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.chaos.network import SIDES, Network, Side
from tests.servers import Server
from tests.service.databases import Database, Postgres
from tests.service.job_requests import gone_is_gone
from tests.service.jobs.test_two_servers import beside

PORT = "8000"  # each server has its own addresses
LEASE_S = "3"  # after which a server's jobs are another's
START_S = 120.0
VICTIMS = {"lane": "worker.main", "job": "programs.job_main", "reaper": "runs.reaper"}
CUTS: tuple[tuple[Side, ...], ...] = (SIDES, ("data",), ("calls",))


class Machine:
    """A server that is killed and started again, on the same data folder.

    Attributes:
        temporary: the folder for temporary files of its processes.
    """

    def __init__(self, number: int, network: Network, database: Database, folder: Path) -> None:
        self.number, self.temporary = number, folder.with_name(f"{folder.name}-tmp")
        self.temporary.mkdir()
        self._network, self._database, self._folder = network, database, folder
        self._stack = contextlib.ExitStack()
        self.server: Server
        self.url = f"http://{network.address('calls', number)}:{PORT}"

    def start(self) -> None:
        """Start it, as often as it takes: without the database it ends again."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.server = self._stack.enter_context(self._running())
                return
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise

    def kill(self) -> None:
        self.server.process.kill()
        with contextlib.suppress(RuntimeError):  # it ended with the status of a kill
            self._stack.close()

    def stop(self) -> None:
        """Stop it in good order; RuntimeError if it does not end so."""
        self._stack.close()

    def children(self, word: str) -> list[psutil.Process]:
        """The processes below the server whose command lines have a word."""
        found = []
        with gone_is_gone():
            for child in psutil.Process(self.server.process.pid).children(recursive=True):
                with gone_is_gone():
                    if word in " ".join(child.cmdline()):
                        found.append(child)
        return found

    def _running(self) -> contextlib.AbstractContextManager[Server]:
        return beside(
            self._database,
            self._folder,
            self._network.under(self.number),
            WARPCALL_JOB_LEASE_S=LEASE_S,
            WARPCALL_HOST=self._network.address("calls", self.number),
            WARPCALL_PORT=PORT,
            WARPCALL_ADVERTISED_URL=self.url,
            TMPDIR=str(self.temporary),
        )


class Killer:
    """Kills with SIGKILL what runs, at random.

    Attributes:
        killed: how many processes of each kind.
    """

    def __init__(
        self, machines: list[Machine], postgres: Postgres, name: str, chooser: random.Random
    ) -> None:
        self.killed = Counter[str]()
        self._machines, self._postgres, self._name = machines, postgres, name
        self._chooser = chooser

    def kill_one(self) -> None:
        """Kill a process of a kind that there is; a server is started again."""
        while True:
            kind = self._chooser.choice([*VICTIMS, "server", "database"])
            machine = self._chooser.choice(self._machines)
            if kind == "server":
                machine.kill()
                machine.start()
            else:
                found = (
                    self._postgres.processes(self._name)
                    if kind == "database"
                    else machine.children(VICTIMS[kind])
                )
                if not found or not _kill(self._chooser.choice(found)):
                    time.sleep(0.01)
                    continue
            self.killed[kind] += 1
            return


class Partitions:
    """A thread that cuts one server off at a time: from callers, from the database, from both.

    Attributes:
        made: how many of each kind.
    """

    def __init__(
        self, network: Network, count: int, length_s: float, chooser: random.Random
    ) -> None:
        self.made = Counter[str]()
        self._network, self._count, self._length_s = network, count, length_s
        self._chooser = chooser
        self._thread = threading.Thread(target=self._cut_all)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _cut_all(self) -> None:
        for number in range(self._count):
            time.sleep(self._chooser.uniform(0.5, 3))
            server, sides = self._chooser.randrange(len(self._network.names)), CUTS[number % 3]
            for side in sides:
                self._network.cut(server, side)
            try:
                time.sleep(self._length_s)
            finally:
                for side in sides:
                    self._network.connect(server, side)
            self.made["+".join(sides)] += 1


def _kill(process: psutil.Process) -> bool:
    with gone_is_gone():
        process.kill()
        return True
    return False
