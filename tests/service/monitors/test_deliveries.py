"""Calls of monitors' URLs by a real server: signed, retried, once for each step, nowhere else."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.client.certificate import certificate, tls  # noqa: F401  # fixtures
from tests.nginx import free_port
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client
from tests.service.monitors.lab import HOUR_S, JOB, add, add_runs, show
from tests.service.monitors.receiver import Receiver
from tests.service.monitors.series import quiet, times
from tests.service.requests import log_of
from tests.waiting import until_lasting as until
from warpcall_bench.monitors import database as monitors
from warpcall_bench.monitors.models import MonitorRequest
from warpcall_service.identity import Caller, Role

pytestmark = pytest.mark.slow

STEP = times(quiet, 0, 12, 10, 1.05)
USERS: dict[str, Role] = {"alice": "bench", "bob": "bench", "root": "admin"}


@dataclass(frozen=True)
class Shared:
    """What most tests have together.

    Attributes:
        port: of the receiver, at which the server may call with and without TLS.
    """

    server: Server
    database: Database
    keys: dict[str, str]
    port: int

    def http(self, user: str) -> httpx.Client:
        return client(self.server, self.keys[user])


def allowed(port: int) -> dict[str, str]:
    """Settings of a server that may call a receiver at a port of this machine."""
    hosts = f"http://127.0.0.1:{port}, 127.0.0.1:{port}"
    return {**BRIEF, "WARPCALL_WEBHOOK_HOSTS": hosts}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("shared"))})
    keys = {user: database.key(user, role) for user, role in USERS.items()}
    port = free_port()
    with running_server({**database.settings, **allowed(port)}) as running:
        yield Shared(running, database, keys, port)


@pytest.fixture
def lab(shared: Shared) -> Iterator[Shared]:
    """The shared server, which has no monitors, nor in the end."""
    yield shared
    with shared.http("root") as http:
        for one in http.get("/v1/monitors?user=all").json()["monitors"]:
            assert http.delete(f"/v1/monitors/{one['id']}").status_code == 204


@pytest.fixture
def http(lab: Shared) -> Iterator[httpx.Client]:
    with lab.http("alice") as http:
        yield http


@pytest.fixture
def port() -> int:
    """The port of the receiver of a server of a test's own."""
    return free_port()


@pytest.fixture
def settings(sqlite: Database, port: int) -> dict[str, str]:
    """Of a server of a test's own."""
    return {**sqlite.settings, **allowed(port)}


def added(http: httpx.Client, url: str) -> dict[str, Any]:
    """A paused monitor with this URL, so that only a test gives it runs."""
    monitor = add(http, notify=url)
    until(lambda: show(http, monitor)["series"])
    http.patch(f"/v1/monitors/{monitor['id']}", json={"paused": True})
    return monitor


def paused(lab: Shared, url: str) -> dict[str, Any]:
    """The same as a row, without the run of a new one."""
    store = lab.database.store()
    with store.write() as session:
        asked = MonitorRequest.model_validate({"job": JOB, "every_s": HOUR_S, "notify": url})
        row = monitors.add(session, Caller("alice", "bench"), asked, private=False, most=1000)
        row.paused = True
        found = {"id": row.id}
    store.close()
    return found


def show_step(database: Database, monitor: dict[str, Any]) -> None:
    """Let the latest run of a monitor show a step."""
    store = database.store()
    add_runs(store, monitor["id"], STEP, newest=True)
    store.close()


def delivery(http: httpx.Client, monitor: dict[str, Any]) -> dict[str, Any]:
    found = show(http, monitor)["deliveries"]
    assert len(found) <= 1
    return found[0] if found else {"state": "", "attempts": 0, "status": None, "detail": ""}


def due_now(database: Database) -> None:
    database.sql("UPDATE monitor_deliveries SET next_ms = 0 WHERE finished_ms IS NULL")


def test_a_step_is_delivered_once_and_signed(http: httpx.Client, lab: Shared) -> None:
    with Receiver(lab.port) as receiver:
        monitor = added(http, receiver.url)
        show_step(lab.database, monitor)
        until(lambda: delivery(http, monitor)["state"] == "delivered")
        store = lab.database.store()
        add_runs(store, monitor["id"], [105.0] * 3, newest=True)
        store.close()
        until(lambda: _searched(lab.database))
        (call,) = receiver.calls
    found = show(http, monitor)

    assert call.json["steps"] == found["found"]
    assert (call.json["event"], call.json["job"]) == ("steps", found["found"][0]["found_job"])
    assert call.json["detail"] == ""
    assert (call.json["monitor"], call.json["op"]) == (monitor["id"], "permute")
    assert (
        call.json["delivery"] == call.headers["warpcall-delivery"] == found["deliveries"][0]["id"]
    )
    assert found["deliveries"][0]["attempts"] == 1
    assert found["deliveries"][0]["status"] == 204
    signed = call.headers["warpcall-timestamp"].encode() + b"." + call.body
    digest = hmac.new(monitor["secret"].encode(), signed, hashlib.sha256).hexdigest()
    assert call.headers["warpcall-signature"] == f"sha256={digest}"
    assert call.headers["content-type"] == "application/json"
    assert "secret" not in found


