"""An operator's modules: an edit is measured anew, and one that is broken fails alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.job_requests import BRIEF, CASE, Job, client, ended, results, submit
from tests.service.requests import problem_of, well

GOOD = """
import time
from warpcall_kernels.measuring import Implementation
from my_lab.tiles import PAUSE_S

def build(op, params):
    def compute(x):
        time.sleep(PAUSE_S)
        return x.permute(params["dims"]).contiguous()
    return compute

IMPLEMENTATIONS = (Implementation("mine", "the lab's kernel", build, ("permute",)),)
"""
BROKEN = """
IMPLEMENTATIONS = ()
import no_such_package
"""
ENDLESS = """
import time
while True:
    time.sleep(1)
"""


@dataclass(frozen=True)
class Lab:
    """A server with three modules of its operator, in `folder`."""

    server: Server
    folder: Path


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("modules")
    package = folder / "my_lab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tiles.py").write_text("PAUSE_S = 0\n")
    (package / "kernels.py").write_text(GOOD)
    (folder / "broken_lab.py").write_text(BROKEN)
    (folder / "endless_lab.py").write_text(ENDLESS)
    settings = {
        "WARPCALL_ARENA_BYTES": "16MiB",
        "WARPCALL_JOB_MODULES": "endless_lab,broken_lab,my_lab.kernels",
        "WARPCALL_JOB_MODULE_S": "3",
        "PYTHONPATH": os.pathsep.join([BRIEF["PYTHONPATH"], str(folder)]),
    }
    with running_server(settings) as server:
        yield Lab(server, folder)


@pytest.fixture
def http(lab: Lab) -> Iterator[httpx.Client]:
    with client(lab.server) as http:
        yield http
        assert well(http).status_code == 200


def median_us(http: httpx.Client, job: Job) -> float:
    (row,) = results(http, job)["measurements"]
    assert row["status"] == "ok", row
    return float(row["median_us"])


@pytest.mark.slow
def test_an_edited_module_is_measured_anew_and_its_history_says_so(
    lab: Lab, http: httpx.Client
) -> None:
    tiles = lab.folder / "my_lab" / "tiles.py"
    stat = tiles.stat()
    first = ended(http, submit(http, implementations=["mine"]))
    again = submit(http, implementations=["mine"])

    tiles.write_text("PAUSE_S=.01\n")
    os.utime(tiles, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as Python's cache of bytecode sees
    second = submit(http, implementations=["mine"])
    assert not second["reused"]
    second = ended(http, second)
    known = submit(http, implementations=["mine"])

    assert again["reused"]
    assert again["id"] == first["id"]
    assert second["state"] == "succeeded"
    assert second["sources"].keys() == {"mine"}
    assert second["sources"] != first["sources"]
    assert median_us(http, second) > 10_000 > median_us(http, first)
    assert (known["reused"], known["id"]) == (True, second["id"])
    case = results(http, second)["measurements"][0]["case"]
    asked = {"op": "permute", "implementation": "mine", "case": case}
    points = http.get("/v1/jobs/history", params=asked).json()["points"]
    assert [point["changed"] for point in points] == [["source"], []]
    assert [p["measurement"]["source_sha256"] for p in points] == [
        second["sources"]["mine"],
        first["sources"]["mine"],
    ]


def test_a_module_that_does_not_import_fails_only_jobs_that_name_its_implementations(
    lab: Lab, http: httpx.Client
) -> None:
    other = ended(http, submit(http, implementations=["warpcall"], fresh=True))
    body = {"op": "permute", "implementations": ["theirs"], "cases": [CASE]}

    refused = http.post("/v1/jobs", json=body)

    assert other["state"] == "succeeded"
    detail = problem_of(refused, 422, "invalid-input", "implementations")
    assert "implementations must be of warpcall, torch, torch.compile, copy, mine" in detail
    assert (
        "the module broken_lab cannot be used: broken_lab.py, line 3: "
        "ModuleNotFoundError: No module named 'no_such_package'" in detail
    )
    assert "the module endless_lab cannot be used: its import did not end within 3 s" in detail
    listed = http.get("/v1/implementations").json()
    assert [(one["name"], one["kind"], one["op"]) for one in listed["implementations"][-2:]] == [
        ("copy", "shipped", None),
        ("mine", "operator", "permute"),
    ]
    errors = {one["module"]: one["error"] for one in listed["errors"]}
    assert errors.keys() == {"broken_lab", "endless_lab"}
    assert errors["broken_lab"] in detail
    log = lab.server.log.read_text()
    assert "No module named 'no_such_package'" in log
    assert "its import did not end within 3 s" in log


def test_a_module_that_breaks_after_the_submission_is_an_error_of_its_implementations(
    lab: Lab, http: httpx.Client
) -> None:
    kernels = lab.folder / "my_lab" / "kernels.py"
    first = submit(http, implementations=["torch"], fresh=True)
    second = submit(http, implementations=["mine", "torch"], fresh=True)
    source = kernels.read_text()
    kernels.write_text(source.replace("import time", "import tine"))
    try:
        ended(http, first)
        job = ended(http, second)
    finally:
        kernels.write_text(source)

    mine, torch = results(http, job)["measurements"]
    assert torch["status"] == "ok"
    assert mine["status"] == "error"
    assert mine["error"] == "ModuleNotFoundError: No module named 'tine'"
    assert 'File "my_lab/kernels.py", line 2' in mine["traceback"]
