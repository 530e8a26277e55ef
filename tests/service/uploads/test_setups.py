"""Uploads with a setup: it is called once in each case, is not timed, and fails as calls do."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.servers import running_server
from tests.service.job_requests import CASE, client, ended, results, submit
from tests.service.uploads.requests import SETTINGS, uploaded

pytestmark = pytest.mark.slow

# Prints in each call, so that the test sees what was called, in which order and with what.
PRINTS = """
import time

def setup(x, dims):
    time.sleep(0.3)
    print("setup", list(x.shape), x.dtype, x.device, x.stride(), dims, hasattr(x, "data_ptr"))
    return {"calls": 0}

def permute(x, dims, state):
    state["calls"] += 1
    print("call", state["calls"])
    return x.permute(dims).contiguous()
"""
FAILING = """
def setup(x, dims):
    BODY

def permute(x, dims, state):
    return x.permute(dims).contiguous()
"""


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    settings = {**SETTINGS, "WARPCALL_UPLOAD_COMPILE_S": "10"}
    with running_server(settings) as running, client(running) as http:
        yield http


def test_a_setup_is_called_once_in_each_case_before_its_calls(http: httpx.Client) -> None:
    uploaded(http, PRINTS, name="prints")
    cases = [CASE, {**CASE, "shape": [8, 16]}]

    job = ended(http, submit(http, cases=cases, implementations=["torch", "local/prints"]))

    printed = http.get(f"/v1/jobs/{job['id']}/printed").json()["printed"]
    assert job["state"] == "succeeded", job
    assert [row["status"] for row in results(http, job)["measurements"]] == ["ok"] * 4
    for one, shape in zip(printed, ([8, 8], [8, 16]), strict=True):
        lines = one["text"].splitlines()
        strides = (shape[1], 1)
        assert lines[0] == f"setup {shape} torch.float32 cpu {strides} (1, 0) False"
        assert lines[1] == "call 1"
        assert sum(line.startswith("setup") for line in lines) == 1
    assert job["times"]["setup_s"] >= 0.6
    rows = {row["implementation"]: row for row in results(http, job)["measurements"]}
    assert rows["local/prints"]["median_us"] < 300_000


FAILURES = [
    ("return x.shape[7]", "error", "IndexError"),
    ("raise MemoryError('no')", "oom", "MemoryError: no"),
    ("raise SystemExit", "error", "UploadedCodeEnded: it raised SystemExit"),
    ("return x.sum()", "error", "'InputDescription' object has no attribute 'sum'"),
    ("import os; os._exit(3)", "crashed", "in its setup"),
    ("import time; time.sleep(600)", "timeout", "its setup did not end within 10 s"),
]


def test_setups_that_fail_fail_as_calls_do(http: httpx.Client) -> None:
    for number, (body, _, _) in enumerate(FAILURES):
        uploaded(http, FAILING.replace("BODY", body), name=f"failing{number}")
    names = ["torch", *(f"local/failing{number}" for number in range(len(FAILURES)))]

    job = ended(http, submit(http, cases=[CASE], implementations=names))

    torch, *rows = results(http, job)["measurements"]
    assert torch["status"] == "ok"
    for number, (row, (_, status, error)) in enumerate(zip(rows, FAILURES, strict=True)):
        assert (row["implementation"], row["status"]) == (f"local/failing{number}", status)
        assert error in row["error"]
        if status == "error":
            assert f'failing{number}.py", line 3, in setup' in row["traceback"]
    assert job["times"]["setup_s"] > 0
