"""The pages of monitors: what they show, to whom, and what their forms do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import sqlalchemy as sa

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client
from tests.service.monitors.lab import add, add_runs, show
from tests.service.monitors.series import quiet, times
from tests.waiting import until_lasting as until
from warpcall_bench.monitors.tables import Monitor, MonitorDelivery
from warpcall_service.store.times import now_ms

MARKUP = "<b>marmalade</b>"
LOCAL = {"WARPCALL_WEBHOOK_HOSTS": "http://127.0.0.1:9", "WARPCALL_MONITOR_MIN_EVERY_S": "60"}


@dataclass(frozen=True)
class Lab:
    """A server with a monitor of alice's that has found a step, and a private one of hers."""

    server: Server
    keys: dict[str, str]
    known: dict[str, str]
    secret: dict[str, str]

    def http(self, user: str) -> httpx.Client:
        http = client(self.server, self.keys[user])
        http.headers["accept"] = "text/html"
        return http


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("monitors")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys = {user: database.key(user, "bench") for user in ("alice", "bob")}
    with running_server({**database.settings, **BRIEF, **LOCAL}) as server:
        with client(server, keys["alice"]) as http:
            known = add(http, notify=f"http://127.0.0.1:9/{'x' * 300}?a=1&b=%3Cb%3E")
            secret = add(http, job={"private": True})
            until(lambda: show(http, known)["series"] and show(http, secret)["series"])
            for one in (known, secret):
                http.patch(f"/v1/monitors/{one['id']}", json={"paused": True})
            store = database.store()
            runs = add_runs(store, known["id"], times(quiet, 0, 14, 12, 1.05), newest=True)
            until(lambda: show(http, known)["deliveries"])
            with store.write() as session:
                row = session.scalars(sa.select(Monitor).where(Monitor.id == known["id"])).one()
                row.detail, row.failing_ms = MARKUP, now_ms()
                session.execute(sa.update(MonitorDelivery).values(detail=MARKUP))
            store.close()
        yield Lab(server, keys, {**known, "first": runs[12]}, secret)


def test_the_list_shows_monitors_that_the_reader_may_read(lab: Lab) -> None:
    with lab.http("alice") as http, lab.http("bob") as other:
        mine = http.get("/monitors").text
        theirs = other.get("/monitors").text
        all_of_theirs = other.get("/monitors?user=all").text

    assert lab.known["id"] in mine
    assert lab.secret["id"] in mine
    assert "There are none." in theirs
    assert lab.known["id"] in all_of_theirs
    assert lab.secret["id"] not in all_of_theirs
    assert "&lt;b&gt;marmalade" in mine
    assert "<b>marmalade" not in mine + all_of_theirs


def test_a_monitor_shows_its_series_steps_thresholds_and_deliveries(lab: Lab) -> None:
    with lab.http("alice") as http:
        answer = http.get(f"/monitors/{lab.known['id']}")

    assert answer.status_code == 200
    text = answer.text
    assert "unsafe-" not in answer.headers["content-security-policy"]
    assert "% longer in case 0 since the job" in text
    assert text.count("<circle") == 14
    assert f"/jobs/{lab.known['first']}" in text
    assert "the level has 8 runs" in text, "two runs are too few for thresholds"
    assert "Calls of its URL" in text
    assert "Its runs began to fail" in text
    assert "&lt;b&gt;marmalade" in text
    assert "<b>marmalade" not in text


def test_each_series_has_an_address(lab: Lab) -> None:
    with lab.http("alice") as http:
        second = http.get(f"/monitors/{lab.known['id']}?series=1")
        none = http.get(f"/monitors/{lab.known['id']}?series=99")

    assert second.text.count("<circle") == 1
    assert none.status_code == 200
    assert "<svg" not in none.text


def test_others_see_no_forms_and_no_deliveries(lab: Lab) -> None:
    with lab.http("bob") as http:
        text = http.get(f"/monitors/{lab.known['id']}").text
        pausing = http.post(f"/monitors/{lab.known['id']}/pause", data={"paused": "yes"})
        removing = http.post(f"/monitors/{lab.known['id']}/remove", data={"token": "t"})

    assert "% longer in case 0" in text
    assert "127.0.0.1:9" not in text
    assert "Remove" not in text
    assert (pausing.status_code, removing.status_code) == (403, 403)


def test_a_private_monitor_of_another_user_is_not_found(lab: Lab) -> None:
    path = f"/monitors/{lab.secret['id']}"
    with lab.http("bob") as http:
        answers = [
            http.get(path),
            http.post(f"{path}/pause", data={"paused": "yes"}),
            http.post(f"{path}/remove", data={"token": "t"}),
        ]

    assert [answer.status_code for answer in answers] == [404] * 3


def test_a_page_of_another_site_cannot_pause_or_remove(lab: Lab) -> None:
    foreign = {"sec-fetch-site": "cross-site", "origin": "https://elsewhere.example"}
    with lab.http("alice") as http:
        del http.headers["authorization"]
        for what in ("pause", "remove"):
            path = f"/monitors/{lab.known['id']}/{what}"
            assert http.post(path, data={"paused": "no"}, headers=foreign).status_code in (401, 403)


def test_the_forms_pause_resume_and_remove(lab: Lab) -> None:
    with lab.http("alice") as http:
        made = add(http, every_s=86_400)
        path = f"/monitors/{made['id']}"
        paused = http.post(f"{path}/pause", data={"paused": "yes"})
        after_pause = http.get(path).text
        resumed = http.post(f"{path}/pause", data={"paused": "no"})
        after_resume = http.get(path).text
        removed = http.post(f"{path}/remove", data={"token": "t"})
        gone = http.get(path)

    assert (paused.status_code, resumed.status_code, removed.status_code) == (303, 303, 303)
    assert paused.headers["location"].endswith(made["id"])
    assert "Resume" in after_pause
    assert ">Pause<" in after_resume
    assert gone.status_code == 404
