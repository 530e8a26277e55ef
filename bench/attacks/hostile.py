"""Measure what attackers cost a good client, and what memory they make the server take.

    .venv/bin/python -m bench.attacks.hostile --seconds 60 --connections 200

The attackers run in a process of their own, at the lowest priority, as on other machines. They
pipeline requests without a key and read no answer, leave large answers unread, upload and download
slowly, send JSON and other bodies that cost much to read, and ask for other protocols, all at once
(`--only KIND` for one of these). A good client with a key of its own makes 4 KB calls, one after
the other, and asks for /healthz in between. The exit status is 1 if one of its requests failed, if
its slowest percent took more than 250 ms, if the server took more than 300 MB beside its arena, or
if anything stayed taken after the attackers had left. A machine that is busy with other work may
add to the 250 ms: four times what the slowest percent of echoes takes, from a process that does
nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from bench.attacks.attackers import ATTACKS, SMUGGLED
from bench.callers import RawClient
from bench.descriptors import held
from bench.echo import HOPS, Echo, echo
from bench.fairness import KEY_VARIABLE, NICE, SINGLE_BYTES, new_keys, tensor_of
from bench.machine import describe, memory_of
from demo.server import Server, running_server

ARENA_BYTES = 256 << 20
ALLOWED_P99_MS = 250.0
ALLOWED_BYTES = 300 << 20  # of the HTTP process, beside the arena
RELEASE_S = 30.0  # until everything that the attackers held must be free
STOP_TIMEOUT_S = 60.0
LOOK_S = 0.25  # between two readings of the server's memory
USED = re.compile(r"^warpcall_lane_arena_used\S* (\S+)$", re.MULTILINE)


@dataclass
class Result:
    """What the good client saw.

    Attributes:
        latencies_ms: of its calls; `health_ms` of /healthz; `echo_ms` of an `Echo` in between.
        failures: what went wrong, in words.
        most_bytes: the most that the HTTP process had resident beside the arena.
        came_back: what the attackers counted.
    """

    latencies_ms: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    echo_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    most_bytes: int = 0
    came_back: dict[str, int] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        """In numbers."""
        return {
            "calls": len(self.latencies_ms),
            "failed": len(self.failures),
            "p50_ms": percentile(self.latencies_ms, 50),
            "p99_ms": percentile(self.latencies_ms, 99),
            "max_ms": percentile(self.latencies_ms, 100),
            "health_p99_ms": percentile(self.health_ms, 99),
            "health_max_ms": percentile(self.health_ms, 100),
            "echo_p99_ms": percentile(self.echo_ms, 99),
            "most_mb": round(self.most_bytes / 2**20),
            "first_failure": next(iter(self.failures), ""),
            "came_back": self.came_back,
        }

    def faults(self) -> list[str]:
        """What must not be, in words."""
        return self.wrong() + self.slow()

    def slow(self) -> list[str]:
        """What must not be of the times of the calls."""
        slowest_ms = percentile(self.latencies_ms, 99)
        allowed_ms = round(ALLOWED_P99_MS + HOPS * percentile(self.echo_ms, 99), 1)
        return [] if slowest_ms <= allowed_ms else [f"p99 is {slowest_ms} ms, above {allowed_ms}"]

    def wrong(self) -> list[str]:
        """What must not be, whatever the times are."""
        smuggled = self.came_back.get(SMUGGLED, 0)
        found = {
            f"{len(self.failures)} requests failed: {self.failures[:1]}": self.failures,
            f"{self.most_bytes} bytes beside the arena": self.most_bytes > ALLOWED_BYTES,
            f"{smuggled} smuggled requests were answered": smuggled,
        }
        return [text for text, is_so in found.items() if is_so]


def percentile(values: Sequence[float], q: float) -> float:
    """Of values that may be none at all."""
    return round(float(np.percentile(values, q)), 1) if values else float("nan")


def measure(
    server: Server, keys: dict[str, str], seconds: float, connections: int, kinds: Sequence[str]
) -> Result:
    """Make a good client's calls for `seconds` while the attackers are there."""
    result = Result()
    with (
        _memory_noted(server, result),
        echo() as control,
        attackers(server.port, connections, kinds, keys, result),
    ):
        _good_client(server.port, keys["b"], seconds, control, result)
    return result


