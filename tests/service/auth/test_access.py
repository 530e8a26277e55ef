"""Who gets in: with keys nobody without one, without keys only this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.oip.requests import refused
from tests.servers import Server, running_server
from tests.service.auth.browsers import keep, log_in
from tests.service.databases import Database
from tests.service.requests import log_of, logged, problem_of, send_raw, well
from warpcall import Client, Unauthorized
from warpcall_service.identity import ROLES, Role

pytestmark = pytest.mark.slow

# What needs no key, and what of it has an answer for everyone.
HEALTH = {"GET /healthz", "GET /readyz", "GET /v2/health/live", "GET /v2/health/ready"}
SHARED = {
    f"GET /v1/shared/{{token}}{what}" for what in ("", "/results", "/cases/{position}", "/compare")
}
OPEN = {*HEALTH, *SHARED, "POST /login", "POST /logout", "GET /install", "GET /install/{file}"}
# The role that each route needs. A new route fails these tests until it is here: decide who may.
NEEDS: dict[str, Role] = {
    "GET /metrics": "admin",
    "GET /v1/usage": "admin",
    "GET /v1/health": "admin",
    "GET /v1/admin/quotas": "admin",
    "GET /v1/admin/quotas/user/{name}": "admin",
    **dict.fromkeys(
        (f"{method} /v1/admin/quotas/{{kind}}/{{name}}/{{quota}}" for method in ("PUT", "DELETE")),
        "admin",
    ),
    "POST /v1/jobs": "bench",
    **dict.fromkeys(("POST /v1/groups", "POST /v1/groups/{id}/cancel"), "bench"),
    **dict.fromkeys(("POST /v1/jobs/preview", "POST /v1/compile-reports"), "bench"),
    **dict.fromkeys(("POST /v1/evaluations", "POST /v1/evaluations/batch"), "bench"),
    "PATCH /v1/jobs/{id}": "bench",
    "POST /v1/jobs/{id}/shares": "bench",
    **dict.fromkeys(("DELETE /v1/shares/{id}", "POST /v1/jobs/{id}/cancel"), "bench"),
    **dict.fromkeys(("DELETE /v1/jobs/{id}/artefacts/{name}", "POST /v1/monitors"), "bench"),
    **dict.fromkeys(("PATCH /v1/monitors/{id}", "DELETE /v1/monitors/{id}"), "bench"),
    **dict.fromkeys(("POST /v1/implementations", "POST /v1/verifications"), "upload"),
    **dict.fromkeys(("POST /v1/files/missing", "PUT /v1/files/{sha256}"), "upload"),
    "DELETE /v1/implementations/{user}/{name}": "upload",
    "POST /v1/problems": "upload",
    "POST /v1/scratch": "scratch",
    "DELETE /v1/problems/{user}/{name}": "upload",
}
CALL = {
    *(
        "GET /v1/kernels",
        "GET /v1/kernels/{name}",
        "GET /v1/me",
        "GET /v1/me/quotas",
        "GET /v1/nodes",
    ),  # and each op
    *("GET /v1/jobs", "GET /v1/jobs/queue", "GET /v1/jobs/history", "GET /v1/jobs/{id}"),
    *("GET /v1/groups/{id}", "GET /v1/groups/{id}/results"),
    *("GET /v1/jobs/{id}/events", "GET /v1/jobs/{id}/results", "GET /v1/jobs/{id}/progress"),
    "GET /v1/jobs/{id}/printed",
    *("GET /v1/jobs/{id}/cases/{position}", "GET /v1/jobs/{id}/compare/{other}"),
    *("GET /v1/jobs/{id}/shares", "GET /v1/shares", "GET /v1/board", "GET /v1/devices"),
    *("GET /v1/implementations", "GET /v1/implementations/environment"),
    *("GET /v1/implementations/{user}/{name}", "POST /logout-everywhere"),
    "GET /v1/implementations/{user}/{name}/files/{path}",
    *("GET /v1/problems", "GET /v1/problems/{user}/{name}"),
    *("GET /v2", "GET /v2/models/stats", "POST /v2/repository/index"),
    *(
        f"GET /v2/models/{{name}}{version}{what}"
        for version in ("", "/versions/{version}")
        for what in ("", "/config", "/ready", "/stats")
    ),
    *("POST /v2/models/{name}/infer", "POST /v2/models/{name}/versions/{version}/infer"),
    *("GET /v2/systemsharedmemory/status", "POST /v2/systemsharedmemory/unregister"),
    "GET /v2/systemsharedmemory/region/{region}/status",
    "POST /v2/systemsharedmemory/region/{region}/register",
    "POST /v2/systemsharedmemory/region/{region}/unregister",
    *("POST /v1/programs", "GET /v1/jobs/{id}/regression", "GET /v1/tensors", "PUT /v1/tensors"),
    *("GET /v1/jobs/{id}/artefacts", "GET /v1/jobs/{id}/artefacts/{name}"),
    *("GET /v1/monitors", "GET /v1/monitors/{id}", "GET /v1/evaluations/{id}"),
    *("DELETE /v1/tensors", "GET /v1/tensors/{id}"),
    "PUT /v1/tensors/{id}",
    "DELETE /v1/tensors/{id}",
}
HIDDEN = (
    "/",
    "/docs",
    "/docs/swagger-ui.css",
    "/openapi.json",
    "/nothing",
    "/healthz/",
    "//readyz",
)


@dataclass(frozen=True)
class Guarded:
    """A server that asks for keys, and one key for each role."""

    server: Server
    database: Database
    keys: Mapping[Role, str]

    def http(self, role: Role | None = None, **headers: str) -> httpx.Client:
        if role is not None:
            headers["authorization"] = f"Bearer {self.keys[role]}"
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("data")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys = {role: database.key(f"{role}er", role) for role in ROLES}
    shared = {"WARPCALL_USER_MAX_SHARED_BYTES": "1MiB"}  # else nobody may ask for the regions
    settings = {**database.settings, **shared, "WARPCALL_ARENA_BYTES": "64MiB"}
    with running_server(settings) as server:
        yield Guarded(server, database, keys)


@pytest.fixture(scope="module")
def operations(guarded: Guarded) -> dict[str, dict[str, Any]]:
    """Every operation of the OpenAPI description, by method and path."""
    with guarded.http("call") as http:
        paths = http.get("/openapi.json").json()["paths"]
    return {
        f"{method.upper()} {path}": operation
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


def send(http: httpx.Client, operation: str) -> httpx.Response:
    method, path = operation.split()
    return http.request(method, path.replace("{name}", "permute"))


def test_without_a_key_every_route_but_health_and_readiness_is_closed(
    guarded: Guarded, operations: dict[str, dict[str, Any]]
) -> None:
    with guarded.http() as http:
        answers = {operation: send(http, operation) for operation in operations}
        answers |= {path: http.get(path) for path in HIDDEN}

    codes = {name: answer.status_code for name, answer in answers.items()}
    assert {name for name, code in codes.items() if code == 200} == {*HEALTH, "GET /install"}
    assert {name for name, code in codes.items() if code != 401} == OPEN
    for name in answers.keys() - OPEN:
        if " /v2" in name:  # in that protocol's form
            assert "asks for an API key" in refused(answers[name], 401)
        else:
            assert "asks for an API key" in problem_of(answers[name], 401, "unauthorized", None)
        assert answers[name].headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
)
def test_no_method_is_a_way_around_the_key(
    guarded: Guarded, operations: dict[str, dict[str, Any]], method: str
) -> None:
    closed = {operation.split()[1] for operation in operations.keys() - OPEN}

    with guarded.http() as http:
        statuses = {
            path: http.request(method, path.replace("{name}", "x")).status_code for path in closed
        }

    assert set(statuses.values()) == {401}


@pytest.mark.parametrize("way", ["with a key", "in a session"])
def test_every_role_reaches_what_it_may_and_nothing_more(
    guarded: Guarded, operations: dict[str, dict[str, Any]], way: str
) -> None:
    ops = {name for name, operation in operations.items() if "calls" in operation["tags"]}
    assert operations.keys() == OPEN | NEEDS.keys() | CALL | ops, "a new route: who may?"

    for role in ROLES:
        with guarded.http(role) as http:
            if way == "in a session":
                keep(http, log_in(http, guarded.keys[role]))
                del http.headers["authorization"]
            statuses = {
                operation: send(http, operation).status_code
                for operation in sorted(operations, key=lambda name: "/logout" in name)
                if operation != "POST /logout" or way == "with a key"
            }

        for operation, status in statuses.items():
            needed = NEEDS.get(operation, "call")
            allowed = ROLES.index(role) >= ROLES.index(needed)
            assert (status == 403) is not allowed, (role, operation, status)
            assert status != 401 or operation == "POST /login"


def test_the_description_says_which_role_a_route_needs(
    operations: dict[str, dict[str, Any]],
) -> None:
    said = {name: operation["x-warpcall-role"] for name, operation in operations.items()}

    assert {name for name, role in said.items() if role == "none"} == OPEN
    assert {name: role for name, role in said.items() if role not in ("none", "call")} == NEEDS
    for name, operation in operations.items():
        assert ("401" in operation["responses"]) is (name not in OPEN - {"POST /login"})
        local_only = "/infer" in name or "/systemsharedmemory/" in name  # whatever the role
        owner_only = name == "GET /v1/jobs/{id}/shares"
        assert ("403" in operation["responses"]) is (name in NEEDS or local_only or owner_only)
        assert operation.get("security") == ([] if name in OPEN else None)


def test_a_role_that_is_too_low_gets_the_role_that_is_needed(guarded: Guarded) -> None:
    with guarded.http("bench") as http:
        said = problem_of(http.get("/metrics"), 403, "forbidden", None)

    assert said == "this needs a key with the role admin, got one with bench"


def test_calls_run_with_a_key(guarded: Guarded) -> None:
    for role in ROLES:
        with guarded.http(role) as http:
            assert well(http).status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        "Bearer",
        "Bearer wc_",
        "Bearer wc_00000000_nothing",
        "Bearer " + "x" * 5000,
        "Basic {key}",
        "{key}",
        "Bearer {key}x",
        "Bearer x{key}",
        "Bearer {key},{key}",
        "Bearer {almost}",
        "Bearer {upper}",
    ],
)
def test_what_is_not_quite_a_key_is_none(guarded: Guarded, given: str) -> None:
    key = guarded.keys["call"]
    almost = key[:-1] + ("A" if key[-1] != "A" else "B")
    header = given.format(key=key, almost=almost, upper=key.upper())

    with guarded.http(authorization=header) as http:
        answer = http.get("/v1/kernels")

    assert answer.status_code in (401, 429)
    assert key not in answer.text


@pytest.mark.parametrize("given", ["bearer {key}", "BEARER {key}", "Bearer  {key}"])
def test_the_scheme_may_be_written_in_any_case(guarded: Guarded, given: str) -> None:
    with guarded.http(authorization=given.format(key=guarded.keys["call"])) as http:
        assert http.get("/v1/kernels").status_code == 200


def test_a_key_of_bytes_that_are_no_text_is_refused(guarded: Guarded) -> None:
    answer = send_raw(
        guarded.server, "GET /v1/kernels HTTP/1.1\nHost: localhost\nAuthorization: Bearer \x7fé"
    )

    assert answer.status in (400, 401, 429)


def test_with_a_key_it_serves_others_too_and_wrong_keys_are_slowed_down(sqlite: Database) -> None:
    key = sqlite.key("alice")
    settings = {**sqlite.settings, "WARPCALL_HOST": "0.0.0.0"}
    with running_server(settings) as server, httpx.Client(base_url=server.url) as http:
        with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}) as alice:
            assert well(alice).status_code == 200
        wrong = [
            http.get("/v1/kernels", headers={"authorization": f"Bearer wc_{i:08x}_secret{i}"})
            for i in range(30)
        ]
        right = http.get("/v1/kernels", headers={"authorization": f"Bearer {key}"})
        without = http.get("/v1/kernels")
        log = log_of(server)

    statuses = [answer.status_code for answer in wrong]
    allowed = statuses.count(401)
    assert 10 <= allowed <= 12
    assert statuses == [401] * allowed + [429] * (30 - allowed)
    assert "too many wrong API keys from 127.0.0.1" in problem_of(wrong[-1], 429, "busy", None)
    assert 1 <= int(wrong[-1].headers["retry-after"]) <= 7
    assert (right.status_code, without.status_code) == (200, 401)
    lines = [json.loads(line) for line in log.splitlines() if '"a wrong API key"' in line]
    assert len(lines) == allowed
    assert {line["client"] for line in lines} == {"127.0.0.1"}
    assert "secret" not in log
    assert "Bearer" not in log
    assert key[12:] not in log


def test_the_client_says_why_it_is_not_let_in(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WARPCALL_API_KEY", raising=False)
    x = np.arange(6, dtype=np.int32).reshape(2, 3)

    with (
        Client(guarded.server.url) as gpu,
        pytest.raises(Unauthorized, match="asks for an API key"),
    ):
        gpu.permute(x, dims=(1, 0))
    monkeypatch.setenv("WARPCALL_API_KEY", guarded.keys["call"])
    with Client(guarded.server.url) as gpu:
        np.testing.assert_array_equal(gpu.permute(x, dims=(1, 0)), x.T)


def test_the_command_line_logs_in(guarded: Guarded, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    for name in ("WARPCALL_URL", "WARPCALL_API_KEY"):
        environment.pop(name, None)

    def warpcall(*words: str, given: str = "") -> tuple[int, str]:
        program = "from warpcall._cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            input=given,
            capture_output=True,
            check=False,
            env=environment,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    url = guarded.server.url
    refused = warpcall("login", "--url", url, given="wc_00000000_wrong\n")
    logged_in = warpcall("login", "--url", url, given=guarded.keys["call"] + "\n")
    listed = warpcall("kernels", "permute")

    assert refused[0] == 1
    assert "is not one of this server's" in refused[1] or "too many wrong" in refused[1]
    assert logged_in == (0, f"{tmp_path}/warpcall/profile.toml now has the key for {url}\n")
    assert listed[0] == 0
    assert listed[1].startswith("permute:")


def test_the_first_key_closes_a_server_at_work(sqlite: Database) -> None:
    with running_server(sqlite.settings) as server, httpx.Client(base_url=server.url) as http:
        before = http.get("/v1/kernels").status_code
        key = sqlite.key("alice")
        sqlite.revoke(key)
        closed = until_closed(http)

    assert (before, closed) == (200, True), "a revoked key is a key: the door stays shut"


def until_closed(http: httpx.Client) -> bool:
    """Whether it asks for a key within some looks at the database; how soon: test_revocation.py."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if http.get("/v1/kernels").status_code == 401:
            return True
        time.sleep(0.05)
    return False


