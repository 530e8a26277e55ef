"""Monitors on real servers: jobs of users come first, and two servers run a due monitor once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.servers import running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, CASE, client, ended, events, reached, submit
from tests.service.monitors.lab import OFTEN, add, show
from tests.waiting import until_lasting as until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CASES = [{**CASE, "shape": [8, columns]} for columns in (9, 13)]
WAITS: dict[str, Any] = {"implementations": ["wait"], "cases": CASES}  # in its second case


def test_a_job_of_a_user_does_not_wait_for_the_rest_of_a_monitors(
    sqlite: Database, tmp_path: Path
) -> None:
    go_on = tmp_path / "continue_file"
    own = {
        "WARPCALL_JOB_MODULES": "tests.service.misbehaving",
        "PYTHONPATH": os.pathsep.join([BRIEF["PYTHONPATH"], str(ROOT)]),
        "CONTINUE_FILE": str(go_on),
    }
    with running_server({**sqlite.settings, **own}) as server, client(server) as http:
        added = add(http, job=WAITS)
        until(lambda: show(http, added)["last_job"])
        slow = http.get(f"/v1/jobs/{show(http, added)['last_job']}").json()
        reached(http, slow, lambda found: found["cases_done"] == 1)

        mine = ended(http, submit(http))
        waiting = http.get(f"/v1/jobs/{slow['id']}").json()
        go_on.touch()
        done = ended(http, slow)
        measured = [one["data"]["position"] for one in events(http, done) if one["kind"] == "case"]

    assert (mine["state"], waiting["state"] in ("queued", "preparing", "running")) == (
        "succeeded",
        True,
    )
    assert (done["state"], done["attempts"]) == ("succeeded", 1)
    assert measured == [0, 1], "what was measured before is kept"


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_two_servers_run_a_due_monitor_once(database: Database, tmp_path: Path) -> None:
    def own(name: str) -> dict[str, str]:
        folder = str(tmp_path / name)
        return {**database.settings, **BRIEF, **OFTEN, "WARPCALL_DATA_DIR": folder}

    with (
        running_server(own("a")) as a,
        running_server(own("b")) as b,
        client(a) as http,
        client(b) as other,
    ):
        added = [add(http), add(other), add(http, every_s=1)]
        until(lambda: show(other, added[2])["runs"] >= 4, "it is not repeated")
        until(lambda: all(show(http, one)["series"] for one in added))
        found = [show(http, one) for one in added]
        jobs = [
            http.get(f"/v1/jobs?tag=monitor-{one['id']}&user=all&limit=500").json()["jobs"]
            for one in found
        ]

    assert [len(one) for one in jobs[:2]] == [1, 1]
    assert [one["runs"] for one in found[:2]] == [1, 1]
    begins = [job["created_at"] for job in jobs[2]]
    ends = [job["finished_at"] for job in jobs[2]]
    assert all(begin >= end for begin, end in zip(begins, ends[1:], strict=False)), "one at a time"
