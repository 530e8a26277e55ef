"""Servers for the tests that do not break them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import pointed
from tests.e2e.command import Warpcall, command_for
from tests.e2e.lab import lab, sandboxed_lab
from tests.servers import Server, running_server
from tests.service.job_requests import BRIEF

__all__ = ["lab", "sandboxed_lab", "server", "warpcall"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    pointed.skip_others(items)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server whose processes are forks: see tests/forks.py."""
    if pointed.URL:
        yield pointed.Elsewhere(pointed.URL)
        return
    with running_server({"WARPCALL_ARENA_BYTES": "256MiB", **BRIEF}) as running:
        yield running


@pytest.fixture
def warpcall(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Warpcall:
    return command_for(server, monkeypatch, capsys)
