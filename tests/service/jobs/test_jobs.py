"""The API of benchmark jobs: what may be asked, who sees what, what comes back."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, CASE, JOB, Job, client, ended, events, reached, submit
from tests.service.requests import metrics, problem_of, well
from warpcall import jobs
from warpcall.jobs import PRECISIONS, ExitClass
from warpcall.jobs.request import JobOptions
from warpcall.jobs.request import JobRequest as Asked
from warpcall.jobs.results import Measurement
from warpcall_bench.jobs.models import JobRequest
from warpcall_bench.runs import results
from warpcall_kernels import measuring

SWEEP = {"shapes": [[8, 8]], "dtypes": ["F32"], "params": {"dims": [[1, 0]]}}
LONG: dict[str, Any] = {
    **JOB,
    "cases": [{**CASE, "shape": [8, n]} for n in range(2, 40)],
    "precision": "publish",
}


@dataclass(frozen=True)
class Lab:
    """A server with users, and one job of alice's that has ended."""

    server: Server
    keys: dict[str, str]
    job: Job

    def http(self, user: str) -> httpx.Client:
        return client(self.server, self.keys[user])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    keys = {user: database.key(user, "bench") for user in ("alice", "bob")}
    keys |= {"caller": database.key("caller", "call"), "root": database.key("root", "admin")}
    limits = {"WARPCALL_USER_MAX_JOBS": "3", "WARPCALL_ARENA_BYTES": "16MiB", **BRIEF}
    with running_server({**database.settings, **limits}) as server:
        with client(server, keys["alice"]) as http:
            asked: dict[str, Any] = {
                "implementations": ["torch", "copy"],
                "tags": ["first"],
                "note": "a note",
            }
            job = ended(http, submit(http, **asked))
        yield Lab(server, keys, job)


@pytest.fixture
def alice(lab: Lab) -> Iterator[httpx.Client]:
    with lab.http("alice") as http:
        yield http
        assert well(http).status_code == 200


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"op": "nothing"}, "op", "op must be one of conv, conv-backward, isin"),
        ({"op": 7}, "op", "string"),
        ({"implementations": ["cublas"]}, "implementations", "must be of warpcall, torch"),
        ({"implementations": []}, "implementations", "at least 1"),
        ({"implementations": ["torch", "torch"]}, "body", "implementations must name each once"),
        ({"cases": []}, "cases", "at least 1"),
        ({"cases": None}, "body", "either cases or sweep"),
        ({"sweep": SWEEP}, "body", "either cases or sweep"),
        ({"cases": [{"dtype": "F32"}]}, "cases.0", "either inputs or shape"),
        ({"cases": [{"shape": [8]}]}, "cases.0", "a shape needs a dtype"),
        ({"cases": [{**CASE, "shape": [-1]}]}, "cases.0.shape.0", "greater than or equal to 0"),
        ({"cases": [{**CASE, "shape": [1.5]}]}, "cases.0.shape.0", "integer"),
        ({"cases": [{**CASE, "dtype": "F31"}]}, "cases.0.dtype", "must be one of float64"),
        ({"cases": [CASE, {**CASE, "params": {"dims": [0, 0]}}]}, "cases.1.dims", "each"),
        ({"cases": [{**CASE, "params": {}}]}, "cases.0.dims", "needs the parameter dims"),
        ({"cases": [CASE, CASE]}, "cases.1", "is there twice"),
        ({"cases": [{**CASE, "shape": [1 << 20, 1 << 20]}]}, "cases.0", "more than the"),
        ({"cases": [{**CASE, "shape": [0, 8]}]}, "cases.0.shape", "gives nothing"),
        ({"cases": [{**CASE, "sizes": {"taps": 3}}]}, "cases.0.sizes.taps", "has no size"),
        ({"precision": "negative"}, "precision", "'quick', 'standard', 'publish' or 'check'"),
        ({"precision": -1}, "precision", "'quick', 'standard', 'publish' or 'check'"),
        ({"priority": "urgent"}, "priority", "'high', 'normal' or 'low'"),
        ({"tags": ["two words"]}, "tags.0", "pattern"),
        ({"tags": ["x"] * 17}, "tags", "at most 16"),
        ({"note": "x" * 1001}, "note", "at most 1000"),
        ({"name": "x" * 101}, "name", f"at most 100 characters, got '{'x' * 50}"),
        ({"name": " "}, "name", "at least 1 character, got ' '"),
        ({"name": "two\nlines"}, "name", "one line of printable characters, got 'two\\nlines'"),
        ({"name": "seen\u202ereversed"}, "name", "one line of printable characters"),
        ({"name": 7}, "name", "string, got 7"),
        ({"fresh": "yes"}, "fresh", "boolean"),
        ({"speed": 1}, "speed", "not permitted"),
        (
            {"precision": "publish", "cases": [{**CASE, "shape": [8, n]} for n in range(1, 131)]},
            "cases",
            "a job may run for 7200 s, these 130 cases with 1 implementations",
        ),
    ],
)
def test_a_bad_submission_is_refused_with_its_field_named(
    change: dict[str, Any], field: str, says: str, alice: httpx.Client
) -> None:
    body = {name: value for name, value in {**JOB, **change}.items() if value is not None}

    answer = alice.post("/v1/jobs", json=body)
    preview = alice.post("/v1/jobs/preview", json=body)

    for refused in (answer, preview):
        detail = problem_of(refused, 422, "invalid-input", field)
        assert says in detail, detail