def test_the_word_insecure_lets_everyone_be_the_local_user(sqlite: Database) -> None:
    settings = {**sqlite.settings, "WARPCALL_HOST": "0.0.0.0", "WARPCALL_INSECURE": "true"}

    with running_server(settings) as server, httpx.Client(base_url=server.url) as http:
        assert well(http).status_code == 200
        assert http.get("/metrics").status_code == 200


def test_pages_allow_nothing_from_elsewhere(guarded: Guarded) -> None:
    with guarded.http("call") as http:
        pages = [http.get(path) for path in ("/", "/docs")]

    for page in pages:
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "same-origin"
        assert page.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("trusted", "seen"),
    [("none", "127.0.0.1"), ("10.0.0.0/8", "127.0.0.1"), ("127.0.0.0/8", "203.0.113.7")],
)
def test_forwarded_addresses_are_believed_only_from_proxies_that_are_named(
    sqlite: Database, trusted: str, seen: str
) -> None:
    key = sqlite.key("alice")
    settings = {**sqlite.settings, "WARPCALL_TRUSTED_PROXIES": trusted}
    headers = {
        "authorization": f"Bearer {key}x",
        "x-forwarded-for": "203.0.113.7",
        "x-forwarded-proto": "https",
    }

    with running_server(settings) as server, httpx.Client(base_url=server.url) as http:
        http.get("/v1/kernels", headers=headers)
        lines = logged(server)

    assert [line["client"] for line in lines if line.get("status") == 401] == [seen]
    assert [line["client"] for line in lines if line.get("message") == "a wrong API key"] == [seen]
