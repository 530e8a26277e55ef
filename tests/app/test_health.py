"""`/v1/health` and the page `/admin/health`: how full a server is, and what went wrong on it."""

from __future__ import annotations

import logging

import httpx
import numpy as np
import pytest

from tests.app.harness import App, running_app
from tests.service.job_rows import submit
from tests.service.stored_tensors import put
from tests.waiting import until
from warpcall.health import ClusterHealth
from warpcall_service import logs
from warpcall_service.auth import users
from warpcall_service.doctor import checks
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Role


def key(app: App, user: str, role: Role) -> str:
    with app.store.write() as session:
        if user not in [one.name for one, _ in users.list_users(session)]:
            users.add_user(session, user)
            session.flush()
        made = users.create_key(session, user, role)[1]
    return str(made)


def health(http: httpx.Client) -> ClusterHealth:
    return checked(ClusterHealth, http.get("/v1/health").json())


def test_health_says_how_full_the_server_is() -> None:
    with running_app() as app, app.client() as http:
        http.get("/readyz")  # looks at the disk
        stored = put(http, "x", np.zeros(1000, np.float32))
        submit(app.store, "ann")

        found = health(http)

    assert stored.status_code in (200, 201)
    (server,) = found.servers.values()
    assert [node.id for node in found.nodes] == [*found.servers]
    assert found.jobs["queued"] + found.jobs["running"] + found.jobs["failed today"] == 1
    assert (found.database_bytes or 0) > 4096
    assert found.schema is not None
    assert server.disk_bytes is not None
    assert server.disk_free_bytes is not None
    assert 0 < server.disk_free_bytes < server.disk_bytes
    assert [(one.state, one.restarts, one.last_restart) for one in server.devices] == [
        ("ready", 0, "")
    ]
    assert server.devices[0].arena_bytes == 64 << 20
    assert server.tensor_bytes == {"local": 4000}
    assert server.checks == []


def test_health_has_the_last_errors_of_the_log_and_what_the_checks_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "LEAST_FREE_BYTES", 1 << 60)
    monkeypatch.setattr(checks, "FEW_FREE_BYTES", 1 << 60)
    with running_app() as app, app.client() as http:
        http.get("/readyz")
        found = health(http)
        shown = http.get("/admin/health").text

    (server,) = found.servers.values()
    (check,) = server.checks
    assert (check.name, check.state) == ("disk", "failed")
    assert "bytes are free" in check.text
    assert check.advice in shown.replace("&#39;", "'")
    assert "What is wrong?" in shown


def test_only_administrators_read_it() -> None:
    with running_app() as app:
        keys = {"upload": key(app, "ann", "upload"), "admin": key(app, "ann", "admin")}
        answers = {}
        for role, text in keys.items():
            with app.client(text) as http:
                until(lambda http=http: http.get("/v1/me").json().get("name") == "ann")  # type: ignore[misc]  # a default binds it
                answers[role] = (
                    http.get("/v1/health").status_code,
                    http.get("/admin/health").status_code,
                )

    assert answers == {"upload": (403, 404), "admin": (200, 200)}


def test_the_log_remembers_its_last_errors() -> None:
    handler = logs._Handler(Lines())  # type: ignore[arg-type]
    log = logging.getLogger("warpcall.test_health")
    log.addHandler(handler)
    log.propagate = False
    for number in range(7):
        log.error("error %d\x1b[31m", number)
        log.info("no error")

    found = logs.recent_errors()

    assert [message for _, _, message in found] == [f"error {n}\ufffd[31m" for n in range(6, 1, -1)]
    assert {name for _, name, _ in found} == {"warpcall.test_health"}


class Lines:
    """Takes lines as `log_writer.LogWriter` does."""

    def put(self, line: str) -> None:
        assert line
