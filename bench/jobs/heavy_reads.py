"""What one user's large reads cost other users: python -m bench.jobs.heavy_reads

Fills a database with two jobs of many cases, and one job with many events, and starts a server on
it. Then one user reads in several ways. Meanwhile another user makes small calls, asks for the
server's health, and submits jobs. Printed are their latencies and the server's memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import sqlalchemy as sa

from bench.jobs.stored_jobs import identity, job, measurement, say
from demo.server import Server, running_server
from warpcall_bench.jobs.tables import Job, JobCase, JobEvent, Measurement
from warpcall_service.auth import users
from warpcall_service.store.database import Store

IMPLEMENTATIONS = [f"implementation-{number}" for number in range(8)]
OP = "permute"
FIRST, SECOND, EVENTFUL, RUNNING = 1, 2, 3, 4  # the numbers of the jobs
CALL = {
    "inputs": {"x": {"dtype": "I8", "shape": [3, 1], "data": [2, 1, 0]}},
    "params": {"dims": [1, 0]},
}
SUBMISSION = {"op": OP, "cases": [{"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}]}
SUBMISSION_PAUSE_S = 0.5


@dataclass
class Other:
    """The other user: latencies in seconds by what they do, and the server's memory."""

    server: Server
    key: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: int = 0

    def request(self, path: str, body: object = None) -> None:
        """Send a request and note how long its answer took."""
        data = None if body is None else json.dumps(body).encode()
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        begin = time.perf_counter()
        with urlopen(Request(self.server.url + path, data, headers), timeout=300) as answer:
            answer.read()
        self.seconds.setdefault(path, []).append(time.perf_counter() - begin)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the other user work while the block runs."""
        self.seconds, self.peak_bytes, ended = {}, 0, threading.Event()

        def repeat(work: Callable[[], None], pause_s: float) -> None:
            while not ended.wait(pause_s):
                work()

        works: list[tuple[Callable[[], None], float]] = [
            (lambda: self.request("/v1/kernels/permute", CALL), 0.005),
            (lambda: self.request("/healthz"), 0.05),
            (lambda: self.request("/v1/jobs", {**SUBMISSION, "fresh": True}), SUBMISSION_PAUSE_S),
            (self._look_at_memory, 0.1),
        ]
        threads = [threading.Thread(target=repeat, args=work) for work in works]
        for thread in threads:
            thread.start()
        yield
        ended.set()
        for thread in threads:
            thread.join()

    def report(self, what: str) -> None:
        """Print what was noted."""
        say(f"{what}: the server took up to {self.peak_bytes >> 20} MiB, now {self.memory() >> 20}")
        for path, seconds in self.seconds.items():
            ms = sorted(1e3 * second for second in seconds)
            say(
                f"    {path:22} {len(ms):5} answers, median {statistics.median(ms):7.1f} ms, "
                f"99 % {ms[int(0.99 * (len(ms) - 1))]:7.1f}, slowest {ms[-1]:7.1f}"
            )

    def memory(self) -> int:
        """Resident bytes of the process that speaks HTTP."""
        return psutil.Process(self.server.process.pid).memory_info().rss

    def _look_at_memory(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.memory())


def main() -> None:
    """Fill a database, start a server on it, and read from it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="of each of the two jobs")
    parser.add_argument("--rounds", type=int, default=500, help="samples of each implementation")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--database-url")
    parser.add_argument("--only", default="", help="letters of the parts to run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warpcall-") as folder:
        settings = {
            "WARPCALL_DATA_DIR": folder,
            "WARPCALL_ARENA_BYTES": "64MiB",
            "WARPCALL_USER_MAX_JOBS": "100000",
            "WARPCALL_USER_RUNNING_JOBS": "1",
        }
        if args.database_url:
            settings["WARPCALL_DATABASE_URL"] = args.database_url
        store = Store(args.database_url, Path(folder))
        store.migrate()
        keys = fill(store, args.cases, args.rounds, args.events)
        store.close()
        say(f"2 jobs of {args.cases} cases with {args.rounds} samples, one of {args.events} events")
        with running_server({**settings, "WARPCALL_DEVICES": "cpu"}) as server:
            for letter, (what, part) in PARTS.items():
                if letter in (args.only or PARTS):
                    other = Other(server, keys["bob"])
                    with other.at_work():
                        result = part(server, keys["alice"])
                    other.report(f"{what}: {result}" if result else what)


def fill(store: Store, cases: int, rounds: int, events: int) -> dict[str, str]:
    """Make the jobs, all of alice's, and keys for alice and bob."""
    drawn = random.Random(1)
    with store.write() as session:
        keys = {}
        for user in ("alice", "bob"):
            users.add_user(session, user)
            session.flush()
            keys[user] = users.create_key(session, user, "bench", None)[1]
        for number in (FIRST, SECOND, EVENTFUL):
            row = job(number, OP, "succeeded", 0)
            row |= {"user_name": "alice", "implementations": json.dumps(IMPLEMENTATIONS)}
            session.execute(sa.insert(Job), [row])
        # A job of bob's runs on another server, so that none of those that are submitted begins.
        session.execute(sa.insert(Job), [job(RUNNING, OP, "running", 0) | {"user_name": "bob"}])
        for number in (FIRST, SECOND):
            for position in range(cases):
                key = f"{OP} case {position}"
                session.execute(
                    sa.insert(JobCase),
                    [
                        {
                            "job_number": number,
                            "position": position,
                            "spec": "{}",
                            "key": key,
                            "finished_ms": 0,
                            "result": result(drawn, rounds),
                        }
                    ],
                )
                rows = [measurement(number, position, OP, name, key) for name in IMPLEMENTATIONS]
                session.execute(sa.insert(Measurement), rows)
        progress = '{"position":7,"phase":"rounds","implementation":"torch","rounds":100}'
        for begin in range(1, events + 1, 5000):
            some = [
                {
                    "job_number": EVENTFUL,
                    "sequence": sequence,
                    "at_ms": sequence,
                    "kind": "progress",
                    "data": progress,
                }
                for sequence in range(begin, min(begin + 5000, events + 1))
            ]
            session.execute(sa.insert(JobEvent), some)
    return keys


