"""`/readyz` names the checks of `warpcall-server doctor` that a running server makes."""

from __future__ import annotations

import httpx
import pytest

from tests.app.harness import running_app
from warpcall_service.doctor import checks

NAMES = ["devices", "bubblewrap", "database", "shared-memory", "clock", "disk", "tls", "keys"]


def states(http: httpx.Client) -> dict[str, str]:
    return {one["name"]: one["state"] for one in http.get("/readyz").json()["checks"]}


def test_readyz_names_the_checks_and_their_states() -> None:
    with running_app() as app, app.client() as http:
        found = states(http)

    assert found == dict.fromkeys(NAMES, "ok")


def test_readyz_names_a_check_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LEAST_FREE_BYTES", 1 << 60)
    monkeypatch.setattr(checks, "FEW_FREE_BYTES", 1 << 60)

    with running_app(user_max_shared_bytes="1PiB") as app, app.client() as http:
        answer = http.get("/readyz")
        found = states(http)

    assert answer.status_code == 200
    assert (found["disk"], found["shared-memory"], found["tls"]) == ("failed", "warning", "ok")
    assert "bytes are free" not in answer.text
