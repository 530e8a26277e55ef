"""A real server as a child process: started on a free port, awaited, stopped as an operator would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
# The caller's settings, and the interpreter that tests switch on for kernels.
NOT_INHERITED = ("WARPCALL_", "TRITON_INTERPRET")
COMMAND = (sys.executable, "-m", "warpcall_service.cli")  # what `warpcall-server` is


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: its address, without a final slash.
        uds: the Unix domain socket on which it listens as well.
        process: the process that speaks HTTP; the lanes are its children.
        log: the file that it writes to.
    """

    url: str
    uds: Path
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def grpc_address(self) -> str:
        """Where it serves gRPC, as it says in its log."""
        said = re.search(r"grpc://([\d.]+:\d+)", self.log.read_text())
        if said is None:
            raise RuntimeError("the server serves no gRPC")
        return said[1]

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET."""
        try:
            with urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Wait until /readyz says yes; the seconds that took.

        Raises:
            RuntimeError: the server ended, or was not ready in time.
        """
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < timeout_s:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended:\n{self.log.read_text()}")
            try:
                if self.get("/readyz")[0] == 200:
                    return waited_s
            except OSError:
                pass  # it does not listen yet, or it listens and has not begun to answer
            time.sleep(0.05)
        raise RuntimeError(f"no server within {timeout_s} s:\n{self.log.read_text()}")


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ask a server to leave, and return its exit status; one that does not leave is killed."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


@contextmanager
def running_server(
    settings: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
    *,
    ready: bool = True,
    start_timeout_s: float = START_TIMEOUT_S,
    popen: type[subprocess.Popen[bytes]] = subprocess.Popen,
) -> Iterator[Server]:
    """A server on a free port of this machine; stopped at the end.

    Args:
        settings: WARPCALL_ variables; the caller's own environment has no say.
        under: a command that starts the one that follows it, in its own place.
        ready: whether to wait until it is ready; if not, it only listens.
        popen: the class that starts the process.

    Raises:
        RuntimeError: it did not start, or did not end well.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(NOT_INHERITED)}
    environment |= {"WARPCALL_HOST": "127.0.0.1", "WARPCALL_PORT": "0"}
    with tempfile.TemporaryDirectory(prefix="warpcall-") as folder:
        log = Path(folder) / "server.log"
        uds = Path(folder) / "warpcall.sock"
        environment |= {"WARPCALL_DATA_DIR": folder, "WARPCALL_UDS": str(uds), **(settings or {})}
        with log.open("wb") as sink:
            process = popen(
                (*under, *COMMAND),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
        try:
            server = Server(_url(process, log, start_timeout_s), uds, process, log)
            if ready:
                server.wait_ready(start_timeout_s)
            yield server
        finally:
            status = process.poll()
            if status is None:
                status = stop(process)
        if status:
            raise RuntimeError(f"the server ended with status {status}:\n{log.read_text()}")


def _url(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> str:
    """The address that the server says it listens on."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        said = re.search(r"https?://[\d.]+:[1-9]\d*", log.read_text())
        if said:
            return said[0]
        time.sleep(0.02)
    raise RuntimeError(f"the server does not listen:\n{log.read_text()}")
