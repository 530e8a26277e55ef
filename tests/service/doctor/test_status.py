"""`warpcall-server status`, of a server that runs and of one that does not, and the health of others."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.server import COMMAND
from tests import forks
from tests.nginx import free_port
from tests.servers import running_server
from tests.service.databases import Database, Postgres, environment, new_postgresql
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_status_of_a_server_that_does_not_run_says_so(sqlite: Database) -> None:
    sqlite.command("users", "add", "ann")
    there = Database("sqlite", {**sqlite.settings, "WARPCALL_PORT": str(free_port())})

    there.command("status", status=3)
    report = said(there, "--json")

    assert (report["running"], report["ready"], report["health"]) == (False, None, None)
    assert report["database_bytes"] > 4096
    assert 0 < report["disk_free_bytes"] < report["disk_bytes"]


def said(database: Database, *options: str) -> dict[str, Any]:
    """What the command prints, whatever its exit status is."""
    done = forks.run([*COMMAND, "status", *options], environment(database.settings))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_status_of_a_running_server_has_its_health(sqlite: Database) -> None:
    key = sqlite.key("ann", "admin")
    with running_server(sqlite.settings) as server:
        port = {"WARPCALL_PORT": server.url.rpartition(":")[2]}
        without = Database("sqlite", {**sqlite.settings, **port})
        with_key = Database("sqlite", {**without.settings, "WARPCALL_API_KEY": key})

        plain, full = without.command("status"), with_key.command("status")
        report = said(with_key, "--json")

    assert plain.startswith("a server runs at 127.0.0.1, port ")
    assert "set WARPCALL_API_KEY to a key with the role admin to see more" in plain
    assert "arena 0 of " in full
    assert "jobs failed today: 0" in full
    assert "log lines dropped: 0" in full
    assert next(iter(report["health"]["servers"].values()))["errors"] == []


def test_any_server_shows_the_health_of_all(postgres: Postgres, tmp_path: Path) -> None:
    database = new_postgresql(postgres, tmp_path)
    key = database.key("ann", "admin")
    folders = [{**database.settings, "WARPCALL_DATA_DIR": str(tmp_path / name)} for name in "ab"]
    headers = {"authorization": f"Bearer {key}"}

    def servers(url: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{url}/v1/health", headers=headers).json()["servers"]
        return found

    with running_server(folders[0]) as one, running_server(folders[1]) as two:
        until(lambda: len(servers(one.url)) == len(servers(two.url)) == 2)
        found = servers(one.url)
        page = httpx.get(f"{two.url}/admin/health", headers=headers).text
        nodes = httpx.get(f"{one.url}/v1/nodes", headers=headers).json()["nodes"]

    assert {server["data_dir"] for server in found.values()} == {
        str(tmp_path / name) for name in "ab"
    }
    assert all(server["devices"][0]["state"] == "ready" for server in found.values())
    assert all(str(tmp_path / name) in page for name in "ab")
    for server in (one, two):
        assert f"{socket.gethostname()}:{server.url.rpartition(':')[2]} <span" in page
    assert "health" not in nodes[0], "every user may read it"
