"""Compare one server on one GPU with two servers behind one port, in the same run.

    python -m bench.two_servers                    five minutes, on a machine with two GPUs
    python -m bench.two_servers --quick            a look, also on CPU lanes, where two cannot be faster
    python -m bench.two_servers --json two.json    every sample, for later

All servers run during the whole measurement, and only one of the ways to call is used at a time, in
one order and then in the other. Each client is a process with a connection of its own, so that no
interpreter is shared. The ways:

- one server: raw sockets to a server on the first GPU.
- one of two: raw sockets to the port of the first of the two servers. It has a nodes table.
- shared port: raw sockets to the public port of the two. The kernel shares the connections out at
  random, and they are opened anew for each sample.
- own ports: raw sockets, half of them to each of the two servers.
- SDK one, SDK two: a `Client` with the address of the one server, or the public one of the two.

The two servers share a SQLite database in their data folder. WARPCALL_DATABASE_URL names a
PostgreSQL database to use instead. The op is the identity permute, as in bench.service_speed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.callers import CALL_TIMEOUT_S, DIMS, RawClient, Tensor, refuse_other
from bench.machine import describe
from demo.server import Server, running_server
from warpcall import Client

KB, MB = 1 << 10, 1 << 20
ROW = 256  # elements of the tensor's inner dim
WAYS = ("one server", "one of two", "shared port", "own ports", "SDK one", "SDK two")
COMPARED = {
    "one of two": "one server",
    "shared port": "one server",
    "own ports": "one server",
    "SDK two": "SDK one",
}
LEAD_S = 0.05  # before a sample begins, so that all clients have read the command
START_S = 180.0
NODES_S = 30.0  # for the two servers to see each other
KNOWN_S = 5.0  # for a client to find the other server
ENOUGH = 1 << 30  # bytes of an arena, for calls of 1 MB


@dataclass(frozen=True)
class Cell:
    """A size of tensor and a number of clients."""

    nbytes: int
    clients: int


@dataclass(frozen=True)
class Addresses:
    """Where the servers are: the one, the two behind one port, and each of the two."""

    one: str
    shared: str
    own: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """Calls a second of every sample, by the way of calling."""

    nbytes: int
    clients: int
    rates: dict[str, list[float]]

    def ratio(self, way: str) -> float:
        """The median of the ratios within the rounds."""
        pairs = zip(self.rates[way], self.rates[COMPARED[way]], strict=True)
        return median(mine / theirs for mine, theirs in pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.two_servers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer clients and short samples")
    parser.add_argument("--json", type=Path, help="write all samples there")
    parser.add_argument("--rounds", type=int, help="samples of each way")
    parser.add_argument("--seconds", type=float, help="length of a sample")
    given = parser.parse_args(arguments)
    rounds = given.rounds or (2 if given.quick else 8)
    seconds = given.seconds or (0.3 if given.quick else 1.0)
    numbers = (2, 4) if given.quick else (8, 32)
    cells = [Cell(size, n) for size in (4 * KB, MB, 64 * MB) for n in numbers]
    with _servers(max(numbers)) as (one, addresses):
        machine = describe(one)
        _print(*(f"{name}: {value}" for name, value in machine.items()), "", *_head())
        results = []
        for cell in cells:
            results.append(measure(cell, addresses, rounds, seconds))
            _print(_row(results[-1]))
    if given.json:
        report = {"machine": machine, "results": list(map(asdict, results))}
        given.json.write_text(json.dumps(report, indent=1))
    return 0


def measure(cell: Cell, addresses: Addresses, rounds: int, seconds: float) -> Result:
    """All ways of calling in this cell, in turn."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with _clients(cell, addresses) as clients:
        for i in range(rounds):
            for way in WAYS if i % 2 == 0 else reversed(WAYS):
                rates[way].append(sum(_sample(clients, way, seconds)))
    return Result(cell.nbytes, cell.clients, rates)


def _sample(clients: Sequence[Connection], way: str, seconds: float) -> Iterator[float]:
    """The calls a second of each client."""
    for client in clients:
        client.send(("open", way))
    for client in clients:
        _answer(client)
    begin = time.monotonic() + LEAD_S
    for client in clients:
        client.send((begin, begin + seconds))
    for client in clients:
        yield _answer(client)


def _answer(client: Connection) -> float:
    kind, value = client.recv()
    if kind == "error":
        raise RuntimeError(f"a client failed: {value}")
    return float(value)