def test_a_sweep_of_a_thousand_million_cases_is_counted_and_not_made(alice: httpx.Client) -> None:
    sweep = {
        "shapes": [[n, 7] for n in range(1000)],
        "dtypes": ["F32"] * 1000,
        "params": {"dims": [[1, 0]] * 1000},
    }

    answer = alice.post("/v1/jobs", json={"op": "permute", "sweep": sweep})

    detail = problem_of(answer, 422, "invalid-input", "sweep")
    assert detail == "sweep must be at most 1000 cases, got 1000000000"


@pytest.mark.parametrize(
    ("body", "media", "status", "code", "field"),
    [
        (b"{", "application/json", 422, "invalid-input", "body"),
        (b"[]", "application/json", 422, "invalid-input", "body"),
        (b"", "application/json", 422, "invalid-input", "body"),
        (b'{"op": "a", "op": "b"}', "application/json", 422, "invalid-input", "body"),
        (b"[" * 10_000, "application/json", 422, "invalid-input", "body"),
        (b'{"op": "\\ud800"}', "application/json", 422, "invalid-input", "body"),
        (b"op=permute", "application/x-www-form-urlencoded", 415, None, "content-type"),
        (b" " * (2 << 20), "application/json", 413, "too-large", "body"),
    ],
)
def test_a_body_that_is_none_is_refused(
    body: bytes, media: str, status: int, code: str | None, field: str, alice: httpx.Client
) -> None:
    answer = alice.post("/v1/jobs", content=body, headers={"content-type": media})

    problem_of(answer, status, code or "unsupported-media", field)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("?limit=0", "limit"),
        ("?limit=501", "limit"),
        ("?state=asleep", "state"),
        ("?tag=two%20words", "tag"),
        ("/history?op=permute", "implementation"),
        ("/{id}/results?format=xml", "format"),
        ("/{id}/events?after=-1", "after"),
    ],
)
def test_a_bad_question_is_refused_with_its_field_named(
    path: str, field: str, lab: Lab, alice: httpx.Client
) -> None:
    answer = alice.get("/v1/jobs" + path.replace("{id}", lab.job["id"]))

    problem_of(answer, 422, "invalid-input", field)


def test_a_job_that_is_not_there_is_not_found(lab: Lab) -> None:
    with lab.http("bob") as http:
        for name in ("nothing", "%00", "x" * 64):
            for path in ("", "/events", "/results", f"/compare/{lab.job['id']}"):
                answer = http.get(f"/v1/jobs/{name}{path}")
                assert "there is no job" in problem_of(answer, 404, "not-found", "id")
            assert http.post(f"/v1/jobs/{name}/cancel").status_code == 404
            assert http.patch(f"/v1/jobs/{name}", json={"private": True}).status_code == 404


def test_a_finished_job_tells_all_about_itself(lab: Lab) -> None:
    job = lab.job

    assert (job["state"], job["exit_class"], job["detail"]) == ("succeeded", "ok", "")
    assert (job["cases_done"], job["cases_total"], job["attempts"]) == (1, 1, 1)
    assert (job["tags"], job["note"], job["user"]) == (["first"], "a note", "alice")
    assert job["created_at"] <= job["started_at"] <= job["finished_at"]
    assert job["position"] is job["starts_in_s"] is job["ends_in_s"] is None
    assert job["request"]["cases"] == [CASE]
    assert job["fingerprint"]["torch"]
    assert job["device"] == "cpu"
    assert job["took_s"] > 0


