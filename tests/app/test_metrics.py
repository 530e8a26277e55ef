"""`/metrics` has what a server knows of its devices, its disk and its database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.service.requests import metrics
from tests.waiting import until
from warpcall_service.doctor import checks
from warpcall_service.lanes.device_reading import SLOWED, Reading
from warpcall_service.lanes.lane import Lane

DOCKER = Path(__file__).parents[2] / "docker"
GPU = Reading(
    load=0.87,
    memory_bytes=70 << 30,
    memory_total_bytes=141 << 30,
    sm_clock_mhz=1980,
    power_w=612.5,
    temperature_c=61,
)
LANE = '{lane="cpu"}'
THROTTLED = 'warpcall_device_throttled{{lane="cpu",reason="{}"}}'


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with running_app() as running:
        yield running


@pytest.fixture
def http(app: App) -> Iterator[httpx.Client]:
    with app.client() as client:
        yield client


@pytest.fixture
def gpu(app: App, monkeypatch: pytest.MonkeyPatch) -> Lane:
    """The lane, as if it had a GPU that NVML does not know: only the test adds readings."""
    lane: Lane = app.engine.all_lanes[0]
    fingerprint = {**lane.hello["fingerprint"], "kind": "cuda", "uuid": "none"}
    monkeypatch.setattr(lane, "hello", {**lane.hello, "fingerprint": fingerprint})
    monkeypatch.setattr(lane, "activity", type(lane.activity)())
    return lane


def of_devices(http: httpx.Client) -> dict[str, float]:
    found = metrics(http).items()
    return {name: value for name, value in found if name.startswith("warpcall_device_")}


def test_a_cpu_has_load_and_memory_and_no_sensors(http: httpx.Client) -> None:
    until(lambda: of_devices(http))

    found = of_devices(http)

    of_memory = {f"warpcall_device_memory{part}_bytes{LANE}" for part in ("", "_used")}
    assert of_memory <= found.keys() <= {*of_memory, f"warpcall_device_load_ratio{LANE}"}
    used, total = (found[f"warpcall_device_memory{part}_bytes{LANE}"] for part in ("_used", ""))
    assert 0 < used < total


def test_a_gpu_has_what_was_read_last(http: httpx.Client, gpu: Lane) -> None:
    gpu.activity.add_reading(GPU)

    found = of_devices(http)

    slowed = {THROTTLED.format(why) for why in SLOWED.values()}
    assert found == {
        f"warpcall_device_load_ratio{LANE}": 0.87,
        f"warpcall_device_memory_used_bytes{LANE}": 70 << 30,
        f"warpcall_device_memory_bytes{LANE}": 141 << 30,
        f"warpcall_device_temperature_celsius{LANE}": 61,
        f"warpcall_device_power_watts{LANE}": 612.5,
        f"warpcall_device_sm_clock_hertz{LANE}": 1.98e9,
        f"warpcall_device_power_capped{LANE}": 0,
        **dict.fromkeys(slowed, 0.0),
    }


def test_a_gpu_without_nvml_has_no_metrics(http: httpx.Client, gpu: Lane) -> None:
    assert of_devices(http) == {}


def test_a_gpu_that_is_slowed_down_has_the_reason(http: httpx.Client, gpu: Lane) -> None:
    gpu.activity.add_reading(Reading(throttled=SLOWED[0x20], power_capped=True))

    found = of_devices(http)

    assert found[f"warpcall_device_power_capped{LANE}"] == 1
    reasons = {why: found[THROTTLED.format(why)] for why in SLOWED.values()}
    assert reasons == {why: float(why == SLOWED[0x20]) for why in SLOWED.values()}
    assert len(found) == 1 + len(SLOWED)  # what was not read is absent


def test_disk_database_and_checks_are_metrics(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: "warpcall_disk_free_bytes" in metrics(http))
    found = metrics(http)
    monkeypatch.setattr(checks, "LEAST_FREE_BYTES", 1 << 60)
    monkeypatch.setattr(checks, "FEW_FREE_BYTES", 1 << 60)
    monkeypatch.setattr("warpcall_service.doctor.live.KEPT_S", 0.0)
    full = 'warpcall_check_state{check="disk"}'
    until(lambda: metrics(http)[full] == 2)

    assert 0 < found["warpcall_disk_free_bytes"] < found["warpcall_disk_bytes"]
    assert found["warpcall_database_bytes"] > 4096
    assert found[full] == 0
    assert "warpcall_certificate_end_seconds" not in found
    reads = 'warpcall_database_seconds_{}{{operation="read"}}'
    assert found[reads.format("count")] > 0
    assert found[reads.format("sum")] > 0
    assert found['warpcall_database_failures_total{operation="read"}'] == 0


def test_counters_begin_at_0(http: httpx.Client) -> None:
    found = metrics(http)

    ends = ("succeeded", "partial", "failed", "invalid", "cancelled", "timed_out", "interrupted")
    zero = {f'warpcall_jobs_ended_total{{state="{end}"}}' for end in ends}
    zero |= {f'warpcall_monitor_attempts_total{{state="{s}"}}' for s in ("delivered", "failed")}
    zero |= {f'warpcall_upload_checks_total{{outcome="{o}"}}' for o in ("refused", "failed")}
    zero |= {f'warpcall_job_attempts_total{{exit_class="{c}"}}' for c in ("ok", "killed")}
    assert {name: found[name] for name in zero} == dict.fromkeys(zero, 0.0)


@pytest.mark.parametrize("name", ["prometheus/alerts.yml", "grafana/dashboards/warpcall.json"])
def test_alerts_and_dashboard_name_metrics_that_there_are(http: httpx.Client, name: str) -> None:
    named = set(re.findall(r"\bwarpcall_\w+", (DOCKER / name).read_text()))

    families = set(re.findall(r"^# TYPE (\w+)", http.get("/metrics").text, re.MULTILINE))

    ends = ("", "_total", "_bucket", "_sum", "_count")
    assert named
    assert named <= {f"{family}{end}" for family in families for end in ends}