def result(drawn: random.Random, rounds: int) -> bytes:
    """The sampler's answer for a case, as the database keeps it."""
    implementations = [
        {
            "name": name,
            "status": "ok",
            "n": rounds,
            "median_us": 20.0,
            "samples_us": [drawn.lognormvariate(3, 0.05) for _ in range(rounds)],
        }
        for name in IMPLEMENTATIONS
    ]
    result = {
        "spec": {},
        "device": "cpu",
        "clock": "perf_counter",
        "column": "device_cold",
        "rounds": rounds,
        "masked": [],
        "converged": True,
        "margin": 0.01,
        "a_a": None,
        "bytes_moved": 4096,
        "limit": None,
        "tags": [],
        "implementations": implementations,
    }
    return zlib.compress(json.dumps(result, separators=(",", ":")).encode(), 1)


SAMPLES = f"/v1/jobs/{identity(FIRST)}/results?samples=true"
COMPARE = f"/v1/jobs/{identity(FIRST)}/compare/{identity(SECOND)}"
EVENTS = f"/v1/jobs/{identity(EVENTFUL)}/events"


def nothing(_server: Server, _key: str) -> str:
    """Nobody else is there."""
    time.sleep(10)
    return ""


def one_comparison(server: Server, key: str) -> str:
    """One comparison, read to its end."""
    return read_all(server, key, [COMPARE])


def one_export(server: Server, key: str) -> str:
    """One export with samples, read to its end."""
    return read_all(server, key, [SAMPLES])


def many_exports(server: Server, key: str) -> str:
    """24 exports, read to their ends."""
    return read_all(server, key, [SAMPLES] * 24)


def clients_leave(server: Server, key: str) -> str:
    """60 exports and 30 comparisons whose clients leave after a second; then 20 s of waiting."""
    sockets = [ask(server, key, path) for path in [SAMPLES] * 60 + [COMPARE] * 30]
    time.sleep(1)
    for sock in sockets:
        sock.close()
    time.sleep(20)
    return ""


def many_events(server: Server, key: str) -> str:
    """Eight streams of events, read to their ends."""
    return read_all(server, key, [EVENTS] * 8)


def slow_readers(server: Server, key: str, path: str = SAMPLES, count: int = 60) -> str:
    """Readers who take 64 KiB each second, for 20 s."""
    sockets = [ask(server, key, path) for _ in range(count)]
    for _ in range(20):
        begin = time.monotonic()
        for sock in sockets:
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.recv(65536)
        time.sleep(max(0.0, begin + 1 - time.monotonic()))
    for sock in sockets:
        sock.close()
    return ""


def slow_watchers(server: Server, key: str) -> str:
    """The same, of events."""
    return slow_readers(server, key, EVENTS)


def ask(server: Server, key: str, path: str) -> socket.socket:
    """A socket on which a request was sent."""
    sock = socket.create_connection(("127.0.0.1", server.port))
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
    sock.sendall(head.encode())
    return sock


def read_all(server: Server, key: str, paths: list[str], limit_s: float = 300) -> str:
    """Read all of these at once; what came of it."""
    found: list[tuple[int, int, float]] = []

    def read(path: str) -> None:
        begin = time.monotonic()
        request = Request(server.url + path, headers={"Authorization": f"Bearer {key}"})
        nbytes = 0
        while True:
            try:
                with urlopen(request, timeout=limit_s) as answer:
                    while piece := answer.read(1 << 20):
                        nbytes += len(piece)
                found.append((200, nbytes, time.monotonic() - begin))
                return
            except HTTPError as error:
                with error:
                    if error.code != 429 or time.monotonic() > begin + limit_s:
                        found.append((error.code, nbytes, time.monotonic() - begin))
                        return
                    time.sleep(float(error.headers["Retry-After"]))
            except OSError:
                found.append((0, nbytes, time.monotonic() - begin))
                return

    threads = [threading.Thread(target=read, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted({status for status, *_ in found})
    return (
        f"statuses {statuses}, {sum(n for _, n, _ in found) >> 20} MiB, "
        f"the last after {max(seconds for *_, seconds in found):.1f} s"
    )


PARTS: dict[str, tuple[str, Callable[[Server, str], str]]] = {
    "n": ("nothing else", nothing),
    "x": ("one export with samples", one_export),
    "c": ("one comparison", one_comparison),
    "e": ("8 streams of events", many_events),
    "s": ("60 slow readers of exports", slow_readers),
    "w": ("60 slow readers of events", slow_watchers),
    "m": ("24 exports with samples", many_exports),
    "l": ("60 exports and 30 comparisons whose clients leave", clients_leave),
}

if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
