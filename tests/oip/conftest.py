"""A real server for the tests of the Open Inference Protocol, and ways to speak to it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import httpx
import pytest

from tests.oip.lending import Make
from tests.servers import Server, running_server
from tests.service.databases import Database

SETTINGS = {
    "WARPCALL_ARENA_BYTES": "128MiB",
    "WARPCALL_MAX_BODY_BYTES": "32MiB",
    "WARPCALL_BODY_TIMEOUT_S": "2",
    "WARPCALL_USER_MAX_SHARED_BYTES": "64MiB",
}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running_server(SETTINGS) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    """An empty database."""
    return Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path / "data")})


@pytest.fixture
def segment() -> Iterator[Make]:
    """Makes segments of so many bytes; gone at the end."""
    made: list[SharedMemory] = []

    def make(nbytes: int) -> str:
        made.append(SharedMemory(f"warpcall-{secrets.token_hex(6)}", create=True, size=nbytes))
        return made[-1].name

    yield make
    for one in made:
        one.close()
        with contextlib.suppress(FileNotFoundError):  # a test has removed it
            one.unlink()