@contextmanager
def attackers(
    port: int, connections: int, kinds: Sequence[str], keys: dict[str, str], result: Result
) -> Iterator[None]:
    """The attackers, from when all of them have connected once."""
    command = [*NICE, sys.executable, "-m", "bench.attacks.attackers", str(port), str(connections)]
    environment = {**os.environ, KEY_VARIABLE: keys["a"]}
    with subprocess.Popen(
        [*command, *kinds], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
            process.terminate()
            result.came_back = json.loads(process.stdout.readline())
        finally:
            process.kill()


def _good_client(port: int, key: str, seconds: float, control: Echo, result: Result) -> None:
    tensor = tensor_of(SINGLE_BYTES)
    client: RawClient | None = None
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        try:
            client = client or RawClient(port, tensor, key)
            client.call()
            if bytes(client.received) != tensor.tobytes():
                raise ConnectionError("the answer is not what it should be")
        except OSError as error:
            result.failures.append(str(error)[:200])
            client = None
        result.latencies_ms.append((time.perf_counter() - began) * 1e3)
        try:
            result.health_ms.append(_health_ms(port))
        except OSError as error:
            result.failures.append(f"/healthz: {error}")
        result.echo_ms.append(control.round_trip_s(SINGLE_BYTES) * 1e3)
        time.sleep(0.005)
    if client is not None:
        client.close()


def _health_ms(port: int) -> float:
    """A new connection each time: a load balancer's probe."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        sock.recv(4096)
    return (time.perf_counter() - began) * 1e3


@contextmanager
def _memory_noted(server: Server, result: Result) -> Iterator[None]:
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_S):
            result.most_bytes = max(result.most_bytes, memory_of(server.process.pid).http_rest)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def unreleased(server: Server, key: str, descriptors: int) -> str:
    """What is still taken RELEASE_S after the attackers left; empty if nothing is.

    Args:
        key: of an administrator.
        descriptors: sockets that the server had open before they came.
    """
    end = time.monotonic() + RELEASE_S
    while True:
        sockets = held(server.process.pid)["socket"] - descriptors
        allocated = arena_used(server, key)
        if sockets <= 0 and not allocated:
            return ""
        if time.monotonic() > end:
            return f"{sockets} sockets and {allocated:.0f} bytes of the arena"
        time.sleep(0.2)


def arena_used(server: Server, key: str) -> float:
    """Bytes of the arena that are allocated to calls."""
    with socket.create_connection(("127.0.0.1", server.port), 60) as sock:
        fields = f"Host: localhost\r\nConnection: close\r\nAuthorization: Bearer {key}"
        sock.sendall(f"GET /metrics HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        text = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    return sum(map(float, USED.findall(text)))


def _stop_s(server: Server) -> float:
    """From SIGTERM to the end of the server.

    Raises:
        TimeoutExpired: it did not end.
    """
    began = time.monotonic()
    server.process.terminate()
    server.process.wait(STOP_TIMEOUT_S)
    return round(time.monotonic() - began, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.attacks.hostile", description=__doc__)
    parser.add_argument("--connections", type=int, default=200, help="of the attackers")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", choices=ATTACKS, action="append", help="of all attacks")
    parser.add_argument("--json", type=Path, help="write the result there")
    given = parser.parse_args(arguments)
    summary: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="warpcall-") as folder:
        settings = {"WARPCALL_DATA_DIR": folder, "WARPCALL_ARENA_BYTES": str(ARENA_BYTES)}
        keys = new_keys(Path(folder), admin="b")
        kinds = given.only or list(ATTACKS)
        with running_server(settings) as server:
            summary |= describe(server)
            before = held(server.process.pid)["socket"]
            summary["idle_mb"] = round(memory_of(server.process.pid).http_rest / 2**20)
            result = measure(server, keys, given.seconds, given.connections, kinds)
            summary |= result.summary()
            summary["still_taken"] = unreleased(server, keys["b"], before)
            with attackers(server.port, given.connections, kinds, keys, Result()):
                time.sleep(2)
                summary["stop_s"] = _stop_s(server)
    for name, value in summary.items():
        sys.stdout.write(f"{name}: {value}\n")
    if given.json:
        given.json.write_text(json.dumps({**summary, **asdict(result)}, indent=1))
    return 1 if result.faults() or summary["still_taken"] else 0


if __name__ == "__main__":
    sys.exit(main())
