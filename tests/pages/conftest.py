"""A server with the lab's jobs, which every test of the pages reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.pages.filled import Jobs, filled
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import client

# The job that runs is one of another server, and of the user whose jobs wait: none of these is
# started here.
SETTINGS = {
    "WARPCALL_ARENA_BYTES": "16MiB",
    "WARPCALL_USER_RUNNING_JOBS": "1",
    "WARPCALL_JOB_LEASE_S": "86400",
}


@dataclass(frozen=True, kw_only=True)
class Lab(Jobs):
    """The server, and the ids of its jobs."""

    server: Server


@pytest.fixture(scope="session")
def pages_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    jobs = filled(folder)
    with running_server({**SETTINGS, "WARPCALL_DATA_DIR": str(folder)}) as server:
        yield Lab(server=server, **jobs)


@pytest.fixture
def browser_http(pages_lab: Lab) -> Iterator[httpx.Client]:
    """A client that asks as a browser does."""
    headers = {"accept": "text/html"}
    # The page of a compile report answers when the kernels are compiled.
    with httpx.Client(base_url=pages_lab.server.url, headers=headers, timeout=120) as client:
        yield client


@dataclass(frozen=True)
class SharedLab:
    """A server with keys and jobs."""

    server: Server
    key: str
    jobs: dict[str, str]

    def share(self, name: str, **fields: str) -> tuple[str, str]:
        """The id of a new link to one of alice's jobs, and the path that it leads to."""
        with client(self.server, self.key) as alice:
            answer = alice.post(f"/v1/jobs/{self.jobs[name]}/shares", json=fields)
            assert answer.status_code == 201, answer.text
            return answer.json()["id"], answer.json()["url"]


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLab]:
    folder = tmp_path_factory.mktemp("shared")
    jobs = filled(folder)
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    key = database.key("alice", "bench")
    with running_server({**SETTINGS, **database.settings}) as server:
        yield SharedLab(server, key, jobs)
