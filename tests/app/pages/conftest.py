"""The application with jobs of every kind, which every test of the pages reads."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.pages.filled import Jobs, filled
from tests.service.databases import Database

# As in tests/pages/conftest.py: no job is started here.
SETTINGS: dict[str, Any] = {"arena_bytes": "16MiB", "user_running_jobs": 1, "job_lease_s": 86400}
MakeFilled = Callable[[str], tuple[Path, dict[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Lab(Jobs):
    """The application, and the ids of its jobs."""

    app: App


@pytest.fixture(scope="session")
def make_filled(tmp_path_factory: pytest.TempPathFactory) -> MakeFilled:
    """Makes data folders with jobs of every kind, which is done once for all processes of pytest, and copied."""
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    original, names = common / "filled", common / "filled.json"
    with (common / "filled.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not names.exists():
            shutil.rmtree(original, ignore_errors=True)  # of a process that failed
            original.mkdir()
            names.write_text(json.dumps(filled(original)))

    def copied(name: str) -> tuple[Path, dict[str, str]]:
        folder = tmp_path_factory.mktemp(name)
        shutil.copytree(original, folder, dirs_exist_ok=True)
        return folder, json.loads(names.read_text())

    return copied


@pytest.fixture(scope="session")
def pages_lab(make_filled: MakeFilled) -> Iterator[Lab]:
    folder, jobs = make_filled("lab")
    with running_app(**SETTINGS, data_dir=folder) as app:
        yield Lab(app=app, **jobs)


@dataclass(frozen=True)
class SharedLab:
    """An application that asks for keys, and a user's jobs."""

    app: App
    key: str
    jobs: dict[str, str]

    def guest(self) -> httpx.Client:
        """The browser of a person without a key."""
        guest = self.app.client()
        guest.headers["accept"] = "text/html"
        return guest

    def share(self, name: str, **fields: str) -> tuple[str, str]:
        """The id of a new link to one of alice's jobs, and the path that it leads to."""
        with self.app.client(self.key) as alice:
            answer = alice.post(f"/v1/jobs/{self.jobs[name]}/shares", json=fields)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"], answer.json()["url"]


@pytest.fixture(scope="module")
def shared_lab(make_filled: MakeFilled) -> Iterator[SharedLab]:
    folder, jobs = make_filled("shared")
    key = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)}).key("alice", "bench")
    with running_app(**SETTINGS, data_dir=folder) as app:
        yield SharedLab(app, key, jobs)


@pytest.fixture
def browser_http(pages_lab: Lab) -> Iterator[httpx.Client]:
    """A client that asks as a browser does."""
    with pages_lab.app.client() as client:
        client.headers["accept"] = "text/html"
        yield client
