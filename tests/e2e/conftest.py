"""A real server for the tests that do not break it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.server import Server, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running_server({"WARPCALL_ARENA_BYTES": "256MiB"}) as running:
        yield running