def test_results_come_as_json_and_csv_and_say_the_same(lab: Lab, alice: httpx.Client) -> None:
    url = f"/v1/jobs/{lab.job['id']}/results"
    payload = alice.get(url, params={"samples": True}).json()

    rows = payload["measurements"]
    (remark,) = payload["remarks"]
    assert remark.startswith("no GPU: warpcall runs plain torch here")
    assert [row["implementation"] for row in rows] == ["torch", "copy"]
    assert [bool(row["source_sha256"]) for row in rows] == [True, False]
    assert set(rows[0]) == {field.name for field in fields(Measurement)}
    for row in rows:
        assert row["p5_us"] <= row["ci_low_us"] <= row["median_us"] <= row["ci_high_us"]
        assert row["status"] == "ok"
    assert rows[0]["ratio"] is None
    assert rows[1]["ratio_low"] <= rows[1]["ratio"] <= rows[1]["ratio_high"]
    (case,) = payload["cases"]
    assert case["limit_us"] == rows[1]["median_us"]
    assert len(case["samples_us"]["torch"]) == case["rounds"]
    assert alice.get(url).json()["cases"][0]["samples_us"] is None

    table = list(csv.DictReader(io.StringIO(alice.get(url, params={"format": "csv"}).text)))
    assert [float(row["median_us"]) for row in table] == [row["median_us"] for row in rows]
    measured = {"op": "permute", "shapes": "8x8", "dtypes": "F32", "params": "dims=1,0"}
    assert all(measured.items() <= row.items() for row in table)


def test_a_client_that_reconnects_sees_each_event_once(lab: Lab, alice: httpx.Client) -> None:
    whole = list(events(alice, lab.job))
    numbers = [event["sequence"] for event in whole]
    parts = []
    last = 0
    while part := [event for event, _ in zip(events(alice, lab.job, last), range(3), strict=False)]:
        parts += part
        last = part[-1]["sequence"]

    states = [event["data"]["state"] for event in whole if event["kind"] == "state"]
    assert numbers == list(range(1, len(whole) + 1))
    assert parts == whole
    assert states == [*("queued", "preparing", "waiting_gpu", "running", "finalizing", "succeeded")]
    url = f"/v1/jobs/{lab.job['id']}/events"
    assert alice.get(url, headers={"last-event-id": str(last)}).status_code == 204
    assert alice.get(url, params={"after": last}).status_code == 204


def test_a_job_is_watched_while_it_runs_cancelled_and_found_in_the_queue(
    lab: Lab, alice: httpx.Client
) -> None:
    first = submit(alice, **LONG)
    second = submit(alice, fresh=True, priority="low")
    seen = []
    for event in events(alice, first):
        seen.append(event["kind"])
        if event["kind"] == "progress" and seen.count("progress") == 2:  # once
            with lab.http("caller") as other:
                queue = other.get("/v1/jobs/queue").json()
            for job in (second, first):
                assert alice.post(f"/v1/jobs/{job['id']}/cancel").json()["cancel_requested"]

    assert event["data"]["state"] == "cancelled"
    assert [(e["id"], e["position"]) for e in queue["entries"]] == [
        (first["id"], 0),
        (second["id"], 1),
    ]
    assert queue["entries"][0]["user"] == "alice"
    assert queue["devices"] == 1
    assert ended(alice, second)["state"] == "cancelled"


def test_a_watcher_who_leaves_is_not_waited_for(lab: Lab, alice: httpx.Client) -> None:
    job = submit(alice, **LONG)
    for _ in range(3):
        next(iter(events(alice, job)))
    alice.post(f"/v1/jobs/{job['id']}/cancel")
    ended(alice, job)

    def in_flight() -> int:
        number: int = alice.get("/v1/me").json()["in_flight"]["requests"]
        return number

    reached(alice, job, lambda _: in_flight() == 1)


def test_a_submission_that_is_repeated_is_taken_once(alice: httpx.Client) -> None:
    job = submit(alice, key="the same", **LONG)
    again = submit(alice, key="the same", **LONG)
    other = alice.post("/v1/jobs", json=JOB, headers={"idempotency-key": "the same"})
    bad = alice.post("/v1/jobs", json=JOB, headers={"idempotency-key": "x" * 256})
    alice.post(f"/v1/jobs/{job['id']}/cancel")

    assert (again["id"], again["reused"]) == (job["id"], True)
    problem_of(other, 422, "invalid-input", "idempotency-key")
    problem_of(bad, 422, "invalid-input", "idempotency-key")
    assert ended(alice, job)["state"] == "cancelled"


