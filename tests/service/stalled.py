"""Servers whose outputs are stalled, and what must hold of a server whatever is stalled."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from bench.echo import HOPS, echo
from demo.server import COMMAND, Server
from tests.forks import Forked
from tests.service.databases import environment
from tests.service.requests import PERMUTE, well
from tests.template import ROOT

HEALTH_S = 0.5
DRAIN_S = 1.0
# As docs/failures.md says, plus what a busy machine takes to start and end processes.
END_S = 2 * DRAIN_S + 8 + 5.0
SETTINGS = {
    "WARPCALL_HOST": "127.0.0.1",
    "WARPCALL_ARENA_BYTES": "16MiB",
    "WARPCALL_DRAIN_TIMEOUT_S": str(DRAIN_S),
}
PIPE_BYTES = 4096
BRIEF = "import tests.service.brief_jobs.sitecustomize\n"


class FullPipe:
    """A pipe that holds no further byte.

    Attributes:
        fd: its end for writing; blocking, like that of a shell's pipeline.
    """

    def __init__(self) -> None:
        self._reader, self.fd = os.pipe()
        fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self.fd, False)
        with suppress(BlockingIOError):
            while True:
                os.write(self.fd, b"x")
        os.set_blocking(self.fd, True)

    def read(self, until: bytes) -> bytes:
        """Read until something has come."""
        os.set_blocking(self._reader, False)
        found, deadline = b"", time.monotonic() + 30
        while until not in found:
            assert time.monotonic() < deadline, found[-2000:]
            with suppress(BlockingIOError):
                found += os.read(self._reader, 1 << 16)
            time.sleep(0.01)
        return found.lstrip(b"x")

    def leave(self) -> None:
        """Close the end of the reader."""
        os.close(self._reader)

    def close(self) -> None:
        for fd in (self._reader, self.fd):
            with suppress(OSError):
                os.close(fd)


@contextmanager
def server_that_writes_to(
    stdout: int, stderr: int, settings: Mapping[str, str], under: Sequence[str] = ()
) -> Iterator[Server]:
    """A server with these outputs; it is killed at the end if the test has not ended it.

    Args:
        under: a command that starts the one that follows it, in its own place.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = Forked(
        (*under, *COMMAND),
        env=environment({**SETTINGS, "WARPCALL_PORT": str(port), **settings}),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )
    server = Server(f"http://127.0.0.1:{port}", Path(os.devnull), process, Path(os.devnull))
    try:
        server.wait_ready()
        yield server
    finally:
        process.kill()
        process.wait()


def serves(http: httpx.Client, calls: int = 20) -> None:
    """Check that calls are right, and that /healthz answers soon."""
    for _ in range(calls):
        answer = well(http)
        assert (answer.status_code, answer.json()["outputs"]["out"]["data"]) == (200, [2, 1, 0])
    is_healthy(http)


def is_healthy(http: httpx.Client) -> None:
    """Check how long /healthz takes: the median, beside what a busy machine takes itself."""
    with echo() as control:
        pairs = [(_health_s(http), control.round_trip_s()) for _ in range(9)]
    health_s, echo_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert health_s < HEALTH_S + HOPS * echo_s


def ends(server: Server) -> None:
    """Check that SIGTERM ends a server in good order within the time that docs/failures.md names."""
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(END_S) == 0


def many_requests(server: Server, number: int) -> None:
    """Make so many requests on one connection, and read their answers."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        for _ in range(0, number, 100):
            sock.sendall(f"GET {PERMUTE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 100)
            answers = b""
            while answers.count(b"HTTP/1.1 ") < 100 or not answers.endswith(b"}"):
                data = sock.recv(1 << 20)
                assert data
                answers += data


def _health_s(http: httpx.Client) -> float:
    began = time.monotonic()
    assert http.get("/healthz").status_code == 200
    return time.monotonic() - began


def at_start_of_python(folder: Path, program: str) -> dict[str, str]:
    """The variables that let every Python of a server run a program before anything else.

    Its jobs are brief.
    """
    (folder / "sitecustomize.py").write_text(BRIEF + program)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
