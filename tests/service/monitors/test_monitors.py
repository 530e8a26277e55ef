"""Monitors over HTTP: added, read, paused and removed, by whom, and within which limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client
from tests.service.monitors.lab import HOUR_S, JOB, OFTEN, add, add_runs, show
from tests.service.requests import problem_of
from tests.waiting import until

pytestmark = pytest.mark.slow

NOWHERE = "0123456789ab"
LIMITS = {"WARPCALL_USER_MAX_MONITORS": "3", "WARPCALL_MONITOR_MIN_EVERY_S": "600"}
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
    with running_server({**database.settings, **BRIEF, **LIMITS}) as server:
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


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"every_s": 599}, "every_s"),
        ({"every_s": 0}, "every_s"),
        ({"every_s": 31 * 86_400}, "every_s"),
        ({"every_s": 1.5}, "every_s"),
        ({"least": 0}, "least"),
        ({"least": 2}, "least"),
        ({"more": 1}, "more"),
        ({"job": {**JOB, "op": "nothing"}}, "job.op"),
        ({"job": {**JOB, "priority": "normal"}}, "job.priority"),
        ({"job": {**JOB, "fresh": True}}, "job.fresh"),
        ({"job": {**JOB, "profile": "torch"}}, "job.profile"),
        ({"job": {**JOB, "precision": "check"}}, "job.precision"),
        ({"job": {**JOB, "cases": []}}, "job.cases"),
        ({"job": {**JOB, "implementations": ["nothing"]}}, "job.implementations"),
    ],
)
def test_what_cannot_be_repeated_is_refused_with_the_field(
    lab: Lab, body: dict[str, Any], field: str
) -> None:
    with lab.http("alice") as http:
        answer = http.post("/v1/monitors", json={"job": JOB, "every_s": HOUR_S, **body})

    problem_of(answer, 422, "invalid-input", field)


def test_a_monitor_with_very_many_series_is_refused(lab: Lab) -> None:
    shapes = [[8, size] for size in range(1, 102)]
    sweep = {"shapes": shapes, "dtypes": ["F32"], "params": {"dims": [[1, 0]]}}
    job = {"op": "permute", "implementations": ["torch"], "sweep": sweep, "precision": "quick"}

    with lab.http("alice") as http:
        answer = http.post("/v1/monitors", json={"job": job, "every_s": HOUR_S})

    assert "these are 101" in problem_of(answer, 422, "invalid-input", "job.sweep")


def test_a_user_has_at_most_so_many_monitors(lab: Lab) -> None:
    with lab.http("alice") as http, lab.http("bob") as other:
        for _ in range(3):
            add(http)
        refused = http.post("/v1/monitors", json={"job": JOB, "every_s": HOUR_S})
        add(other)

    assert "at most 3 are allowed" in problem_of(refused, 413, "too-large", None)


def test_a_private_monitor_of_another_user_looks_like_none(lab: Lab) -> None:
    with lab.http("alice") as http:
        secret = add(http, job={"private": True, "note": "marmalade"})
        known = add(http)
    for user in ("bob", "caller"):
        with lab.http(user) as http:
            listed = http.get("/v1/monitors?user=all").json()["monitors"]
            assert [one["id"] for one in listed] == [known["id"]]
            requests: list[tuple[str, dict[str, Any]]] = [("GET", {})]
            if user == "bob":
                requests += [("PATCH", {"json": {"paused": True}}), ("DELETE", {})]
            for method, body in requests:
                answer = http.request(method, f"/v1/monitors/{secret['id']}", **body)
                none = http.request(method, f"/v1/monitors/{NOWHERE}", **body)
                assert answer.status_code == none.status_code == 404
                detail = answer.json()["detail"].replace(secret["id"], NOWHERE)
                assert detail == none.json()["detail"]
    with lab.http("root") as http:
        assert show(http, secret)["private"] is True
        assert http.delete(f"/v1/monitors/{secret['id']}").status_code == 204


def test_others_read_a_monitor_and_do_not_change_it(lab: Lab) -> None:
    with lab.http("alice") as http, lab.http("bob") as other, lab.http("caller") as caller:
        added = add(http)
        path = f"/v1/monitors/{added['id']}"
        assert show(other, added)["id"] == added["id"]
        for answer in (other.patch(path, json={"paused": True}), other.delete(path)):
            problem_of(answer, 403, "forbidden", "id")
        for answer in (caller.patch(path, json={"paused": True}), caller.delete(path)):
            problem_of(answer, 403, "forbidden", None)
        assert show(http, added)["state"] == "active"


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
