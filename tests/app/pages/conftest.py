"""The application with jobs of every kind, which every test of the pages reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.pages.filled import Jobs, filled

# As in tests/pages/conftest.py: no job is started here.
SETTINGS = {"arena_bytes": "16MiB", "user_running_jobs": 1, "job_lease_s": 86400}


@dataclass(frozen=True, kw_only=True)
class Lab(Jobs):
    """The application, and the ids of its jobs."""

    app: App


@pytest.fixture(scope="session")
def pages_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    jobs = filled(folder)
    with running_app(**SETTINGS, data_dir=folder) as app:
        yield Lab(app=app, **jobs)


@pytest.fixture
def browser_http(pages_lab: Lab) -> Iterator[httpx.Client]:
    """A client that asks as a browser does."""
    with pages_lab.app.client() as client:
        client.headers["accept"] = "text/html"
        yield client
