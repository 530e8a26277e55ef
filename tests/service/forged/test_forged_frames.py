"""A job's process that sends what the database refuses, or floods the server: its job ends, and the
lane and all others go on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import new_database
from tests.service.job_requests import BRIEF, client, ended, reached, submit
from warpcall.jobs import UNFINISHED

pytestmark = pytest.mark.slow

SETTINGS = {
    "WARPCALL_ARENA_BYTES": "16MiB",
    "WARPCALL_JOB_MODULES": "tests.service.forged.forging",
    "PYTHONPATH": BRIEF["PYTHONPATH"],
}


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    database = new_database(request, tmp_path_factory.mktemp("forged"))
    with running_server({**SETTINGS, **database.settings}) as running:
        yield running


@pytest.mark.parametrize("implementation", ["nul", "nul-as-a-name", "lone-surrogate"])
def test_a_text_that_the_database_refuses_stops_neither_the_job_nor_its_lane(
    implementation: str, server: Server
) -> None:
    with client(server) as http:
        job = ended(http, submit(http, implementations=[implementation]))
        after = ended(http, submit(http, fresh=True))

    assert job["state"] in ("failed", "invalid")
    assert job["detail"].isprintable()
    assert after["state"] == "succeeded"


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_flood_of_requests_for_the_device_delays_nobody(server: Server) -> None:
    with client(server) as http:
        job = submit(http, implementations=["flood"])
        reached(http, job, lambda found: found["state"] == "running")
        waited = []
        while unfinished(http, job):
            began = time.monotonic()
            assert http.get("/healthz").status_code == 200
            waited.append(time.monotonic() - began)
            time.sleep(0.02)

    assert len(waited) > 20
    assert sorted(waited)[len(waited) // 2] < 0.1
    assert max(waited) < 1.0


def unfinished(http: httpx.Client, job: dict[str, object]) -> bool:
    return http.get(f"/v1/jobs/{job['id']}").json()["state"] in UNFINISHED
