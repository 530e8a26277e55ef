"""Cheats in jobs, in the sandbox: each has its row, and the others have theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.service.cheats.cheats import cheats
from tests.service.job_requests import BRIEF
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.runs.upload_runs import rows, run

pytestmark = [needs_bubblewrap, pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]
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


@pytest.fixture(autouse=True)
def _jobs_are_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", BRIEF["PYTHONPATH"])


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


@pytest.mark.parametrize("job", JOBS)
def test_cheats_in_a_job_have_their_rows_and_the_others_have_theirs(
    job: str, tmp_path: Path
) -> None:
    case, expected = JOBS[job]
    sources = {name: SOURCES.get(name, MEMORY) for name in expected}

    outcome, events = run(
        *(tmp_path, {"honest": HONEST, **sources}),
        cases=[(0, case)],
        memory_bytes=2 << 30,
        upload_call_s=5.0,
        upload_compile_s=30.0,
    )

    torch, honest, *cheats = rows(events)
    assert (outcome.exit_class, outcome.detail) == ("ok", "")
    for cheat, (statuses, error) in zip(cheats, expected.values(), strict=True):
        assert cheat["status"] in statuses, cheat["error"]
        assert error in (cheat["error"] or "")
        assert cheat["status"] == "ok" or cheat["relative"] is None
    assert (honest["status"], honest["error"]) == ("ok", None)
    assert (torch["status"], torch["error"]) == ("ok", None)
