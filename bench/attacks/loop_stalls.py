"""Measure how long one hostile request keeps everyone else waiting.

    .venv/bin/python -m bench.attacks.loop_stalls

Each request of `bench.attacks.hostile_requests` is sent to a server of this machine while two
clients in another process ask for /healthz and make a small call, again and again. The table shows
the longest time that the server's event loop was held without a break, in CPU time of its thread,
and the longest that either client waited meanwhile: medians of several rounds. The waits also count
what else runs on the machine, which the first row, "nothing", shows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.attacks.hostile_requests import KIB, Hostile, requests
from bench.attacks.watched_server import Longest
from bench.machine import describe
from demo.server import running_server

ALLOWED_MS = 20.0
ANSWER_TIMEOUT_S = 60.0
PROBE_PAUSE_S = 0.001
SETTLE_S = 0.05
SETTINGS = {
    "WARPCALL_CPU_THREADS": "1",  # a CPU lane must not take the server's core
    "WARPCALL_ARENA_BYTES": "512MiB",
}
GOOD = Hostile("", "GET /healthz").encode()
WATCHED = (sys.executable, "-m", "bench.attacks.watched_server")
SMALL_CALL = b'{"inputs":{"x":{"dtype":"F32","shape":[2],"data":[1,2]}},"params":{"dims":[0]}}'


@dataclass(frozen=True)
class Row:
    """What one hostile request did; milliseconds, medians over the rounds.

    Attributes:
        loop_ms: the longest time that the event loop was held, in CPU time.
        healthz_ms, call_ms: the longest wait for /healthz and for a small call.
        took_ms: until the last copy had its answer.
        answers: the status codes that came, 0 for a connection that ended without one.
    """

    name: str
    nbytes: int
    copies: int
    loop_ms: float
    healthz_ms: float
    call_ms: float
    took_ms: float
    answers: list[int]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 if any row held the event loop for too long."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.attacks.loop_stalls", description=__doc__
    )
    parser.add_argument("--json-bytes", type=int, default=512 * KIB, help="size of JSON bodies")
    parser.add_argument(
        "--header-bytes", type=int, default=128 * KIB, help="of safetensors headers"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--match", default="", help="only requests whose name holds this")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.probe:
        probe(given.probe)
        return 0
    rows = []
    with (
        tempfile.NamedTemporaryFile(prefix="warpcall-") as file,
        running_server(SETTINGS, under=(*WATCHED, file.name)) as server,
        prober(server.port) as ask,
    ):
        held = Longest(Path(file.name))
        machine = describe(server)
        for hostile in requests(given.json_bytes, given.header_bytes):
            if given.match in hostile.name:
                rows.append(measure(server.port, held, ask, hostile, given.rounds))
                sys.stdout.write(line(rows[-1]))
                sys.stdout.flush()
    if given.json:
        report = {"machine": machine, "rows": [vars(row) for row in rows]}
        given.json.write_text(json.dumps(report, indent=1))
    late = [row for row in rows if row.loop_ms > ALLOWED_MS]
    sys.stdout.write(f"{len(late)} of {len(rows)} held the event loop for over {ALLOWED_MS} ms\n")
    return 1 if late else 0


def line(row: Row) -> str:
    """A row of the table."""
    statuses = ",".join(str(status) for status in sorted(set(row.answers)))
    return (
        f"{row.name:32} {row.nbytes:>9,} B  loop {row.loop_ms:8.1f}  healthz {row.healthz_ms:8.1f}  call {row.call_ms:8.1f}  "
        f"took {row.took_ms:8.1f} ms  {statuses}\n"
    )


def measure(
    port: int, held: Longest, ask: subprocess.Popen[str], hostile: Hostile, rounds: int
) -> Row:
    """Send it `rounds` times."""
    sent = hostile.encode()
    waits: list[tuple[float, float, float]] = []
    took: list[float] = []
    answers: list[int] = []
    for _ in range(rounds):
        time.sleep(SETTLE_S)
        longest(ask)  # forget what was before
        held.forget()
        began = time.perf_counter()
        answers = send_all(port, sent, hostile.copies)
        took.append((time.perf_counter() - began) * 1e3)
        send(port, GOOD)  # its answer comes when the event loop has done all that it was held for
        time.sleep(SETTLE_S)
        waits.append((held.read(), *longest(ask)))
    loop_ms, healthz_ms, call_ms = (
        statistics.median(column) for column in zip(*waits, strict=True)
    )
    return Row(
        hostile.name,
        len(sent),
        hostile.copies,
        loop_ms,
        healthz_ms,
        call_ms,
        statistics.median(took),
        answers,
    )


def send_all(port: int, sent: bytes, copies: int) -> list[int]:
    """Send these bytes on several connections at once; the status codes of the answers."""
    answers = [0] * copies

    def one(position: int) -> None:
        answers[position] = send(port, sent)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(copies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def send(port: int, sent: bytes) -> int:
    """Send these bytes on a new connection and read the answer; its status code."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S) as sock:
        with contextlib.suppress(ConnectionError):  # refused before its end: its answer may be here
            sock.sendall(sent)
        try:
            return read_answer(sock)
        except ConnectionError:
            return 0


def read_answer(sock: socket.socket) -> int:
    """Read one answer with a Content-Length to its end; its status code."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _some(sock)
    head = bytes(data[:end]).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
    left = length - (len(data) - end - 4)
    while left > 0:
        left -= len(_some(sock))
    return int(head.split(b" ", 2)[1])


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 18)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data


@contextmanager
def prober(port: int) -> Iterator[subprocess.Popen[str]]:
    """The process of the two clients that wait."""
    command = (sys.executable, "-m", "bench.attacks.loop_stalls", "--probe", str(port))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        longest(process)
        yield process
    finally:
        process.kill()
        process.wait()


def longest(ask: subprocess.Popen[str]) -> tuple[float, float]:
    """Milliseconds of the longest waits since the last question: for /healthz, for a call."""
    assert ask.stdin is not None
    assert ask.stdout is not None
    ask.stdin.write("\n")
    healthz_ms, call_ms = ask.stdout.readline().split()
    return float(healthz_ms), float(call_ms)


def probe(port: int) -> None:
    """Ask for /healthz and make a small call until standard input ends; a line asks for both."""
    call = Hostile("", "POST /v1/kernels/permute", ("Content-Type: application/json",), SMALL_CALL)
    clients = [_Client(port, sent) for sent in (GOOD, call.encode())]
    for client in clients:
        threading.Thread(target=client.run, daemon=True).start()
    for _ in sys.stdin:
        sys.stdout.write(" ".join(str(client.longest_ms()) for client in clients) + "\n")
        sys.stdout.flush()


class _Client:
    """Sends one request again and again on one connection."""

    def __init__(self, port: int, sent: bytes) -> None:
        self._sent = sent
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self._began = time.perf_counter()
        self._longest_s = 0.0

    def run(self) -> None:
        while True:
            self._began = time.perf_counter()
            self._sock.sendall(self._sent)
            if read_answer(self._sock) != 200:
                raise RuntimeError("a good request was refused")
            self._longest_s = max(self._longest_s, time.perf_counter() - self._began)
            time.sleep(PROBE_PAUSE_S)

    def longest_ms(self) -> float:
        """The longest wait, that of now included; forgets it."""
        longest_s = max(self._longest_s, time.perf_counter() - self._began - PROBE_PAUSE_S)
        self._longest_s = 0.0
        return longest_s * 1e3


if __name__ == "__main__":
    sys.exit(main())
