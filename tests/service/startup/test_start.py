"""A real server while its lane starts: it listens, and callers wait until it is ready."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from demo.server import COMMAND
from tests.forks import Forked
from tests.nginx import free_port
from tests.waiting import until
from warpcall import Client

pytestmark = pytest.mark.slow

# Keeps each worker process from its first import until a file exists.
SITECUSTOMIZE = """
import os, sys, time
if "warpcall_service.worker.main" in sys.orig_argv:
    while not os.path.exists({file!r}):
        time.sleep(0.02)
"""
TIMEOUT_S = 60.0
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Starting:
    """A server whose worker process waits for `let_worker_start`."""

    def __init__(self, folder: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.address = ("127.0.0.1", port)
        self.url = f"http://127.0.0.1:{port}"
        self.process = process
        self.log = folder / "log"
        self._start_file = folder / "start"

    def let_worker_start(self) -> None:
        self._start_file.touch()

    def listens(self) -> bool:
        try:
            socket.create_connection(self.address).close()
        except ConnectionRefusedError:
            return False
        return True

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=TIMEOUT_S)


@contextmanager
def server_whose_worker_waits(folder: Path, **settings: str) -> Iterator[Starting]:
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(file=str(folder / "start")))
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WARPCALL_")} | {
        "PYTHONPATH": str(folder),
        "WARPCALL_PORT": str(port),
        "WARPCALL_DEVICES": "cpu",
        "WARPCALL_ARENA_BYTES": "16MiB",
        "WARPCALL_DATA_DIR": str(folder / "data"),
        **settings,
    }
    with (folder / "log").open("wb") as log:
        process = Forked(COMMAND, env=environment, stdout=log, stderr=log)
    try:
        starting = Starting(folder, port, process)
        until(lambda: process.poll() is not None or starting.listens())
        yield starting
    finally:
        process.kill()
        process.wait()


def test_callers_and_probes_wait_until_it_is_ready(tmp_path: Path) -> None:
    with (
        server_whose_worker_waits(tmp_path) as server,
        ThreadPoolExecutor(4) as pool,
        Client(server.url, progress=False, timeout_s=TIMEOUT_S) as client,
    ):
        call = pool.submit(client.permute, X, dims=(1, 0))
        gets = [pool.submit(server.get, path) for path in ("/healthz", "/readyz", "/v1/kernels")]
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{server.url}/healthz", timeout=1)
        assert not call.done()
        assert not any(one.done() for one in gets)

        server.let_worker_start()

        assert np.array_equal(call.result(), X.T)
        assert [one.result().status_code for one in gets] == [200, 200, 200]


def test_a_signal_ends_it_while_it_starts_and_a_caller_waits(tmp_path: Path) -> None:
    with server_whose_worker_waits(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.get, "/readyz")

        server.process.send_signal(signal.SIGTERM)

        assert server.process.wait(TIMEOUT_S) == 0
        assert isinstance(waiting.exception(), httpx.TransportError)


def test_a_refusal_to_start_ends_it_although_its_lane_still_starts(tmp_path: Path) -> None:
    with server_whose_worker_waits(tmp_path, WARPCALL_REQUIRE_KEYS="true") as server:
        assert server.process.wait(TIMEOUT_S) == 2

    assert "the database has no API key" in server.log.read_text()