def test_what_was_measured_already_is_offered(lab: Lab, alice: httpx.Client) -> None:
    asked: dict[str, Any] = {**JOB, "implementations": ["torch", "copy"]}

    preview = alice.post("/v1/jobs/preview", json=asked).json()
    found = submit(alice, **asked, note="again")

    assert preview["reuses"] == found["id"] == lab.job["id"]
    assert found["reused"]
    assert preview["cases"] == 1


def test_who_may_submit_and_how_much(lab: Lab, alice: httpx.Client) -> None:
    with lab.http("caller") as http:
        refused = http.post("/v1/jobs", json=JOB)
        listed = http.get("/v1/jobs")
    urgent = alice.post("/v1/jobs", json={**JOB, "priority": "high"})
    jobs = [submit(alice, **LONG, fresh=True) for _ in range(3)]
    many = alice.post("/v1/jobs", json={**JOB, "fresh": True})
    for job in reversed(jobs):
        alice.post(f"/v1/jobs/{job['id']}/cancel")

    assert "role bench" in problem_of(refused, 403, "forbidden", None)
    assert listed.json()["jobs"] == []
    assert "role admin" in problem_of(urgent, 403, "forbidden", None)
    assert "alice has 3 jobs" in problem_of(many, 429, "busy", None)
    assert many.headers["retry-after"]
    assert {ended(alice, job)["state"] for job in jobs} == {"cancelled"}


def test_two_jobs_are_compared_and_a_series_is_a_history(lab: Lab, alice: httpx.Client) -> None:
    job = ended(alice, submit(alice, implementations=["copy"], fresh=True))

    compared = alice.get(f"/v1/jobs/{lab.job['id']}/compare/{job['id']}").json()
    (row,) = compared["rows"]
    found = alice.get(
        "/v1/jobs/history",
        params={"op": "permute", "implementation": "copy", "case": row["case"]},
    ).json()

    assert compared["same_environment"]
    assert compared["differences"] == {}
    assert compared["only_a"] == [f"{row['case']} by torch"]
    assert compared["only_b"] == []
    assert row["ratio"] == pytest.approx(row["b_us"] / row["a_us"], rel=0.2)
    assert [point["job"] for point in found["points"]] == [job["id"], lab.job["id"]]
    assert found["points"][0]["measurement"]["median_us"] == pytest.approx(row["b_us"], rel=0.2)


def test_the_time_on_a_device_is_counted(lab: Lab) -> None:
    with lab.http("root") as http:
        found = metrics(http)

    brief_s = 0.01  # its calls take some microseconds, its jobs more than this
    assert found['warpcall_job_device_seconds_total{lane="cpu"}'] > brief_s
    assert found['warpcall_job_attempts_total{exit_class="ok"}'] >= 1
    assert found['warpcall_jobs_ended_total{state="succeeded"}'] >= 1
    assert found['warpcall_user_kernel_seconds_total{user="alice"}'] > brief_s
    assert found['warpcall_lane_quarantined{lane="cpu"}'] == 0
    assert found['warpcall_job_running{lane="cpu"}'] == 0


def test_precisions_and_classes_are_the_samplers() -> None:
    assert set(PRECISIONS) == set(measuring.PRECISIONS)
    assert {*get_args(results.Status)} < {*get_args(ExitClass)}
    measured = get_type_hints(measuring.ImplementationResult)["status"]
    assert {*get_args(measured)} == {*get_args(results.Status)}


def test_the_sdk_knows_each_field_of_a_submission() -> None:
    fields = {field.name for field in dataclasses.fields(Asked)}

    assert JobRequest.model_fields.keys() == fields
    assert {"op", *JobOptions.__annotations__} == fields


def test_the_openapi_document_describes_each_field_of_the_answers(lab: Lab) -> None:
    with lab.http("root") as http:
        schemas = http.get("/openapi.json").json()["components"]["schemas"]

    assert schemas["JobInfo"]["properties"]["state"]["enum"] == list(jobs.STATES)
    for name in ("JobInfo", "SubmittedJob", "JobDetails", "JobPreview", "JobList", "Queue", "QueueEntry", "Results",
                 "Measurement", "CaseResults", "CaseDetails", "Comparison", "ComparedRow", "History", "HistoryPoint"):  # fmt: skip
        assert schemas[name]["description"], name
        parent = {"CaseDetails": "CaseResults"}.get(name, "JobInfo")
        inherited = schemas[parent]["properties"] if name != parent else {}
        for field, schema in schemas[name]["properties"].items():
            found = schema.get("description") or inherited.get(field, {}).get("description")
            assert found, f"{name}.{field}"
