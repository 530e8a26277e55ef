"""Monitors over HTTP: added, read and removed, by whom, and within which limits. Their jobs wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.service.databases import Database
from tests.service.monitors.lab import HOUR_S, JOB, add, show
from tests.service.requests import problem_of

NOWHERE = "0123456789ab"
LIMITS: dict[str, Any] = {"user_max_monitors": 3, "monitor_min_every_s": 600}
USERS = {"alice": "bench", "bob": "bench", "root": "admin", "caller": "call"}


@dataclass(frozen=True)
class Lab:
    """The application, and a key of each user."""

    app: App
    keys: dict[str, str]

    def http(self, user: str) -> httpx.Client:
        return self.app.client(self.keys[user])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder: Path = tmp_path_factory.mktemp("monitors")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys = {user: database.key(user, role) for user, role in USERS.items()}  # type: ignore[arg-type]
    with running_app(runs_jobs=False, data_dir=folder, **LIMITS) as app:
        yield Lab(app, keys)


@pytest.fixture(autouse=True)
def _nothing_left(lab: Lab) -> Iterator[None]:
    yield
    with lab.http("root") as http:
        for one in http.get("/v1/monitors?user=all").json()["monitors"]:
            assert http.delete(f"/v1/monitors/{one['id']}").status_code == 204


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
