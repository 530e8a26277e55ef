"""A server on the GPU that runs uploads in the sandbox, for tests of these."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from demo.server import running_server
from tests.service.job_requests import client
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PATHS = (str(ROOT), *sys.path)
SETTINGS = {
    "WARPCALL_DEVICES": "cuda:0",
    "WARPCALL_ARENA_BYTES": "64MiB",
    "WARPCALL_UPLOADS": "sandboxed",
    "WARPCALL_UPLOAD_CALL_S": "4",
    "PYTHONPATH": os.pathsep.join(PATHS),
}


@contextmanager
def sandboxing(device: str, **settings: str) -> Iterator[httpx.Client]:
    """A client of the server, once its sandbox can be used. Its attribute `server` is the server.

    Skips the test without a GPU.

    Args:
        settings: in place of those above, and beside them.
    """
    if device != "cuda":  # fixtures of modules come before the folder's own one
        pytest.skip("needs --device cuda")
    with running_server({**SETTINGS, **settings}) as running, client(running) as http:
        http.server = running  # type: ignore[attr-defined]
        until(lambda: http.get("/readyz").json()["uploads"] == "sandboxed")
        yield http