def _searched(database: Database) -> bool:
    store = database.store()
    with store.read() as session:
        left = session.connection().exec_driver_sql(
            "SELECT count(*) FROM monitors WHERE job_number IS NOT NULL"
        )
        waits = left.scalar_one()
    store.close()
    return not waits


def test_a_receiver_that_is_down_is_called_again_with_the_same_id(
    http: httpx.Client, lab: Shared
) -> None:
    monitor = paused(lab, f"http://127.0.0.1:{lab.port}/hook")
    show_step(lab.database, monitor)
    until(lambda: delivery(http, monitor)["attempts"] == 1)
    until(lambda: delivery(http, monitor)["state"] == "waiting")
    waiting = delivery(http, monitor)
    with Receiver(lab.port) as receiver:
        receiver.status = 503
        due_now(lab.database)
        until(lambda: delivery(http, monitor)["status"] == 503)
        receiver.status = 200
        due_now(lab.database)
        until(lambda: delivery(http, monitor)["state"] == "delivered")
        ids = {call.headers["warpcall-delivery"] for call in receiver.calls}
        bodies = {call.body for call in receiver.calls}

    assert waiting["next_at"] > waiting["created_at"]
    assert waiting["detail"]
    assert delivery(http, monitor)["attempts"] == 3
    assert ids == {waiting["id"]}
    assert len(bodies) == 1


def test_after_the_last_attempt_a_delivery_has_failed(http: httpx.Client, lab: Shared) -> None:
    with Receiver(lab.port) as receiver:
        receiver.status = 500
        monitor = paused(lab, receiver.url)
        show_step(lab.database, monitor)
        for attempt in range(1, 6):
            until(lambda attempt=attempt: delivery(http, monitor)["attempts"] == attempt)  # type: ignore[misc]
            until(lambda: delivery(http, monitor)["state"] in ("waiting", "failed"))
            due_now(lab.database)
    found = delivery(http, monitor)

    assert (found["state"], found["attempts"], found["status"]) == ("failed", 5, 500)
    assert "500" in found["detail"]


def test_a_receiver_that_is_gone_is_not_called_again(http: httpx.Client, lab: Shared) -> None:
    with Receiver(lab.port) as receiver:
        receiver.status = 410
        monitor = paused(lab, receiver.url)
        show_step(lab.database, monitor)
        until(lambda: delivery(http, monitor)["state"] == "failed")

        assert len(receiver.calls) == 1


def test_a_slow_receiver_is_given_up_and_called_again_later(
    http: httpx.Client, lab: Shared
) -> None:
    with Receiver(lab.port) as receiver:
        receiver.slow = True
        monitor = paused(lab, receiver.url)
        show_step(lab.database, monitor)
        until(lambda: delivery(http, monitor)["state"] == "waiting" and receiver.calls)
        until(lambda: delivery(http, monitor)["detail"])

    assert "no answer within 10 s" in delivery(http, monitor)["detail"]


def test_a_redirect_is_not_followed(http: httpx.Client, lab: Shared) -> None:
    elsewhere = f"http://127.0.0.1:{lab.port}/elsewhere"  # which the server may call
    with Receiver(lab.port) as receiver:
        receiver.status, receiver.headers = 307, {"location": elsewhere}
        monitor = paused(lab, receiver.url)
        show_step(lab.database, monitor)
        until(lambda: delivery(http, monitor)["status"] == 307)
        found = delivery(http, monitor)

        assert found["state"] == "waiting"
        assert len(receiver.calls) == 1


def test_a_certificate_that_nobody_signed_is_refused(
    http: httpx.Client,
    lab: Shared,
    tls: ssl.SSLContext,  # noqa: F811
) -> None:
    with Receiver(lab.port, tls) as receiver:
        monitor = paused(lab, receiver.url)
        show_step(lab.database, monitor)
        until(lambda: delivery(http, monitor)["detail"])

        assert "certificate" in delivery(http, monitor)["detail"].lower()
        assert receiver.calls == []


def test_a_certificate_that_the_operator_trusts_is_accepted(
    settings: dict[str, str],
    sqlite: Database,
    certificate: Path,  # noqa: F811
    tls: ssl.SSLContext,  # noqa: F811
    port: int,
) -> None:
    trusting = {**settings, "SSL_CERT_FILE": str(certificate)}
    with (
        running_server(trusting) as server,
        client(server) as http,
        Receiver(port, tls) as receiver,
    ):
        monitor = added(http, receiver.url)
        show_step(sqlite, monitor)
        until(lambda: delivery(http, monitor)["state"] == "delivered")

        assert len(receiver.calls) == 1


