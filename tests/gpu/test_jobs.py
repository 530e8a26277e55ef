"""Jobs on a GPU: what breaks the device breaks it for one job only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.server import Server, running_server
from tests.service.job_requests import CASE, client, ended, processes, results, submit
from tests.service.requests import well

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "WARPCALL_DEVICES": "cuda:0",
    "WARPCALL_ARENA_BYTES": "64MiB",
    "WARPCALL_JOB_MODULES": "tests.service.misbehaving",
    "WARPCALL_JOB_STALL_S": "60",
    "WARPCALL_JOB_BLOCK_S": "5",
    "WARPCALL_WAITING_PROCESS_S": "0",  # tests look for processes that a job leaves
    "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),  # so that a job finds that module
}


@pytest.fixture(scope="module")
def http(device: str) -> Iterator[httpx.Client]:
    if device != "cuda":  # it comes before the folder's own fixture
        pytest.skip("needs --device cuda")
    with running_server(SETTINGS) as running, client(running) as http:
        http.server = running  # type: ignore[attr-defined]
        yield http


@pytest.mark.parametrize(
    ("implementation", "exit_class"),
    [
        ("illegal", "cuda_error"),
        ("assert-on-the-device", "cuda_error"),
        ("allocate-on-the-device", "oom"),
        ("spin", "timeout"),
        ("leave", "killed"),
        ("wrong", "wrong_result"),
    ],
)
def test_an_implementation_that_breaks_the_device_ends_its_job_only(
    implementation: str, exit_class: str, http: httpx.Client
) -> None:
    server: Server = http.server  # type: ignore[attr-defined]

    job = ended(http, submit(http, implementations=[implementation]))

    assert well(http).status_code == 200
    assert job["exit_class"] == exit_class, job
    assert processes(server) == []
    lane = http.get("/readyz").json()["lanes"][0]
    assert (lane["state"], lane["restarts"]) == ("ready", 0)


def test_a_job_measures_against_torch_and_the_limit(http: httpx.Client) -> None:
    case = {**CASE, "shape": [4096, 4096], "dtype": "BF16"}
    names = ["warpcall", "torch", "copy"]

    job = ended(http, submit(http, cases=[case], implementations=names))

    rows: dict[str, Any] = {m["implementation"]: m for m in results(http, job)["measurements"]}
    assert job["state"] == "succeeded", job
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert rows["torch"]["verdict"] in ("slower", "same")
    assert 0.5 < rows["warpcall"]["share_of_limit"] < 1.1
