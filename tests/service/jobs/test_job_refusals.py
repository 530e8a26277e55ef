"""Refusals of what no database can store, and of all jobs while the database is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database, Postgres, new_database
from tests.service.job_requests import CASE, JOB, client, ended, submit
from tests.service.requests import logged, problem_of

pytestmark = pytest.mark.slow

TOO_LARGE = 2**31


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    database = new_database(request, tmp_path_factory.mktemp("refusals"))
    with running_server({**database.settings, "WARPCALL_ARENA_BYTES": "16MiB"}) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with client(server) as http:
        yield http


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


@pytest.mark.parametrize("id_", ["%00", "a%00b", "0" * 12 + "%00", "é", str(2**63), "x" * 64])
def test_an_id_that_is_none_is_not_found(id_: str, http: httpx.Client) -> None:
    job = submit(http, note="for its id", fresh=True)["id"]

    for path in ("", "/events", "/results", f"/compare/{job}"):
        problem_of(http.get(f"/v1/jobs/{id_}{path}"), 404, "not-found", "id")
    problem_of(http.get(f"/v1/jobs/{job}/compare/{id_}"), 404, "not-found", "id")
    problem_of(http.get(f"/v1/jobs?before={id_}"), 404, "not-found", "id")
    problem_of(http.post(f"/v1/jobs/{id_}/cancel"), 404, "not-found", "id")
    http.post(f"/v1/jobs/{job}/cancel")


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
    query: str, field: str, http: httpx.Client
) -> None:
    job = submit(http, note="for its id", fresh=True)["id"]
    http.post(f"/v1/jobs/{job}/cancel")

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
    header: str, value: str, method: str, http: httpx.Client
) -> None:
    job = submit(http, note="for its id", fresh=True)["id"]
    http.post(f"/v1/jobs/{job}/cancel")
    path = "/v1/jobs" if method == "POST" else f"/v1/jobs/{job}/events"
    body = json.dumps(JOB) if method == "POST" else None
    headers = [(header.encode(), value.encode("latin-1")), (b"content-type", b"application/json")]

    answer = http.request(method, path, content=body, headers=headers)

    problem_of(answer, 422, "invalid-input", header)


def test_the_last_event_that_may_be_asked_for_is_no_fault(http: httpx.Client) -> None:
    job = submit(http, note="for its id", fresh=True)["id"]
    http.post(f"/v1/jobs/{job}/cancel")

    ended(http, {"id": job})
    answer = http.get(f"/v1/jobs/{job}/events?after={TOO_LARGE - 1}")

    assert answer.status_code == 204


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_database_that_is_away_is_described_in_the_log_and_not_to_callers(
    database: Database, postgres: Postgres, tmp_path: Path
) -> None:
    name = database.settings["WARPCALL_DATABASE_URL"].partition("@/")[2].partition("?")[0]
    with running_server(database.settings) as server, client(server) as http:
        assert http.get("/v1/jobs").status_code == 200
        postgres.psql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        postgres.psql(
            f"DO $$ BEGIN PERFORM pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{name}'; END $$"
        )

        answers = [http.get("/v1/jobs"), http.post("/v1/jobs", json=JOB), *flood(http)]

        postgres.psql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        messages = [line["message"] for line in logged(server) if "message" in line]

    for answer in answers:
        detail = problem_of(answer, 503, "unavailable", None)
        assert detail == "the database cannot be used at present"
        assert name not in answer.text
        assert int(answer.headers["retry-after"]) >= 1
    lines = [line for line in messages if line.startswith("requests are answered with 503")]
    assert 1 <= len(lines) <= 2, "for each reason one"
    assert all(name in line for line in lines)


def flood(http: httpx.Client) -> list[httpx.Response]:
    return [http.get("/v1/jobs/queue") for _ in range(20)]
