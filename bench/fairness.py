"""Measure what one user's flood costs another user's single call.

    .venv/bin/python -m bench.fairness

User A sends 64 MB calls without pause from 8 connections, in a separate process; user B makes one 4
KB call at a time. B's slowest percent may take three times what it takes without A, and one call of
A's on the device besides, because a call that runs is not interrupted. Op and kernel are those of
the service benchmark: the identity permute, a copy. A's clients run at the lowest priority: what
they take from the server's CPU is not what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.callers import RawClient, Tensor
from bench.machine import describe
from demo.server import Server, running_server
from warpcall_service.auth import users
from warpcall_service.identity import Role
from warpcall_service.store.database import Store

KB, MB = 1 << 10, 1 << 20
CONNECTIONS = 8
FLOOD_BYTES, SINGLE_BYTES = 64 * MB, 4 * KB
ALLOWED = 3.0  # times the unloaded p99
PAUSE_S = 0.01  # between B's calls, at most: they come at any moment of A's
SETTLE_S = 2.0
KEY_VARIABLE = "WARPCALL_API_KEY"
NICE = ("nice", "-n", "19")  # A's clients would be on other machines
USERS = ("a", "b")


@dataclass(frozen=True)
class Result:
    """Milliseconds, but for counts.

    Attributes:
        kernel_ms: median time of A's kernels; `device_ms` with the copies to and from the device.
        bound_ms: what B's p99 under load is held to.
        flood_calls: A's calls while B was measured.
    """

    alone_p50_ms: float
    alone_p99_ms: float
    flooded_p50_ms: float
    flooded_p99_ms: float
    kernel_ms: float
    device_ms: float
    bound_ms: float
    calls: int
    flood_calls: int

    @property
    def fair(self) -> bool:
        return self.flooded_p99_ms <= self.bound_ms


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 if B waited too long."""
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("--calls", type=int, default=1000, help="of B, with A and without")
    parser.add_argument("--json", type=Path, help="write the result there")
    given = parser.parse_args(arguments)
    threads = max(1, (os.cpu_count() or 1) - 1)  # a CPU lane must not take the server's core
    with tempfile.TemporaryDirectory(prefix="warpcall-") as folder:
        keys = new_keys(Path(folder))
        settings = {"WARPCALL_CPU_THREADS": str(threads), "WARPCALL_DATA_DIR": folder}
        with running_server(settings) as server:
            machine = describe(server)
            result = measure(server, keys, given.calls)
    for name, value in {**machine, **asdict(result)}.items():
        shown = f"{value:.2f}" if isinstance(value, float) else value
        sys.stdout.write(f"{name}: {shown}\n")
    sys.stdout.write(f"fair: {result.fair}\n")
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, **asdict(result)}, indent=1))
    return 0 if result.fair else 1


def new_keys(folder: Path, admin: str = "") -> dict[str, str]:
    """A key for each user, in a new database in `folder`; the role of `admin` is that."""
    store = Store(None, folder)
    store.migrate()
    keys = {}
    with store.write() as session:
        for name in USERS:
            users.add_user(session, name)
            session.flush()
            role: Role = "admin" if name == admin else "call"
            keys[name] = users.create_key(session, name, role, None)[1]
    store.close()
    return keys


def measure(server: Server, keys: Mapping[str, str], calls: int) -> Result:
    """B's calls, alternately without and with A, so that a machine that slows down slows both."""
    single = RawClient(server.port, tensor_of(SINGLE_BYTES), keys["b"])
    latencies(single, calls // 10)  # its plan is known, its pages are touched
    alone: list[float] = []
    flooded: list[float] = []
    timings: list[dict[str, float]] = []
    for _ in range(2):
        alone += latencies(single, calls // 2)
        with flood(server.port, keys["a"]) as of_flood:
            time.sleep(SETTLE_S)
            of_flood.clear()
            flooded += latencies(single, calls // 2)
            timings += of_flood
    single.close()
    kernel_ms = float(np.median([t["kernel"] for t in timings]))
    device_ms = float(np.median([t["h2d"] + t["kernel"] + t["d2h"] for t in timings]))
    alone_p50, alone_p99 = np.percentile(alone, [50, 99])
    flooded_p50, flooded_p99 = np.percentile(flooded, [50, 99])
    return Result(
        alone_p50_ms=float(alone_p50),
        alone_p99_ms=float(alone_p99),
        flooded_p50_ms=float(flooded_p50),
        flooded_p99_ms=float(flooded_p99),
        kernel_ms=kernel_ms,
        device_ms=device_ms,
        bound_ms=float(ALLOWED * alone_p99 + kernel_ms),
        calls=len(flooded),
        flood_calls=len(timings),
    )


def latencies(client: RawClient, calls: int) -> list[float]:
    """Milliseconds of each of so many calls."""
    draw = random.Random(0)
    taken = []
    for _ in range(calls):
        time.sleep(draw.uniform(0, PAUSE_S))
        began = time.perf_counter()
        client.call()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


@contextmanager
def flood(port: int, key: str) -> Iterator[list[dict[str, float]]]:
    """A's calls, as long as the context lasts; the list grows by the timing of each."""
    timings: list[dict[str, float]] = []
    command = [*NICE, sys.executable, "-m", "bench.fairness", "flood", str(port)]
    environment = {**os.environ, KEY_VARIABLE: key}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    lines = process.stdout

    def listen() -> None:
        for line in lines:
            timings.append(json.loads(line))

    listener = threading.Thread(target=listen)
    try:
        timings.append(json.loads(lines.readline()))  # it has begun
        listener.start()
        yield timings
    finally:
        process.kill()
        process.wait()
        if listener.ident is not None:
            listener.join()
        lines.close()


def run_flood(port: int) -> None:
    """Call without pause from all connections, printing the timing of each call, until killed."""
    tensor = tensor_of(FLOOD_BYTES)
    lock = threading.Lock()

    def client() -> None:
        connection = RawClient(port, tensor, os.environ[KEY_VARIABLE])
        while True:
            connection.call()
            with lock:
                sys.stdout.write(json.dumps(connection.timing) + "\n")
                sys.stdout.flush()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tensor_of(nbytes: int) -> Tensor:
    """Random numbers, 1 KB in a row."""
    return np.random.default_rng(0).random(nbytes // 4, np.float32).reshape(-1, 256)


if __name__ == "__main__":
    if sys.argv[1:2] == ["flood"]:
        run_flood(int(sys.argv[2]))
    sys.exit(main())
