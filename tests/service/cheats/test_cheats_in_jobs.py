"""Cheats in jobs of a real server, in the sandbox: each has its row, and the others have theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.cheats.cheats import cheats
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, ended, results, submit
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.requests import Lab, running_lab, uploaded
from tests.waiting import until

pytestmark = [needs_bubblewrap, pytest.mark.slow]
SOURCES = {one.name: one.source for folder in ("processes", "times") for one in cheats(folder)}
HONEST = "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"
MEMORY = """
def permute(x, dims):
    kept = [bytearray(64 << 20) for _ in range(1 << 10)]
    return x.permute(dims).contiguous()
"""
CASE = {"shape": [1600, 1600], "dtype": "F32", "params": {"dims": [1, 0]}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = str(tmp_path_factory.mktemp("data"))
    settings = {
        "WARPCALL_UPLOADS": "sandboxed",
        "WARPCALL_UPLOAD_CALL_S": "5",
        "WARPCALL_UPLOAD_COMPILE_S": "30",
        "WARPCALL_JOB_MEMORY_BYTES": "2GiB",
        **BRIEF,
    }
    with running_lab(Database("sqlite", {"WARPCALL_DATA_DIR": folder}), "ann", **settings) as found:
        with found.http("ann") as ann:
            until(lambda: ann.get("/readyz").json()["uploads"] == "sandboxed")
        yield found


def rows_of(lab: Lab, name: str, source: str) -> dict[str, dict[str, Any]]:
    """The rows of a job that times a cheat between an honest upload and torch."""
    with lab.http("ann") as ann:
        uploaded(ann, HONEST, name="honest")
        uploaded(ann, source, name=name)
        names = ["ann/honest", f"ann/{name}", "torch"]
        job = ended(ann, submit(ann, implementations=names, cases=[CASE], fresh=True))
        found = {row["implementation"]: row for row in results(ann, job)["measurements"]}
    assert [*found] == names, job
    return found


@pytest.mark.parametrize(
    ("name", "statuses", "error"),
    [
        ("processes/exits", {"crashed"}, "exited with status 3"),
        ("processes/hangs_later", {"timeout"}, "did not end within"),
        ("processes/two_megabytes", {"crashed"}, "may not"),
        ("processes/huge_numbers", {"ok"}, ""),
        ("processes/busy_after_a_wrong_result", {"wrong_result"}, "differs"),
        ("times/invented_samples", {"invalid"}, "by our own clock"),
        ("memory", {"oom", "crashed", "error"}, ""),
    ],
)
def test_a_cheat_in_a_job_has_its_row_and_the_others_have_theirs(
    name: str, statuses: set[str], error: str, lab: Lab
) -> None:
    found = rows_of(lab, name.rpartition("/")[2].replace("_", "-"), SOURCES.get(name, MEMORY))

    honest, cheat, torch = found.values()
    assert cheat["status"] in statuses, cheat["error"]
    assert error in (cheat["error"] or "")
    assert (honest["status"], honest["error"]) == ("ok", None)
    assert (torch["status"], torch["error"]) == ("ok", None)
    assert cheat["status"] == "ok" or cheat["verdict"] is None
