"""The application with shared memory allowed, for the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.harness import App, running_app
from tests.oip.lending import segment

__all__ = ["segment"]

SETTINGS: dict[str, Any] = {
    "arena_bytes": "128MiB",
    "max_body_bytes": "32MiB",
    "body_timeout_s": 2,
    "user_max_shared_bytes": "64MiB",
}


@pytest.fixture(scope="session")
def app() -> Iterator[App]:
    with running_app(**SETTINGS) as running:
        yield running
