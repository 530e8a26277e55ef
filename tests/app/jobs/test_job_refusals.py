"""Refusals of what no database can store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.app.harness import App, in_python, running_app
from tests.service.databases import new_database
from tests.service.job_requests import CASE, JOB, submit
from tests.service.requests import problem_of

TOO_LARGE = 2**31


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    database = new_database(request, tmp_path_factory.mktemp("refusals"))
    with running_app(runs_jobs=False, **in_python(database.settings)) as running:
        yield running


@pytest.fixture(scope="module")
def job(app: App) -> str:
    """The id of a job that was cancelled."""
    with app.client() as http:
        job: str = submit(http)["id"]
        assert http.post(f"/v1/jobs/{job}/cancel").status_code == 200
    return job


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"note": "a\0b"}, "note"),
        ({"tags": ["a\0b"]}, "tags.0"),
        ({"op": "permute\0"}, "op"),
        ({"implementations": ["torch\0"]}, "implementations.0"),
        ({"cases": [{**CASE, "dtype": "F32\0"}]}, "cases.0.dtype"),
        ({"cases": [{**CASE, "params": {"di\0ms": [1, 0]}}]}, "cases.0.params.di\0ms.[key]"),
        ({"cases": [{**CASE, "params": {"dims": [TOO_LARGE, 0]}}]}, "cases.0.dims"),
        ({"cases": [{**CASE, "sizes": {"taps": 2**63}}]}, None),
    ],
)
def test_a_submission_with_what_cannot_be_kept_is_refused(
    change: dict[str, Any], field: str | None, http: httpx.Client
) -> None:
    answer = http.post("/v1/jobs", json={**JOB, **change})

    assert answer.status_code == 422, answer.text
    if field is not None:
        problem_of(answer, 422, "invalid-input", field)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"implementations": [f"ann/{n}" for n in range(9)]}, "may be 8, or 64 with race, got 9"),
        ({"implementations": [f"ann/{n}" for n in range(65)], "race": True}, "at most 64"),
        ({"implementations": ["torch"], "race": True}, "race needs 2 implementations"),
        ({"implementations": ["torch", "copy"], "race": True, "precision": "check"}, "race needs"),
        ({"race": 2}, "race"),
    ],
)
def test_how_many_may_race_is_bounded(change: dict[str, Any], why: str, http: httpx.Client) -> None:
    answer = http.post("/v1/jobs/preview", json={**JOB, **change})

    assert answer.status_code == 422, answer.text
    assert why in answer.json()["detail"]


@pytest.mark.parametrize(
    ("options", "field", "why"),
    [
        ({}, "", "give at least one of kernels, launch, sections, metrics"),
        ({"kernels": ""}, ".kernels", "at least 1 character"),
        ({"kernels": "a" * 201}, ".kernels", "at most 200 characters"),
        ({"kernels": "("}, ".kernels", "must be a regular expression"),
        ({"kernels": "a{99999999999999999999}"}, ".kernels", "must be a regular expression"),
        ({"kernels": "a\n--export /tmp/x"}, ".kernels", "printable ASCII characters only"),
        ({"launch": 0}, ".launch", "greater than or equal to 1"),
        ({"launch": 10_001}, ".launch", "less than or equal to 10000"),
        ({"launch": "1;2"}, ".launch", "valid integer"),
        ({"sections": []}, ".sections", "at least 1 item"),
        ({"sections": [f"S{n}" for n in range(17)]}, ".sections", "at most 16 items"),
        ({"sections": ["--export"]}, ".sections.0", "should match pattern"),
        ({"sections": ["regex:.*"]}, ".sections.0", "should match pattern"),
        ({"sections": ["A", "A"]}, "", "sections must name each once"),
        ({"metrics": ["a,b"]}, ".metrics.0", "should match pattern"),
        ({"metrics": ["-o"]}, ".metrics.0", "should match pattern"),
        ({"metrics": ["../x"]}, ".metrics.0", "should match pattern"),
        ({"metrics": ["m" * 129]}, ".metrics.0", "should match pattern"),
        ({"metrics": [f"m{n}" for n in range(33)]}, ".metrics", "at most 32 items"),
        ({"export": "/tmp/x"}, ".export", "Extra inputs are not permitted"),
    ],
)
def test_what_is_profiled_becomes_no_other_argument_of_the_profiler(
    options: dict[str, Any], field: str, why: str, http: httpx.Client
) -> None:
    asked = {**JOB, "profile": "ncu", "profile_options": options}

    answer = http.post("/v1/jobs/preview", json=asked)

    assert why in problem_of(answer, 422, "invalid-input", f"profile_options{field}")


@pytest.mark.parametrize("profile", [None, "torch", "compile"])
def test_options_of_nsight_compute_are_for_its_profiles(
    profile: str | None, http: httpx.Client
) -> None:
    asked = {**JOB, "profile": profile, "profile_options": {"launch": 2}}

    answer = http.post("/v1/jobs/preview", json=asked)

    assert answer.status_code == 422, answer.text
    assert "profile_options are for the profile ncu, got" in answer.json()["detail"]


@pytest.mark.parametrize("id_", ["%00", "a%00b", "0" * 12 + "%00", "é", str(2**63), "x" * 64])
def test_an_id_that_is_none_is_not_found(id_: str, http: httpx.Client, job: str) -> None:
    for path in ("", "/events", "/results", f"/compare/{job}"):
        problem_of(http.get(f"/v1/jobs/{id_}{path}"), 404, "not-found", "id")
    problem_of(http.get(f"/v1/jobs/{job}/compare/{id_}"), 404, "not-found", "id")
    problem_of(http.get(f"/v1/jobs?before={id_}"), 404, "not-found", "id")
    problem_of(http.post(f"/v1/jobs/{id_}/cancel"), 404, "not-found", "id")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?user=a%00b", "user"),
        ("?op=a%00b", "op"),
        ("?tag=a%00b", "tag"),
        ("?state=a%00b", "state"),
        (f"?limit={TOO_LARGE}", "limit"),
        (f"?limit={2**63}", "limit"),
        ("/history?op=a%00&implementation=a&case=a", "op"),
        ("/history?op=a&implementation=a%00&case=a", "implementation"),
        ("/history?op=a&implementation=a&case=a%00", "case"),
        (f"/{{id}}/events?after={TOO_LARGE}", "after"),
        (f"/{{id}}/events?after={2**63}", "after"),
    ],
)
def test_a_question_with_what_cannot_be_kept_is_refused(
    query: str, field: str, http: httpx.Client, job: str
) -> None:
    problem_of(http.get("/v1/jobs" + query.format(id=job)), 422, "invalid-input", field)


@pytest.mark.parametrize(
    ("header", "value", "method"),
    [
        ("last-event-id", str(TOO_LARGE), "GET"),
        ("last-event-id", str(2**63), "GET"),
        ("idempotency-key", "é", "POST"),
        ("idempotency-key", "x" * 256, "POST"),
    ],
)
def test_a_header_with_what_cannot_be_kept_is_refused(
    header: str, value: str, method: str, http: httpx.Client, job: str
) -> None:
    path = "/v1/jobs" if method == "POST" else f"/v1/jobs/{job}/events"
    body = json.dumps(JOB) if method == "POST" else None
    headers = [(header.encode(), value.encode("latin-1")), (b"content-type", b"application/json")]

    answer = http.request(method, path, content=body, headers=headers)

    problem_of(answer, 422, "invalid-input", header)


def test_the_last_event_that_may_be_asked_for_is_no_fault(http: httpx.Client, job: str) -> None:
    answer = http.get(f"/v1/jobs/{job}/events?after={TOO_LARGE - 1}")

    assert answer.status_code == 204
