"""Fixtures of tests of a server, and of the application in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.forks import forked_workers
from tests.service.databases import Database, Postgres, postgres_cluster
from tests.service.requests import well
from tests.service.stored_tensors import ALL, memory


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL."""
    with postgres_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def forked_programs() -> Iterator[None]:
    """Let workers, reapers and programs that the tests of a file start be forks: see tests/forks.py.

    What runs in a sandbox is started with exec nevertheless.
    """
    with forked_workers():
        yield


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    """An empty SQLite database, where its kind makes no difference."""
    return Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path / "data")})


@pytest.fixture
def tensor_client(http: httpx.Client) -> Iterator[httpx.Client]:
    """A client of the shared server that keeps no tensors yet, nor in the end."""
    http.delete(ALL)
    yield http
    http.delete(ALL)
    assert memory(http) == 0
    assert well(http).status_code == 200


@pytest.fixture
def still_works(http: httpx.Client) -> Iterator[Callable[[], None]]:
    """Checks, also at the end of the test, that the next request is served as if nothing was."""

    def check() -> None:
        answer = well(http)
        assert (answer.status_code, answer.json()["outputs"]["out"]["data"]) == (200, [2, 1, 0])

    yield check
    check()
