"""Who may read and change a group: as its jobs, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.service.databases import Database
from tests.service.job_requests import JOB
from tests.service.requests import problem_of
from tests.service.stored import complete
from warpcall_service.store.database import Store

HTML = {"accept": "text/html"}
MARK = "marmalade"  # in the texts of private jobs
NOWHERE = "g123456789abc"


@dataclass(frozen=True)
class Lab:
    app: App
    store: Store
    keys: dict[str, str]

    def http(self, user: str) -> httpx.Client:
        return self.app.client(self.keys[user])

    def group(self, private: bool = False) -> dict[str, Any]:
        """A group of alice's: its first part waits for ever, its second one has ended."""
        job = {**JOB, "fresh": True, "private": private, "note": MARK}
        with self.http("alice") as http:
            lane = http.get("/v1/nodes").json()["nodes"][0]["lanes"][0]
            model = next(word for word in lane["model"].split() if word.isalnum())
            answer = http.post("/v1/groups", json={"gpus": ["H100", model], "job": job})
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        complete(self.store, found["parts"][1]["job"]["id"])
        return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("data")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys = {user: database.key(user, "bench") for user in ("alice", "bob")}
    keys |= {"caller": database.key("caller"), "root": database.key("root", "admin")}
    store = database.store()
    with running_app(data_dir=folder, arena_bytes="16MiB", runs_jobs=False) as app:
        yield Lab(app, store, keys)
    store.close()


@pytest.mark.parametrize("user", ["bob", "caller"])
def test_a_group_of_private_jobs_of_another_user_looks_like_none(lab: Lab, user: str) -> None:
    group = lab.group(private=True)
    paths = ("/v1/groups/{}", "/v1/groups/{}/results", "/v1/groups/{}/results?format=csv")

    with lab.http(user) as http:
        answers = [
            (http.get(path.format(group["id"])), http.get(path.format(NOWHERE))) for path in paths
        ]
        pages = [http.get(f"/groups/{id_}", headers=HTML) for id_ in (group["id"], NOWHERE)]
        posted = http.post(f"/v1/groups/{group['id']}/cancel")

    for answer, none in answers:
        said = problem_of(answer, 404, "not-found", "id")
        assert said.replace(group["id"], NOWHERE) == problem_of(none, 404, "not-found", "id")
    assert [page.status_code for page in pages] == [404, 404]
    assert MARK not in pages[0].text
    assert posted.status_code == (404 if user == "bob" else 403)


def test_of_a_group_others_see_the_parts_that_they_may_read(lab: Lab) -> None:
    group = lab.group()
    waits, done = (part["job"]["id"] for part in group["parts"])
    complete(lab.store, waits)
    with lab.http("alice") as http:
        assert http.patch(f"/v1/jobs/{done}", json={"private": True}).status_code == 200

    with lab.http("bob") as http:
        found = http.get(f"/v1/groups/{group['id']}").json()
        results = http.get(f"/v1/groups/{group['id']}/results").json()
        table = http.get(f"/v1/groups/{group['id']}/results?format=csv").text
        page = http.get(f"/groups/{group['id']}", headers=HTML).text
    with lab.http("alice") as http:
        own = http.get(f"/v1/groups/{group['id']}/results").json()
        own_page = http.get(f"/groups/{group['id']}", headers=HTML).text

    assert [part["job"] and part["job"]["id"] for part in found["parts"]] == [waits, None]
    assert [[one is None for one in row["times"]] for row in results["rows"]] == [[False, True]]
    assert "typically takes" not in page
    assert done not in table
    assert done not in page
    assert "private to another user" in page
    assert [text.count(">private</span>") for text in (page, own_page)] == [1, 0]
    assert [[one is None for one in row["times"]] for row in own["rows"]] == [[False, False]]
    assert "typically takes 1.00x the time" in own_page


def test_only_administrators_submit_a_group_of_high_priority(lab: Lab) -> None:
    asked = {"gpus": ["H100", "H200"], "job": {**JOB, "priority": "high"}}

    with lab.http("alice") as http:
        problem_of(http.post("/v1/groups", json=asked), 403, "forbidden", None)
    with lab.http("root") as http:
        problem_of(http.post("/v1/groups", json=asked), 422, "invalid-input", "gpus")


def test_only_its_user_and_administrators_cancel_a_group(lab: Lab) -> None:
    group = lab.group()
    path = f"/v1/groups/{group['id']}/cancel"
    states = []
    for user, status in (("bob", 403), ("caller", 403), ("root", 200), ("alice", 200)):
        with lab.http(user) as http:
            assert http.post(path).status_code == status
            found = http.get(f"/v1/groups/{group['id']}").json()
        states.append([part["job"]["state"] for part in found["parts"]])

    assert states == [
        *([["queued", "succeeded"]] * 2),
        *([["cancelled", "succeeded"]] * 2),
    ]


def test_the_button_of_the_page_cancels_all_parts(lab: Lab) -> None:
    group = lab.group()
    with lab.http("bob") as http:
        assert "Cancel all parts" not in http.get(f"/groups/{group['id']}", headers=HTML).text
        assert http.post(f"/groups/{group['id']}/cancel").status_code == 403
    with lab.http("alice") as http:
        page = http.get(f"/groups/{group['id']}", headers=HTML).text
        answer = http.post(f"/groups/{group['id']}/cancel")
        job = http.get(f"/v1/jobs/{group['parts'][0]['job']['id']}").json()

    assert f'action="../groups/{group["id"]}/cancel"' in page
    assert (answer.status_code, answer.headers["location"]) == (303, f"../{group['id']}")
    assert job["state"] == "cancelled"
