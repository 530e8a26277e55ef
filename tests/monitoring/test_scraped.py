"""A real Prometheus scrapes a real server: the dashboard's queries have series, and alerts fire."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import psutil
import pytest

from demo.server import stop
from tests import waiting
from tests.app.harness import running_app
from tests.monitoring.programs import (
    DASHBOARD,
    Api,
    needs_prometheus,
    running_alertmanager,
    running_prometheus,
)
from tests.nginx import certificate_in
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client, ended, submit
from tests.service.requests import PERMUTE, well
from tests.service.store.test_trouble import on_small_disk
from tests.service.stored_tensors import put
from warpcall_service.lanes.device_reading import Reading

pytestmark = [needs_prometheus, pytest.mark.slow]

until = partial(waiting.until, timeout_s=120)

GPU = Reading(0.87, 70 << 30, 141 << 30, 1980, 612.5, 61, "thermal slowdown")
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())
QUERIES = [
    (f"{panel['title']}, {target['refId']}", target["expr"])
    for panel in BOARD["panels"]
    for target in panel.get("targets", ())
]
# What holds of the server from its start: its certificate ends in two days, its disk has 200 MiB.
AT_ONCE = {"WarpcallDiskFull", "WarpcallCertificateEnds"}


@dataclass
class Place:
    """A server, and what watches it.

    Attributes:
        sent: what Alertmanager has sent to its receiver.
    """

    server: Server
    http: httpx.Client
    prometheus: Api
    alertmanager: Api
    sent: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A small HTTP server in a thread; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.server_port}"
        finally:
            listener.shutdown()
            thread.join()


@contextmanager
def server_with_gpu() -> Iterator[str]:
    """/metrics of the application, as on a machine with a GPU whose readings are these."""
    with running_app() as app, app.client() as http:
        lane = app.engine.all_lanes[0]
        fingerprint = {**lane.hello["fingerprint"], "kind": "cuda", "uuid": "none"}
        lane.hello = {**lane.hello, "fingerprint": fingerprint}

        class Metrics(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                lane.activity.add_reading(GPU)
                body = http.get("/metrics").content
                with suppress(ConnectionError):  # Prometheus has ended
                    self.send_response(200)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        with listening(Metrics) as address:
            yield address


@contextmanager
def receiver(sent: list[dict[str, Any]]) -> Iterator[str]:
    """Takes what Alertmanager sends to a webhook."""

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with listening(Webhook) as address:
        yield f"http://{address}/"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server with keys, TLS and a small disk, that has had calls, a job and wrong requests."""
    folder = tmp_path_factory.mktemp("monitored")
    disk = folder / "disk"
    disk.mkdir()
    certificate, tls_key = certificate_in(folder)
    url = f"sqlite:///{folder}/warpcall.sqlite3"
    database = Database("sqlite", {"WARPCALL_DATABASE_URL": url, "WARPCALL_DATA_DIR": str(folder)})
    key = database.key("root", "admin")
    settings = {
        **database.settings,
        **BRIEF,
        "WARPCALL_DATA_DIR": str(disk),
        "WARPCALL_TLS_CERT": str(certificate),
        "WARPCALL_TLS_KEY": str(tls_key),
        "WARPCALL_MAX_RESTARTS": "1",
        "WARPCALL_RESTART_PAUSE_S": "0.1",
    }
    sent: list[dict[str, Any]] = []
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SSL_CERT_FILE", str(certificate))
        under = on_small_disk(disk, size="200m")
        server = stack.enter_context(running_server(settings, under))
        http = stack.enter_context(client(server, key))
        gpu = stack.enter_context(server_with_gpu())
        alertmanager = stack.enter_context(
            running_alertmanager(folder, stack.enter_context(receiver(sent)))
        )
        job = {
            "scheme": "https",
            "tls_config": {"ca_file": str(certificate)},
            "static_configs": [{"targets": [server.url.removeprefix("https://")]}],
        }
        others = [{"job_name": "gpu", "static_configs": [{"targets": [gpu]}]}]
        prometheus = stack.enter_context(running_prometheus(folder, key, job, alertmanager, others))
        use(http)
        assert ended(http, submit(http))["state"] == "succeeded"
        with client(server, "wc_wrong") as wrong:
            assert wrong.get("/v1/kernels").status_code == 401
        yield Place(server, http, prometheus, alertmanager, sent)


def use(http: httpx.Client) -> None:
    """A call, a call that is refused, and a tensor that is stored."""
    assert well(http).status_code == 200
    assert http.post(PERMUTE, json={"inputs": {}}).status_code == 422
    assert put(http, "x").status_code in (200, 201)


def found(place: Place, query: str) -> list[float]:
    """The values of a query of the dashboard that are numbers, as Grafana would ask for it."""
    query = query.replace("$instance", ".*").replace("$__rate_interval", "1m")
    assert "$" not in query
    values = [float(one["value"][1]) for one in place.prometheus.query(query)]
    return [value for value in values if not math.isnan(value)]


@pytest.mark.parametrize("query", [q for _, q in QUERIES], ids=[name for name, _ in QUERIES])
def test_a_query_of_the_dashboard_has_series(place: Place, query: str) -> None:
    def has_series() -> bool:
        use(place.http)
        return bool(found(place, query))

    until(has_series, f"no series: {query}")


def test_a_healthy_server_has_only_the_alerts_that_hold_from_its_start(place: Place) -> None:
    until(lambda: place.prometheus.firing() >= AT_ONCE | {"WarpcallThrottled"})

    assert place.prometheus.firing() == AT_ONCE | {"WarpcallThrottled"}  # of the other machine
    (up,) = place.prometheus.query('up{job="warpcall"}')
    assert up["value"][1] == "1"


def test_the_dashboard_offers_the_servers(place: Place) -> None:
    variable = BOARD["templating"]["list"][1]["query"]["query"]
    metric, label = re.fullmatch(r"label_values\((\w+),(\w+)\)", variable).groups()  # type: ignore[union-attr]

    offered = place.prometheus.get(f"/api/v1/label/{label}/values", **{"match[]": metric})["data"]

    assert place.server.url.removeprefix("https://") in offered


def test_alerts_fire_when_a_server_loses_its_lane_fails_and_ends(place: Place) -> None:
    """Also they arrive at the receiver, and one cause is one message."""
    for _ in range(2):
        until(lambda: place.http.get("/readyz").json()["lanes"][0]["state"] == "ready")
        for child in psutil.Process(place.server.process.pid).children(recursive=True):
            if "warpcall_service.worker.main" in child.cmdline():
                child.kill()
        until(lambda: place.http.get("/readyz").json()["lanes"][0]["state"] != "ready")
    until(lambda: place.http.get("/readyz").json()["lanes"][0]["state"] == "failed")

    def fails() -> bool:
        assert well(place.http).status_code == 503
        return {"WarpcallNoLane", "WarpcallLaneDown", "WarpcallFaults"} <= place.prometheus.firing()

    until(fails)
    until(lambda: "WarpcallNoLane" in received(place))
    (down,) = place.alertmanager.get("/api/v2/alerts", filter='alertname="WarpcallLaneDown"')
    assert down["status"]["state"] == "suppressed"

    assert stop(place.server.process) == 0
    until(lambda: "WarpcallDown" in received(place))
    assert received(place) >= {*AT_ONCE, "WarpcallNoLane", "WarpcallFaults", "WarpcallDown"}
    assert "WarpcallLaneDown" not in received(place)


def received(place: Place) -> set[str]:
    """Names of the alerts that were sent to the receiver."""
    return {alert["labels"]["alertname"] for one in place.sent for alert in one["alerts"]}
