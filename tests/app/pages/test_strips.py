"""The last hour of a device on the first page: what it did, and what was read of it."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from tests.app.pages.conftest import Lab
from tests.service.job_rows import DEVICES, caller
from tests.waiting import until
from warpcall_bench.pages.lists import queue_page
from warpcall_bench.pages.shown import Servers
from warpcall_bench.pages.strips import strip
from warpcall_bench.pages.view import View
from warpcall_service.lanes.activity import ActivityStep
from warpcall_service.lanes.device_reading import Reading
from warpcall_service.lanes.status import LaneStatus
from warpcall_service.store.database import Store

H200 = LaneStatus(
    *("cuda:0", "ready", "", False, "cuda:0 (NVIDIA H200)", 1, 0, "", 0, 0, 0, 0, 0, 0, 0)
)
CALM = Reading(
    load=0.25,
    memory_bytes=14_000_000_000,
    memory_total_bytes=141_000_000_000,
    sm_clock_mhz=1980,
    power_w=91.6,
    temperature_c=33,
    other_processes=0,
)
HOT = Reading(
    load=0.75,
    memory_bytes=70_500_000_000,
    memory_total_bytes=141_000_000_000,
    sm_clock_mhz=1500,
    power_w=640.0,
    temperature_c=88,
    throttled="thermal slowdown",
    other_processes=2,
)
HOUR = [
    ActivityStep(-359, calls=3, calls_s=2.0, reading=CALM),
    ActivityStep(-40, blocks_s=9.0, reading=HOT),
    ActivityStep(-39, blocks_s=10.0, reading=HOT),
    ActivityStep(-1, calls=1, calls_s=0.0001),
    ActivityStep(0, reading=CALM),
]


def test_a_strip_has_throttling_and_foreign_processes_where_they_were() -> None:
    found = strip(H200, HOUR)

    assert [(one.at, one.throttled, one.others) for one in found.columns] == [
        (0.0, "", 0),
        (88.611, "thermal slowdown", 2),
        (88.889, "thermal slowdown", 2),
        (99.444, "", 0),
        (99.722, "", 0),
    ]
    assert found.throttled == [("thermal slowdown", 20)]
    assert found.others == 2
    assert found.now[:3] == ["load 25 %", "memory 14 GB of 141 GB", "1980 MHz"]
    assert dict(found.lines)["load"] == [
        "0.14,75.0 0.14,75.0",  # nothing was read before and after: a point
        "88.75,25.0 89.03,25.0",
        "99.86,75.0 99.86,75.0",
    ]
    assert dict(found.lines)["memory"][1] == "88.75,50.0 89.03,50.0"


def test_the_table_has_each_twelfth_of_the_hour_with_anything() -> None:
    latest, middle, first = strip(H200, HOUR).parts

    assert [(part.end, part.begin) for part in (latest, middle, first)] == [
        (0, 5),
        (5, 10),
        (55, 60),
    ]
    assert (latest.calls, latest.load, latest.others, latest.throttled) == (1, 0.25, 0, [])
    assert (middle.blocks_s, middle.load, middle.sm_clock_mhz) == (19.0, 0.75, 1500)
    assert (middle.memory_bytes, middle.temperature_c, middle.others) == (70_500_000_000, 88, 2)
    assert (middle.throttled, middle.power_w) == (["thermal slowdown"], 640.0)
    assert (first.calls, first.calls_s) == (3, 2.0)


def test_a_device_that_reports_little_has_no_marks() -> None:
    unknown = strip(H200, [ActivityStep(0, calls=1, reading=Reading())])
    unread = strip(H200, [ActivityStep(0, calls=1)])
    long_ago = strip(H200, [ActivityStep(-30, reading=CALM)])

    assert unknown.now == []
    assert dict(unknown.lines) == {"load": [], "memory": []}
    assert unknown.parts[0].load is None
    assert (unread.lines, unread.now) == ([], [])
    assert long_ago.now == []  # it is not so now


def test_the_page_draws_the_hour_of_a_gpu_and_has_its_numbers(tmp_path: Path) -> None:
    store = Store(None, tmp_path)
    store.migrate()
    with store.read() as session:
        page = queue_page(
            session,
            View("./", "/", caller("ann")),
            [strip(H200, HOUR)],
            DEVICES,
            Servers("", ()),
            "",
        )
    store.close()

    assert page.count('<rect class="slow"') == page.count('<rect class="foreign"') == 2
    assert page.count("<title>thermal slowdown</title>") == 2
    assert page.count("<title>2 other processes</title>") == 2
    assert len(re.findall(r'<polyline class="path (load|memory)"', page)) == 6
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "thermal slowdown for 20 s" in text
    assert "5 to 10 0 0 s 19 s 75 % 70.5 GB 1500 640 88 2 thermal slowdown" in text


def test_the_strip_of_a_server_without_a_gpu_has_its_load_and_memory_and_json(
    pages_lab: Lab, browser_http: httpx.Client
) -> None:
    def read() -> bool:
        (device,) = browser_http.get("/v1/devices").json()["devices"]
        return any(
            step["reading"] and step["reading"]["load"] is not None for step in device["steps"]
        )

    until(read)
    (device,) = browser_http.get("/v1/devices").json()["devices"]
    page = browser_http.get("/").text

    assert (device["name"], device["state"], device["step_s"]) == ("cpu", "ready", 10.0)
    readings = [step["reading"] for step in device["steps"] if step["reading"]]
    for reading in readings:
        assert 0 < reading["memory_bytes"] < reading["memory_total_bytes"]
        assert reading["sm_clock_mhz"] is reading["other_processes"] is None
        assert (reading["throttled"], reading["power_capped"]) == ("", False)
    assert "The last hour in numbers" in page
    assert '<th class="num">load</th>' in page
    assert "MHz" not in page  # nothing that only a GPU has
    assert 'href="./v1/devices"' in page