def test_a_host_that_is_no_longer_listed_is_not_called_and_the_delivery_says_why(
    settings: dict[str, str], sqlite: Database, port: int
) -> None:
    hosts = f"http://127.0.0.1:{port + 1},http://localhost:{port},127.0.0.1:{port}"
    with Receiver(port) as receiver:
        with running_server(settings) as server, client(server) as http:
            monitor = added(http, receiver.url)
        changed = {**settings, "WARPCALL_WEBHOOK_HOSTS": hosts}
        with running_server(changed) as server, client(server) as http:
            show_step(sqlite, monitor)
            until(lambda: delivery(http, monitor)["detail"])
            found = delivery(http, monitor)
            log = log_of(server)

        assert (found["state"], found["attempts"], found["status"]) == ("waiting", 1, None)
        assert (
            found["detail"] == "the operator does not list the host of the URL with "
            "WARPCALL_WEBHOOK_HOSTS"
        )
        assert found["detail"] in log
        assert receiver.calls == []


def test_kill_9_between_the_measurement_and_the_delivery_delivers_once(
    settings: dict[str, str], sqlite: Database, port: int
) -> None:
    killed = pytest.raises(RuntimeError, match="ended with status -9")
    with Receiver(port) as receiver:
        receiver.slow = True
        with killed, running_server(settings) as server, client(server) as http:
            monitor = added(http, receiver.url)
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
        show_step(sqlite, monitor)  # as the killed server would have left it
        with killed, running_server(settings) as server:
            until(lambda: receiver.calls)
            os.kill(server.process.pid, signal.SIGKILL)  # in the middle of an attempt
            server.process.wait()
        receiver.slow = False
        due_now(sqlite)
        with running_server(settings) as server, client(server) as http:
            until(lambda: delivery(http, monitor)["state"] == "delivered")
            found = show(http, monitor)
            log = log_of(server)

        ids = {call.headers["warpcall-delivery"] for call in receiver.calls}
        assert len(found["found"]) == 1
        assert len(receiver.calls) == 2, "the attempt that was cut off, and the next one"
        assert ids == {found["deliveries"][0]["id"]}
        assert monitor["secret"] not in log


def test_the_url_is_called_when_runs_begin_to_fail_and_when_they_work_again(
    http: httpx.Client, lab: Shared
) -> None:
    with Receiver(lab.port) as receiver:
        monitor = added(http, receiver.url)
        published = http.get("/openapi.json").json()
        schema = "#/components/schemas/MonitorNotification"
        fits = jsonschema_rs.validator_for({"components": published["components"], "$ref": schema})
        for number, names in enumerate((["warpcall", "gone"], ["warpcall"]), 1):
            job = json.dumps({**JOB, "implementations": names})
            lab.database.sql(f"UPDATE monitors SET request = '{job}', next_ms = 0, paused = false")
            until(lambda number=number: len(receiver.calls) == number)  # type: ignore[misc]
            if number == 1:
                failing = show(http, monitor)
        until(lambda: {one["state"] for one in show(http, monitor)["deliveries"]} == {"delivered"})
        found = show(http, monitor)
        failed, recovered = (call.json for call in receiver.calls)

    assert "'gone'" in failing["detail"]
    assert failing["failing_since"] is not None
    assert (failed["event"], failed["job"], failed["detail"]) == (
        "failing",
        None,
        failing["detail"],
    )
    assert (recovered["event"], recovered["detail"]) == ("recovered", "")
    assert recovered["job"] == found["last_job"]
    assert (found["failing_since"], found["detail"], found["runs"]) == (None, "", 2)
    assert [one["event"] for one in found["deliveries"]] == ["recovered", "failing"]
    assert fits.is_valid(failed)
    assert fits.is_valid(recovered)
    assert not fits.is_valid({**failed, "event": "other"})
    webhook = published["webhooks"]["monitor"]["post"]["requestBody"]
    assert webhook["content"]["application/json"]["schema"] == {"$ref": schema}


def test_nothing_is_sent_for_a_disabled_user(lab: Shared) -> None:
    with Receiver(lab.port) as receiver:
        monitor = paused(lab, receiver.url)
        lab.database.command("users", "disable", "alice")
        with lab.http("root") as root:
            show_step(lab.database, monitor)
            until(lambda: delivery(root, monitor)["state"] == "waiting")
            due_now(lab.database)
            until(lambda: _searched(lab.database))
            before = len(receiver.calls)
            lab.database.command("users", "enable", "alice")
            until(lambda: delivery(root, monitor)["state"] == "delivered")

        assert (before, len(receiver.calls)) == (0, 1)


def test_others_see_neither_url_nor_deliveries(http: httpx.Client, lab: Shared) -> None:
    with Receiver(lab.port) as receiver:
        monitor = paused(lab, receiver.url)
        show_step(lab.database, monitor)
        until(lambda: delivery(http, monitor)["state"] == "delivered")
        assert show(http, monitor)["notify"] == receiver.url
    with lab.http("bob") as bob:
        found = show(bob, monitor)

    assert (found["notify"], found["deliveries"]) == (None, [])
    assert len(found["found"]) == 1
