"""A real server for the tests of the Open Inference Protocol, and ways to speak to it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.oip.lending import segment
from tests.servers import Server, running_server

__all__ = ["segment"]

SETTINGS = {
    "WARPCALL_ARENA_BYTES": "128MiB",
    "WARPCALL_MAX_BODY_BYTES": "32MiB",
    "WARPCALL_BODY_TIMEOUT_S": "2",
    "WARPCALL_USER_MAX_SHARED_BYTES": "64MiB",
    "WARPCALL_GRPC_PORT": "0",
}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running_server(SETTINGS) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
