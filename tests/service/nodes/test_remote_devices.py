"""The devices of other servers, from their heartbeats and as every server shows them."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import running_server
from tests.service.databases import Postgres, new_postgresql
from tests.service.requests import well
from tests.waiting import until_lasting as until
from warpcall.devices import Device
from warpcall_service.lanes.activity import STEPS
from warpcall_service.nodes.remote_devices import RemoteDevices

FIELDS: dict[str, Any] = {
    "name": "cuda:0",
    "label": "cuda:0 (NVIDIA H200)",
    "state": "ready",
    "reason": "",
    "queued": 0,
    "in_flight": 0,
    "restarts": 0,
    "step_s": 10,
}


def heartbeat(*numbers: int, name: str = "cuda:0") -> list[dict[str, Any]]:
    steps = [
        [n, {"started_at": f"at {n}", "calls": n, "calls_s": 0.0, "blocks_s": 0.0, "reading": None}]
        for n in numbers
    ]
    return [{"fields": {**FIELDS, "name": name}, "steps": steps}]


def calls(device: Device) -> list[int]:
    return [step.calls for step in device.steps]


def test_steps_of_heartbeats_become_an_hour() -> None:
    known = RemoteDevices()

    for number in range(500):
        known.note("a", "host", heartbeat(number, number + 1))
    (device,) = known.of("a")

    assert calls(device) == [*range(501 - STEPS, 501)]
    assert (device.node, device.host, device.label) == ("a", "host", "cuda:0 (NVIDIA H200)")


def test_after_a_restart_of_its_machine_the_steps_begin_anew() -> None:
    known = RemoteDevices()

    known.note("a", "host", heartbeat(90_000, 90_001))
    known.note("a", "host", heartbeat(3))

    assert calls(known.of("a")[0]) == [3]


def test_servers_that_are_no_longer_known_and_older_ones_have_no_devices() -> None:
    known = RemoteDevices()
    for node in "abc":
        known.note(node, "host", heartbeat(1))

    known.forget_others(["a", "b"])
    known.note("b", "host", None)

    assert [len(known.of(node)) for node in "abc"] == [1, 0, 0]


@pytest.mark.slow  # starts servers
def test_every_server_lists_the_devices_of_all(postgres: Postgres, tmp_path: Path) -> None:
    database = new_postgresql(postgres, tmp_path)
    folders = [{**database.settings, "WARPCALL_DATA_DIR": str(tmp_path / name)} for name in "abc"]

    def devices(url: str) -> list[dict[str, Any]]:
        return list(httpx.get(f"{url}/v1/devices").json()["devices"])

    with (
        running_server(folders[0]) as one,
        running_server(folders[1]) as two,
        running_server(folders[2]) as three,
    ):
        urls = one.url, two.url, three.url
        own = {url: httpx.get(f"{url}/v1/nodes").json()["node"] for url in urls}
        with httpx.Client(base_url=two.url) as http:
            assert well(http).status_code == 200

        def is_known() -> bool:
            theirs = [device for device in devices(one.url) if device["node"] == own[two.url]]
            return any(step["calls"] for device in theirs for step in device["steps"])

        until(is_known)
        until(lambda: all(len(devices(url)) == 3 for url in urls))
        found = {url: devices(url) for url in own}
        orders = set()
        for _ in range(20):  # heartbeats come in another order each time
            orders.add(tuple(device["node"] for device in devices(one.url)))
            time.sleep(0.15)
        page = httpx.get(one.url).text

    for url, listed in found.items():
        assert listed[0]["node"] == own[url]
        assert {device["node"] for device in listed} == {*own.values()}
        assert all(device["host"] for device in listed)
    assert page.count('<section class="device">') == 3
    assert orders == {tuple(own[url] for url in urls)}
    assert all(f"on {host}" in page for host in hosts(own))


def hosts(own: dict[str, str]) -> list[str]:
    """How the page names servers on one host."""
    return [f"{socket.gethostname()}:{url.rpartition(':')[2]}" for url in own]
