"""Verified cheats in jobs without a GPU: others have their rows, and none has a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gpu.test_verified_cheats import CHANGING, CHECKED, TIMED
from tests.servers import running_server
from tests.service.cheats.verified import jobs
from tests.service.cheats.verified.sources import cheats, honest
from tests.service.job_requests import client
from tests.service.runs.sandboxes import Uploads, needs_bubblewrap
from tests.service.runs.upload_runs import rows, run
from tests.service.uploads.requests import SETTINGS
from tests.waiting import until

pytestmark = [needs_bubblewrap, pytest.mark.slow]

CHEATS = {one.name: one for one in cheats()}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    settings = {
        "WARPCALL_UPLOADS": "sandboxed",
        "WARPCALL_UPLOAD_COMPILE_S": "30",
    }
    with running_server({**SETTINGS, **settings}) as server, client(server) as http:
        until(lambda: http.get("/readyz").json()["uploads"] == "sandboxed")
        yield http


def test_what_only_a_gpu_refuses_is_unchecked(http: httpx.Client) -> None:
    cases = jobs.placed([CHEATS[name] for name in (*CHECKED, *TIMED, *CHANGING)])
    name = jobs.add(http, "checked", jobs.source_of(cases))

    found = jobs.rows(http, [name], [one.case for one in cases], precision="check")

    for one, row in zip(cases, found, strict=True):
        assert f"{one.rows}" in row[name]["case"]
        assert (row[name]["status"], row[name]["verified"]) == ("unchecked", True), row
        assert (row[name]["verdict"], row[name]["median_us"]) == (None, None)
        assert "share_of_limit" in row[name]


# The processes of cheats that only the sandbox bounds are started in it.
BREAKING: dict[Uploads, list[str]] = {
    "trusted": ["exits", "forks", "hangs"],
    "sandboxed": ["eats-memory", "many-processes"],
}


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("uploads", BREAKING)
def test_what_breaks_its_recorder_breaks_no_other(uploads: Uploads, tmp_path: Path) -> None:
    broken = [CHEATS[name] for name in BREAKING[uploads]]
    sources: list[Any] = [one.upload for one in (*broken, honest())]
    (case,) = jobs.placed([honest()])

    outcome, events = run(
        tmp_path,
        sources,
        uploads=uploads,
        cases=[(0, case.case)],
        precision="check",
        memory_bytes=2 << 30,
        upload_compile_s=30.0,
        sandbox_processes=64,
    )

    _, *found, right = rows(events)
    assert (outcome.exit_class, outcome.detail) == ("ok", "")
    assert right["status"] == "unchecked", right
    for cheat, row in zip(broken, found, strict=True):
        allowed = {*cheat.statuses} | ({"unchecked"} if "honest" in cheat.statuses else set())
        assert row["status"] in allowed, row
        assert cheat.error in row["error"]
