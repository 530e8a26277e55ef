"""Groups over HTTP: what is refused, who may read which part, quotas, and what is deleted with jobs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.app.harness import running_app
from tests.service.databases import Database
from tests.service.job_requests import CASE, JOB
from tests.service.requests import problem_of
from tests.service.stored import complete
from warpcall_bench.groups.tables import JobGroup
from warpcall_bench.jobs.tables import Job
from warpcall_bench.retention import delete_some
from warpcall_bench.settings import BenchSettings
from warpcall_service.store.database import Store

HTML = {"accept": "text/html"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def http(folder: Any) -> Iterator[httpx.Client]:
    with (
        running_app(data_dir=folder, arena_bytes="16MiB", user_max_jobs=20, runs_jobs=False) as app,
        app.client() as client,
    ):
        yield client


@pytest.fixture
def store(http: httpx.Client, folder: Any) -> Iterator[Store]:
    found = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)}).store()
    yield found
    found.close()


@pytest.fixture
def model(http: httpx.Client) -> str:
    """A model that the server has: a word of the name of its CPU."""
    lane = http.get("/v1/nodes").json()["nodes"][0]["lanes"][0]
    return next(word for word in str(lane["model"]).split() if word.isalnum())


def body(*gpus: str, **job: Any) -> dict[str, Any]:
    return {"gpus": gpus, "job": {**JOB, "implementations": ["warpcall", "torch"], **job}}


def submitted(http: httpx.Client, *gpus: str, **job: Any) -> dict[str, Any]:
    answer = http.post("/v1/groups", json=body(*gpus, fresh=True, **job))
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def cancel(http: httpx.Client, group: dict[str, Any]) -> None:
    assert http.post(f"/v1/groups/{group['id']}/cancel").status_code == 200


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        (body("H100"), "gpus", "gpus: List should have at least 2 items"),
        (body(*(f"G{n}" for n in range(9))), "gpus", "gpus: List should have at most 8 items"),
        (body("H100", "h100"), "gpus", "gpus: each model must be named once"),
        (body("H100", "H200/"), "gpus.1", "gpus.1: String should match pattern"),
        (body("H100", "H200", gpu="H100"), "body", "job must have no gpu: gpus has the models"),
        (body("H100", "H200"), "gpus", "no server here has a device of the model 'H100' or 'H200'"),
        (body("H100", "H200", precision="now"), "job.precision", "job.precision: Input should be"),
        ({**body("H100", "H200"), "more": 1}, "more", "more: Extra inputs are not permitted"),
    ],
)
def test_a_group_that_cannot_be_is_refused_by_its_field(
    http: httpx.Client, given: dict[str, Any], field: str, message: str
) -> None:
    answer = http.post("/v1/groups", json=given)

    assert message in problem_of(answer, 422, "invalid-input", field)
    assert http.get("/v1/jobs").json()["jobs"] == [], "nothing is queued"


def test_a_part_without_a_device_says_so_in_every_list_and_stands_behind_the_others(
    http: httpx.Client, model: str
) -> None:
    group = submitted(http, "H100", model)
    listed = {job["gpu"]: job for job in http.get("/v1/jobs", params={"limit": 2}).json()["jobs"]}
    queue = http.get("/v1/jobs/queue").json()["entries"]
    page = http.get("/jobs", headers=HTML).text
    first = http.get("/", headers=HTML).text
    own = http.get(f"/jobs/{listed['H100']['id']}", headers=HTML).text
    cancel(http, group)

    assert {job["group"] for job in listed.values()} == {group["id"]}
    assert [listed[name]["has_device"] for name in ("H100", model)] == [False, True]
    assert (listed["H100"]["starts_in_s"], listed["H100"]["ends_in_s"]) == (None, None)
    assert (listed[model]["position"], listed["H100"]["position"]) == (1, 2)
    assert [(entry["gpu"], entry["has_device"]) for entry in queue] == [
        *((model, True), ("H100", False))
    ]
    for text in (page, first):
        assert f"H100, part of {group['id']}" in text
        assert "waiting for an H100" in text
    assert "Waiting for an H100. No server that runs has one." in own
    assert f"group {group['id']}" in own


def test_a_group_that_does_not_fit_the_quota_queues_none_of_its_parts(
    http: httpx.Client, model: str
) -> None:
    many = [submitted(http, model, *(f"G{n}" for n in range(7))) for _ in range(2)]
    refused = http.post("/v1/groups", json=body(model, *(f"G{n}" for n in range(4)), fresh=True))
    waiting = http.get("/v1/jobs", params={"state": "queued", "limit": 100}).json()["jobs"]
    for group in many:
        cancel(http, group)

    assert "at most 20 are allowed by the quota user_max_jobs" in problem_of(
        refused, 429, "busy", None
    )
    assert len(waiting) == 16


def test_the_results_have_a_column_for_each_part_and_null_for_what_is_missing(
    http: httpx.Client, store: Store, model: str
) -> None:
    group = submitted(http, "H100", model, cases=[{**CASE, "shape": [8, n]} for n in (3, 4)])
    done = group["parts"][1]["job"]["id"]
    complete(store, done)
    found = http.get(f"/v1/groups/{group['id']}/results").json()
    table = http.get(f"/v1/groups/{group['id']}/results", params={"format": "csv"}).text
    page = http.get(f"/groups/{group['id']}", headers=HTML).text
    cancel(http, group)

    assert [(row["position"], row["implementation"]) for row in found["rows"]] == [
        *((0, "warpcall"), (0, "torch"), (1, "warpcall"), (1, "torch"))
    ]
    assert [row["times"][0] for row in found["rows"]] == [None] * 4
    assert {row["times"][1]["median_us"] for row in found["rows"]} == {2.0}
    rows = [*csv.DictReader(io.StringIO(table))]
    assert [(row["gpu"], row["job"]) for row in rows] == [(model, done)] * 4
    assert page.count(">waits<") == 4
    assert "1 of 2 parts have ended. 1 waits for an H100, and begins by itself." in page


def test_a_finished_group_answers_the_same_question_again(
    http: httpx.Client, store: Store, model: str
) -> None:
    case = [{**CASE, "shape": [7, 5]}]
    first = submitted(http, "H100", model, cases=case)
    with store.write() as session:
        environment = http.get("/v1/nodes").json()["nodes"][0]["lanes"][0]["environment"]
        for part in first["parts"]:
            row = session.scalars(sa.select(Job).where(Job.id == part["job"]["id"])).one()
            row.environment = environment if row.gpu == model else ""
    for part in first["parts"]:
        complete(store, part["job"]["id"])

    again = http.post("/v1/groups", json=body("H100", model, cases=case))
    other = http.post("/v1/groups", json=body(model, "B200", cases=case))
    cancel(http, other.json())

    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    assert again.json()["reused"] is True
    assert other.status_code == 201
    assert other.json()["parts"][0]["job"]["id"] == first["parts"][1]["job"]["id"]


def test_a_group_goes_with_its_last_job(
    http: httpx.Client, store: Store, model: str, folder: Any
) -> None:
    group = submitted(http, "H100", model)
    cancel(http, group)
    cancel(http, submitted(http, "H100", model))  # the newest job of all stays
    ids = [part["job"]["id"] for part in group["parts"]]
    settings = BenchSettings.load(data_dir=folder, job_days=1)
    found = []
    for one in ids:
        with store.write() as session:
            session.execute(sa.update(Job).where(Job.id == one).values(finished_ms=1))
            assert delete_some(session, settings)
        found.append(http.get(f"/v1/groups/{group['id']}"))
    with store.read() as session:
        groups = session.scalars(sa.select(JobGroup.id)).all()

    assert [part["gpu"] for part in found[0].json()["parts"]] == [model]
    problem_of(found[1], 404, "not-found", "id")
    assert group["id"] not in groups
    assert groups, "others stay"
