"""Refusals of all jobs while the database is away."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.servers import running_server
from tests.service.databases import Database, Postgres
from tests.service.job_requests import JOB, client
from tests.service.requests import logged, problem_of

pytestmark = pytest.mark.slow


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
