"""The application in this process, and ways to speak to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.service.fixtures import (
    forked_programs,
    postgres,
    sqlite,
    still_works,
    tensor_client,
)

__all__ = ["forked_programs", "postgres", "sqlite", "still_works", "tensor_client"]

SETTINGS: dict[str, Any] = {
    "arena_bytes": "128MiB",
    "max_body_bytes": "32MiB",
    "body_timeout_s": 1,
    "queue_timeout_s": 0.5,
}


@pytest.fixture(scope="session")
def app() -> Iterator[App]:
    with running_app(**SETTINGS) as running:
        yield running


@pytest.fixture
def http(app: App) -> Iterator[httpx.Client]:
    with app.client() as client:
        yield client
