"""Verified cheats in jobs of a real server without a GPU: others have their rows, and none has a time."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.gpu.test_verified_cheats import CHANGING, CHECKED, TIMED
from tests.servers import running_server
from tests.service.cheats.verified import jobs
from tests.service.cheats.verified.sources import cheats, honest
from tests.service.job_requests import client
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.requests import SETTINGS
from tests.waiting import until

pytestmark = [needs_bubblewrap, pytest.mark.slow]

CHEATS = {one.name: one for one in cheats()}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    settings = {
        "WARPCALL_UPLOADS": "sandboxed",
        "WARPCALL_UPLOAD_COMPILE_S": "30",
        "WARPCALL_JOB_MEMORY_BYTES": "3GiB",
        "WARPCALL_SANDBOX_PROCESSES": "256",
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


def test_what_breaks_its_recorder_breaks_no_other(http: httpx.Client) -> None:
    harmful = ["exits", "forks", "eats-memory", "many-processes", "hangs"]
    names = {name: jobs.add(http, name, CHEATS[name]) for name in harmful}
    right = jobs.add(http, "honest", honest())
    (case,) = jobs.placed([honest()])

    (found,) = jobs.rows(http, [*names.values(), right], [case.case], precision="check")

    assert found[right]["status"] == "unchecked", found[right]
    for name, full in names.items():
        cheat = CHEATS[name]
        allowed = {*cheat.statuses} | ({"unchecked"} if "honest" in cheat.statuses else set())
        assert found[full]["status"] in allowed, found[full]
        assert cheat.error in found[full]["error"]
