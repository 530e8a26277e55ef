"""Cheats in jobs of a real server, in the sandbox: each has its row, and the others have theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
SMALL, LARGE = (
    {"shape": [size, size], "dtype": "F32", "params": {"dims": [1, 0]}} for size in (64, 1600)
)


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


# The cheats of a job, each with its true statuses and a part of its error.
JOBS: dict[str, tuple[dict[str, Any], dict[str, tuple[set[str], str]]]] = {
    "ended": (
        SMALL,
        {
            "processes/exits": ({"crashed"}, "exited with status 3"),
            "processes/hangs_later": ({"timeout"}, "did not end within"),
            "processes/two_megabytes": ({"crashed"}, "may not"),
        },
    ),
    "timed": (
        LARGE,
        {
            "processes/huge_numbers": ({"ok"}, ""),
            "processes/busy_after_a_wrong_result": ({"wrong_result"}, "differs"),
            "times/invented_samples": ({"invalid"}, "by our own clock"),
        },
    ),
    "memory": (SMALL, {"memory": ({"oom", "crashed", "error"}, "")}),
}


def rows_of(lab: Lab, names: Sequence[str], case: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a job that times cheats between an honest upload and torch."""
    with lab.http("ann") as ann:
        uploaded(ann, HONEST, name="honest")
        for name in names:
            uploaded(ann, SOURCES.get(name, MEMORY), name=short(name))
        timed = ["ann/honest", *(f"ann/{short(name)}" for name in names), "torch"]
        job = ended(ann, submit(ann, implementations=timed, cases=[case], fresh=True))
        found: list[dict[str, Any]] = results(ann, job)["measurements"]
    assert [row["implementation"] for row in found] == timed, job
    return found


def short(name: str) -> str:
    return name.rpartition("/")[2].replace("_", "-")


@pytest.mark.parametrize("job", JOBS)
def test_cheats_in_a_job_have_their_rows_and_the_others_have_theirs(job: str, lab: Lab) -> None:
    case, expected = JOBS[job]

    honest, *cheats, torch = rows_of(lab, [*expected], case)

    for cheat, (statuses, error) in zip(cheats, expected.values(), strict=True):
        assert cheat["status"] in statuses, cheat["error"]
        assert error in (cheat["error"] or "")
        assert cheat["status"] == "ok" or cheat["verdict"] is None
    assert (honest["status"], honest["error"]) == ("ok", None)
    assert (torch["status"], torch["error"]) == ("ok", None)