@contextmanager
def _clients(cell: Cell, addresses: Addresses) -> Iterator[list[Connection]]:
    """Client processes, and the pipe to each."""
    context = multiprocessing.get_context("spawn")  # the threads of a fork's parent are lost
    pipes: list[Connection] = []
    processes: list[BaseProcess] = []
    try:
        for i in range(cell.clients):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(
                target=_serve, args=(theirs, i, cell, addresses), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(CALL_TIMEOUT_S)


def _serve(pipe: Connection, number: int, cell: Cell, addresses: Addresses) -> None:
    """The program of a client: open a way, then call from a time on until another."""
    tensor = np.random.default_rng(number).random(cell.nbytes // 4, np.float32).reshape(-1, ROW)
    caller: RawCaller | SdkCaller | None = None
    kept: dict[str, SdkCaller] = {}
    while True:
        try:
            first, second = pipe.recv()
        except EOFError:
            return
        try:
            if first == "open":
                if isinstance(caller, RawCaller):
                    caller.close()
                caller = kept.get(second) or _caller(second, number, tensor, addresses)
                if isinstance(caller, SdkCaller):
                    kept[second] = caller  # with the list of servers that it has read
                caller.check()
                pipe.send(("ready", 0))
            else:
                assert caller is not None
                pipe.send(("rate", _rate(caller.call, first, second)))
        except Exception as error:  # noqa: BLE001  # the parent says it and ends
            pipe.send(("error", repr(error)))


class RawCaller:
    """Calls on a bare socket."""

    def __init__(self, url: str, tensor: Tensor) -> None:
        self._connection = RawClient(int(url.rpartition(":")[2]), tensor)
        self._tensor = tensor
        self.call = self._connection.call

    def check(self) -> None:
        """One call; raises ValueError unless the tensor came back as it was."""
        self.call()
        refuse_other(np.frombuffer(self._connection.received, np.float32), self._tensor)

    def close(self) -> None:
        self._connection.close()


class SdkCaller:
    """Calls with a `Client` of its own.

    Args:
        servers: number of servers that it must find before it is used.
    """

    def __init__(self, url: str, tensor: Tensor, servers: int) -> None:
        self._gpu = Client(url, progress=False, timeout_s=CALL_TIMEOUT_S)
        self._tensor = tensor
        deadline = time.monotonic() + KNOWN_S
        while servers > 1 and len(self._gpu._core.targets.candidates) < servers:
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"a client has not found {servers} servers")

    def call(self) -> Tensor:
        """One call."""
        out: Tensor = self._gpu.permute(self._tensor, dims=DIMS)
        return out

    def check(self) -> None:
        """One call; raises ValueError unless the tensor came back as it was."""
        refuse_other(self.call(), self._tensor)


def _caller(way: str, number: int, tensor: Tensor, addresses: Addresses) -> RawCaller | SdkCaller:
    if way.startswith("SDK"):
        two = way == "SDK two"
        url = addresses.shared if two else addresses.one
        return SdkCaller(url, tensor, len(addresses.own) if two else 1)
    urls: Mapping[str, str] = {
        "one server": addresses.one,
        "one of two": addresses.own[0],
        "shared port": addresses.shared,
        "own ports": addresses.own[number % len(addresses.own)],
    }
    return RawCaller(urls[way], tensor)


def _rate(call: Callable[[], object], begin: float, end: float) -> float:
    """Calls a second from `begin` until the first call that ends after `end`."""
    time.sleep(max(0.0, begin - time.monotonic()))
    calls = 0
    while (now := time.monotonic()) < end:
        call()
        calls += 1
    now = time.monotonic()
    return calls / (now - begin)


@contextmanager
def _servers(clients: int) -> Iterator[tuple[Server, Addresses]]:
    """One server, and two behind one port."""
    gpus = _gpus()
    if gpus == 1:
        raise SystemExit("two servers need two GPUs, or none: then both compute on the CPU")
    # As many calls of 64 MB as there are clients have room, so that none waits for memory.
    shared = {"WARPCALL_ARENA_BYTES": str(ENOUGH + clients * 2 * 65 * MB)}
    alone = {**shared, "WARPCALL_DEVICES": "cuda:0" if gpus else "cpu"}
    both = {**shared, "WARPCALL_SERVERS": "2"}
    both["WARPCALL_DEVICES"] = "cuda:0,cuda:1" if gpus else "cpu"
    if url := os.environ.get("WARPCALL_DATABASE_URL"):
        both["WARPCALL_DATABASE_URL"] = url
    with (
        running_server(alone, start_timeout_s=START_S) as one,
        running_server(both, start_timeout_s=START_S) as two,
    ):
        yield one, Addresses(one.url, two.url, tuple(_own_urls(two)))


def _own_urls(server: Server) -> list[str]:
    """The addresses of the two servers, once they see each other."""
    deadline = time.monotonic() + NODES_S
    while time.monotonic() < deadline:
        found: list[dict[str, Any]] = json.loads(server.get("/v1/nodes")[1])["nodes"]
        ready = [
            node["url"]
            for node in found
            if node["state"] == "alive" and node["lanes"][0]["state"] == "ready"
        ]
        if len(ready) == 2:
            return ready
        time.sleep(0.1)
    raise RuntimeError(f"the two servers do not see each other:\n{server.log.read_text()}")


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _head() -> list[str]:
    columns = ["size", "clients"]
    for way in WAYS:
        columns += [way, "ratio"] if way in COMPARED else [way]
    return [f"| {' | '.join(columns)} |", f"|{'|'.join(['--:'] * len(columns))}|"]


def _row(result: Result) -> str:
    size = f"{result.nbytes // MB} MB" if result.nbytes >= MB else f"{result.nbytes // KB} KB"
    cells = [size, str(result.clients)]
    for way in WAYS:
        cells.append(f"{median(result.rates[way]):,.0f}")
        if way in COMPARED:
            cells.append(f"{result.ratio(way):.2f}")
    return f"| {' | '.join(cells)} |"


def _print(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
