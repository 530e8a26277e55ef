"""What is read of a device: a GPU by NVML's answers, a CPU by the kernel's files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warpcall_kernels.measuring import _observe
from warpcall_service.lanes import device_reading
from warpcall_service.lanes.activity import Activity
from warpcall_service.lanes.device_reading import CpuReader, GpuReader, Reading, open_reader

WORKER = os.getpid()  # any process of this server


class ScriptedNvml:
    """NVML's own functions, with answers that a test sets; None is an error."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    class NVMLError(Exception):
        pass

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "CurrentClocksEventReasons": 0,
            "MemoryInfo": SimpleNamespace(used=70 << 30, total=141 << 30),
            "UtilizationRates": SimpleNamespace(gpu=87, memory=40),
            "PowerUsage": 612_500,
            "ClockInfo": 1980,
            "Temperature": 61,
            "ComputeRunningProcesses": [SimpleNamespace(pid=WORKER)],
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        answer = self.answers[name.removeprefix("nvmlDeviceGet")]

        def ask(handle: object, *more: object) -> Any:
            if answer is None:
                raise self.NVMLError
            return answer

        return ask


def processes(*pids: int) -> list[Any]:
    return [SimpleNamespace(pid=pid) for pid in pids]


def read(**answers: Any) -> Reading:
    return GpuReader(ScriptedNvml(**answers), object()).read(WORKER)


def test_a_gpu_is_read_by_nvml() -> None:
    assert read() == Reading(
        load=0.87,
        memory_bytes=70 << 30,
        memory_total_bytes=141 << 30,
        sm_clock_mhz=1980,
        power_w=612.5,
        temperature_c=61,
        throttled="",
        power_capped=False,
        other_processes=0,
    )


def test_what_a_gpu_does_not_report_is_unknown() -> None:
    nothing = dict.fromkeys(ScriptedNvml().answers)

    assert read(**nothing) == Reading()


def test_throttling_has_its_reason_and_the_power_limit_is_none() -> None:
    hot = read(CurrentClocksEventReasons=0x20 | 0x04)
    capped = read(CurrentClocksEventReasons=0x04)

    assert (hot.throttled, hot.power_capped) == ("thermal slowdown", True)
    assert (capped.throttled, capped.power_capped) == ("", True)
    assert device_reading.SLOWED == _observe.SLOWED
    assert device_reading.POWER_CAP == _observe.POWER_CAP


def test_only_processes_of_others_are_foreign() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = read(ComputeRunningProcesses=processes(WORKER, child.pid, 1, 2**30))
        assert child.stdin is not None
        child.stdin.close()

    assert found.other_processes == 2  # init, and one that has just ended


def test_processes_that_are_named_as_another_machine_names_them_are_not_counted() -> None:
    """In a container, NVML may name processes by their numbers on the host."""
    found = read(ComputeRunningProcesses=processes(2**30, 2**30 + 1))

    assert found.other_processes is None


def test_a_cpu_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\nHugePages_Total: 0\n"
    )
    (tmp_path / "stat").write_text("cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1\n")
    reader = CpuReader(tmp_path)
    at_first = reader.read(None)
    (tmp_path / "stat").write_text("cpu 130 5 115 850 100 0 0 0 0 0\ncpu0 1 1 1\n")

    later = reader.read(None)

    assert at_first.load is None  # no time has passed
    assert later == Reading(load=0.25, memory_bytes=600 * 1024, memory_total_bytes=1000 * 1024)


@pytest.mark.parametrize("text", ["", "cpu x", "MemTotal: x kB\n"])
def test_a_machine_without_these_files_tells_nothing(tmp_path: Path, text: str) -> None:
    if text:
        (tmp_path / "stat").write_text(text)
        (tmp_path / "meminfo").write_text(text)
    reader = CpuReader(tmp_path)

    assert reader.read(None) == Reading()


def test_a_gpu_that_nvml_does_not_know_has_no_reader() -> None:
    assert open_reader({"kind": "cuda", "uuid": "no-such-gpu"}) is None
    assert isinstance(open_reader({"kind": "cpu"}), CpuReader)


def test_a_step_keeps_its_last_reading_and_what_any_of_it_saw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    activity = Activity()
    activity.add_reading(Reading(load=0.1, throttled="power brake", other_processes=2))
    activity.add_reading(Reading(load=0.3, power_capped=True, other_processes=None))
    activity.add_reading(Reading(load=0.2, other_processes=1))
    now = 1010.0
    activity.add_reading(Reading(load=0.5))

    before, current = activity.last_hour()

    assert (before.number, current.number) == (-1, 0)
    assert before.reading == Reading(
        load=0.2, throttled="power brake", power_capped=True, other_processes=2
    )
    assert current.reading == Reading(load=0.5)


def test_the_readings_of_one_hour_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    activity = Activity()
    for _ in range(1000):
        activity.add_reading(Reading(load=now))
        now += 5.0

    found = activity.last_hour()

    assert 358 <= len(found) <= 360
    assert len(activity._steps) <= 360


def test_the_last_reading_knows_of_the_throttling_of_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    activity = Activity()
    none = activity.last_reading()
    activity.add_reading(Reading(load=0.1, throttled="power brake", power_capped=True))
    now = 1050.0
    activity.add_reading(Reading(load=0.5))
    during = activity.last_reading()
    now = 1065.0
    after = activity.last_reading()
    now = 1115.0
    gone = activity.last_reading()

    assert (none, gone) == (None, None)
    assert during == Reading(load=0.5, throttled="power brake", power_capped=True)
    assert after == Reading(load=0.5)
