"""What is recorded of a request: a line of the log, metrics by user, and the database."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from tests.servers import running_server
from tests.service.databases import Database
from tests.service.requests import PERMUTE, log_of, metrics, well
from tests.waiting import until

pytestmark = pytest.mark.slow

STAGES = {"upload", "queue", "h2d", "kernel", "d2h"}


def test_usage_is_counted_by_user_day_and_op(database: Database) -> None:
    key, admin = database.key("alice"), database.key("root", "admin")
    body = b'{"inputs": {"x": {"dtype": "U8", "shape": [3], "data": [1, 2, 3]}}}'
    headers = {"content-type": "application/json", "accept": "application/json"}

    with (
        running_server(database.settings) as server,
        httpx.Client(base_url=server.url, headers=headers) as http,
    ):
        http.headers["authorization"] = f"Bearer {key}"
        answers = [http.post(f"{PERMUTE}?dims={dims}", content=body) for dims in (0, 0, 5)]
        http.get("/v1/kernels")
        http.headers["authorization"] = "Bearer wrong"
        http.get("/v1/kernels")
        http.headers["authorization"] = f"Bearer {admin}"
        found = metrics(http)
        path = "/v1/usage?days=2&user=alice"
        until(lambda: sum(row["requests"] for row in http.get(path).json()["usage"]) == 4)
        shown = http.get(path).json()["usage"]
        users = {row["user"] for row in http.get("/v1/usage").json()["usage"]}
        refused = [http.get(f"/v1/usage?{bad}").status_code for bad in ("days=0", "days=3651")]

    assert [answer.status_code for answer in answers] == [200, 200, 422]
    assert found['warpcall_user_requests_total{user="alice"}'] == 4
    assert found['warpcall_user_failures_total{user="alice"}'] == 1
    assert found['warpcall_user_body_bytes_total{direction="in",user="alice"}'] == 3 * len(body)
    assert found['warpcall_user_kernel_seconds_total{user="alice"}'] > 0
    assert found["warpcall_wrong_keys_total"] == 1
    rows = database.listed("usage", "--user", "alice")
    by_op = {row["op"]: row for row in rows}
    assert shown == rows
    assert {"alice"} <= users <= {"alice", "root"}
    assert refused == [422, 422]
    assert {row["day"] for row in rows} <= days()
    assert by_op[""]["requests"] == 1
    assert (by_op["permute"]["requests"], by_op["permute"]["failures"]) == (3, 1)
    assert by_op["permute"]["bytes_in"] == 3 * len(body)
    assert by_op["permute"]["bytes_out"] == sum(len(answer.content) for answer in answers)
    assert by_op["permute"]["kernel_ms"] > 0
    assert {row["user"] for row in database.listed("usage", "--days", "2")} == {"alice", "root"}


def test_the_local_user_is_counted_too(sqlite: Database) -> None:
    with running_server(sqlite.settings) as server, httpx.Client(base_url=server.url) as http:
        well(http)

    assert [(row["user"], row["op"]) for row in sqlite.listed("usage") if row["op"]] == [
        ("local", "permute")
    ]


def test_usage_goes_on_after_a_kill(sqlite: Database) -> None:
    """What was saved before stays, and a killed server's database opens again."""
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ended with status -9"):
            call_and_kill(sqlite)

    (row,) = [row for row in sqlite.listed("usage") if row["op"]]
    assert row["requests"] == 2


def call_and_kill(database: Database) -> None:
    """One call, and a kill once it is saved."""
    before = calls(database)
    with running_server(database.settings) as server, httpx.Client(base_url=server.url) as http:
        well(http)
        deadline = time.monotonic() + 30
        while calls(database) == before and time.monotonic() < deadline:
            time.sleep(0.2)
        server.process.kill()
        server.process.wait()


def calls(database: Database) -> int:
    return sum(row["requests"] for row in database.listed("usage") if row["op"])


def test_the_log_has_a_line_of_json_for_each_request(sqlite: Database) -> None:
    key = sqlite.key("alice")
    secret = b'{"inputs": {"x": {"dtype": "U8", "shape": [2], "data": [123, 45]}}}'
    headers = {"authorization": f"Bearer {key}", "x-request-id": "mine-1"}

    with running_server(sqlite.settings) as server, httpx.Client(base_url=server.url) as http:
        well(http)
        http.headers.update(headers)
        http.post(f"{PERMUTE}?dims=0", content=secret, headers={"content-type": "application/json"})
        http.get('/a"b', headers={"x-request-id": "mine-2"})
        log = log_of(server)

    lines = [json.loads(line) for line in log.splitlines() if not line.startswith("Warpcall ")]
    refused, call, lost = (line for line in lines if line.get("path", "/readyz") != "/readyz")
    assert (refused["user"], refused["key"], refused["status"]) == ("", "", 401)
    assert (refused["outcome"], refused["stages_ms"]) == ("unauthorized", {})
    assert (call["id"], call["user"], call["key"]) == ("mine-1", "alice", key[3:11])
    assert (call["op"], call["outcome"], call["in"]) == ("permute", "ok", len(secret))
    assert call["stages_ms"].keys() == STAGES
    assert (lost["path"], lost["outcome"], lost["user"]) == ('/a"b', "not-found", "alice")
    assert key[12:] not in log
    assert "123" not in json.dumps([{**line, **NUMBERS} for line in (refused, call, lost)])


NUMBERS: dict[str, Any] = {"ms": 0, "stages_ms": 0, "time": "", "id": "", "out": 0}


def days() -> set[str]:
    """Today, and yesterday if that was a moment ago."""
    now = time.time()
    return {time.strftime("%Y-%m-%d", time.gmtime(at)) for at in (now - 120, now)}
