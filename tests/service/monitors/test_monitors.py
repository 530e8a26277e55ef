"""Monitors that measure: repeated, paused, removed, and stopped with their user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client
from tests.service.monitors.lab import HOUR_S, OFTEN, add, add_runs, show
from tests.waiting import until_lasting as until

pytestmark = pytest.mark.slow

USERS = {"alice": "bench", "bob": "bench", "root": "admin", "caller": "call"}


@dataclass(frozen=True)
class Lab:
    """A server, its database and a key of each user."""

    server: Server
    database: Database
    keys: dict[str, str]

    def http(self, user: str) -> httpx.Client:
        return client(self.server, self.keys[user])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("monitors")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys = {user: database.key(user, role) for user, role in USERS.items()}  # type: ignore[arg-type]
    with running_server({**database.settings, **BRIEF}) as server:
        yield Lab(server, database, keys)


@pytest.fixture(autouse=True)
def _nothing_left(lab: Lab) -> Iterator[None]:
    yield
    with lab.http("root") as http:
        for one in http.get("/v1/monitors?user=all").json()["monitors"]:
            assert http.delete(f"/v1/monitors/{one['id']}").status_code == 204


def test_a_monitor_measures_at_once_and_shows_what_it_measured(lab: Lab) -> None:
    with lab.http("alice") as http:
        added = add(http, job={"tags": ["nightly"], "note": "why"})
        until(lambda: show(http, added)["series"], "no run was measured")
        found = show(http, added)
        job = http.get(f"/v1/jobs/{found['last_job']}").json()

    assert (added["user"], added["op"], added["state"]) == ("alice", "permute", "active")
    assert (added["every_s"], added["least"], added["private"]) == (HOUR_S, 0.03, False)
    (series,) = found["series"]
    assert series["implementation"] == "torch"
    assert series["case"].startswith("permute ")
    assert [point["job"] for point in series["points"]] == [found["last_job"]]
    assert (found["runs"], found["steps"], found["found"]) == (1, 0, [])
    assert found["next_at"] > found["created_at"]
    assert job["tags"] == ["nightly", f"monitor-{added['id']}"]
    assert (job["priority"], job["note"], job["user"]) == ("low", "why", "alice")


def test_a_paused_monitor_measures_nothing_and_a_resumed_one_at_once(sqlite: Database) -> None:
    with running_server({**sqlite.settings, **BRIEF, **OFTEN}) as server, client(server) as http:
        added = add(http, every_s=1)
        path = f"/v1/monitors/{added['id']}"
        until(lambda: show(http, added)["runs"] >= 2, "it is not repeated")
        paused = http.patch(path, json={"paused": True}).json()
        until(lambda: http.get("/v1/jobs/queue").json()["entries"] == [])
        runs = show(http, added)["runs"]
        other = add(http)
        until(lambda: show(http, other)["runs"] == 1)
        still = show(http, added)["runs"]
        resumed = http.patch(path, json={"paused": False}).json()
        until(lambda: show(http, added)["runs"] > runs, "it does not go on")

    assert (paused["state"], paused["next_at"]) == ("paused", None)
    assert still == runs
    assert resumed["state"] == "active"


def test_a_removed_monitor_leaves_its_jobs_and_cancels_the_one_that_waits(lab: Lab) -> None:
    with lab.http("alice") as http:
        added = add(http)
        until(lambda: show(http, added)["last_job"], "no run was submitted")
        job = show(http, added)["last_job"]
        assert http.delete(f"/v1/monitors/{added['id']}").status_code == 204
        assert http.get(f"/v1/monitors/{added['id']}").status_code == 404
        assert http.delete(f"/v1/monitors/{added['id']}").status_code == 404
        until(lambda: http.get(f"/v1/jobs/{job}").json()["state"] in ("cancelled", "succeeded"))


def test_the_monitors_of_a_disabled_user_stop(sqlite: Database) -> None:
    keys = {user: sqlite.key(user, role) for user, role in USERS.items()}  # type: ignore[arg-type]
    with running_server({**sqlite.settings, **BRIEF, **OFTEN}) as server:
        with client(server, keys["alice"]) as http:
            added = add(http, every_s=1)
            until(lambda: show(http, added)["runs"] >= 1)
        sqlite.command("users", "disable", "alice")
        with client(server, keys["root"]) as http:
            until(lambda: http.get("/v1/jobs/queue").json()["entries"] == [])
            stopped = show(http, added)
            with client(server, keys["bob"]) as other:
                theirs = add(other, every_s=1)
                until(lambda: show(other, theirs)["runs"] >= 2)
            still = show(http, added)
            sqlite.command("users", "enable", "alice")
            until(lambda: show(http, added)["runs"] > still["runs"])

    assert (stopped["state"], stopped["next_at"]) == ("stopped", None)
    assert still["runs"] == stopped["runs"]


def test_why_a_run_cannot_be_submitted_is_shown(lab: Lab) -> None:
    with lab.http("alice") as http:
        added = add(http)
        until(lambda: show(http, added)["runs"] == 1)
        changed = '{"op": "permute", "implementations": ["gone"], "cases": [{"shape": [8], "dtype": "F32"}]}'
        lab.database.sql(
            f"UPDATE monitors SET request = '{changed}', next_ms = 0, job_number = NULL"
            f" WHERE id = '{added['id']}'"
        )
        until(lambda: show(http, added)["detail"], "no reason is shown")
        found = show(http, added)

    assert "dims" in found["detail"]
    assert (found["state"], found["runs"]) == ("active", 1)


def test_times_of_the_history_are_those_of_jobs_that_the_reader_may_read(lab: Lab) -> None:
    with lab.http("alice") as http:
        added = add(http)
        until(lambda: show(http, added)["series"])
        store = lab.database.store()
        add_runs(store, added["id"], [10.0], private=True)
        shown = add_runs(store, added["id"], [11.0])
        store.close()
        mine = show(http, added)["series"]
    with lab.http("bob") as http:
        theirs = show(http, added)["series"]

    def times(series: list[dict[str, Any]]) -> list[float]:
        return [
            one["median_us"]
            for each in series
            if each["case"] == "case 0"
            for one in each["points"]
        ]

    assert times(mine) == [10.0, 11.0]
    assert times(theirs) == [11.0]
    assert shown
