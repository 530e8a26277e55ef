"""A real server with small limits, and ways to speak to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database, new_database
from tests.service.fixtures import (
    forked_programs,
    postgres,
    sqlite,
    still_works,
    tensor_client,
)
from warpcall_service.store.database import Store

__all__ = ["forked_programs", "postgres", "sqlite", "still_works", "tensor_client"]

SETTINGS = {
    "WARPCALL_ARENA_BYTES": "128MiB",
    "WARPCALL_MAX_BODY_BYTES": "32MiB",
    "WARPCALL_BODY_TIMEOUT_S": "1",
    "WARPCALL_QUEUE_TIMEOUT_S": "0.5",
}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running_server(SETTINGS) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database, of both kinds in turn."""
    return new_database(request, tmp_path)


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    """Such a database, migrated, as a server has it."""
    store = database.store()
    store.migrate()
    yield store
    store.close()
