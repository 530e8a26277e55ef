"""What disturbs a GPU while it is measured is seen, by what NVML says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.kernels.measuring.brief import BRIEF, SPEC
from warpcall_kernels.measuring import CaseResult, _measure, make_case, measure
from warpcall_kernels.measuring._observe import GpuObserver, Reading


class ScriptedNvml:
    """NVML's own functions, with answers that a test sets."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.reasons, self.clock_mhz, self.pids = 0, 1980, [1]
        self.knows_power = True
        self.asked_for_power = 0

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int) -> int:  # noqa: N802
        return self.clock_mhz

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[Any]:  # noqa: N802
        return [type("Process", (), {"pid": pid}) for pid in self.pids]

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:  # noqa: N802
        self.asked_for_power += 1
        if not self.knows_power:
            raise self.NVMLError
        return 612_500

    def nvmlDeviceGetTemperature(self, handle: object, sensor: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:  # noqa: N802
        raise self.NVMLError


def test_what_disturbs_a_gpu_is_seen() -> None:
    nvml = ScriptedNvml()
    seen = GpuObserver(nvml, object())

    assert [seen.disturbance() for _ in range(3)] == [None] * 3
    nvml.clock_mhz = 1800
    assert seen.disturbance() == "the clock fell from 1980 to 1800 MHz"
    nvml.clock_mhz, nvml.pids = 1980, [1, 2]
    assert seen.disturbance() == "1 other process came to the GPU"
    assert seen.disturbance() is None  # it is there, and not new
    nvml.reasons = 0x40
    assert seen.disturbance() == "thermal slowdown by hardware"
    assert seen.tags() == ()
    nvml.reasons, nvml.clock_mhz = 0x04, 1500
    assert seen.disturbance() is None  # the power limit is a steady state
    assert seen.tags() == ("power capped",)
    assert seen.energy_mj() is None  # not every GPU tells


def test_what_a_gpu_does_not_tell_is_unknown() -> None:
    nvml = ScriptedNvml()
    seen = GpuObserver(nvml, object())

    whole = seen.reading()
    nvml.knows_power = False
    partial = seen.reading()

    assert whole == Reading(sm_clock_mhz=1980, power_w=612.5, temperature_c=61)
    assert partial == Reading(sm_clock_mhz=1980, power_w=None, temperature_c=61)


def test_clock_power_and_temperature_are_read_between_blocks_of_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml, asked_under_lease = ScriptedNvml(), []
    monkeypatch.setattr(_measure, "observer", lambda device: GpuObserver(nvml, object()))
    monkeypatch.setattr(_measure, "READ_EVERY_S", 0.0)

    @contextlib.contextmanager
    def lease() -> Iterator[None]:
        before = nvml.asked_for_power
        yield
        asked_under_lease.append(nvml.asked_for_power - before)

    found = measure(make_case("permute", SPEC), ["torch"], torch.device("cpu"), BRIEF, lease=lease)

    assert found.readings is not None
    rounds = found.readings.rounds
    assert 1 <= len(rounds) <= found.rounds
    assert list(rounds) == sorted({*rounds})
    assert {*found.readings.sm_clock_mhz} == {1980}
    assert {*found.readings.power_w} == {612.5}
    assert {*found.readings.temperature_c} == {61}
    assert len(asked_under_lease) > len(rounds)  # blocks of the warm-up too
    assert sum(asked_under_lease) == 0
    assert CaseResult.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_readings_are_seldom_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = ScriptedNvml()
    monkeypatch.setattr(_measure, "observer", lambda device: GpuObserver(nvml, object()))
    monkeypatch.setattr(_measure, "READ_EVERY_S", 3600.0)
    seldom = measure(make_case("permute", SPEC), ["torch"], "cpu", BRIEF)
    monkeypatch.setattr(_measure, "READ_EVERY_S", 0.0)
    monkeypatch.setattr(_measure, "MAX_READINGS", 0)
    full = measure(make_case("permute", SPEC), ["torch"], "cpu", BRIEF)

    assert seldom.readings is None or len(seldom.readings.rounds) == 1
    assert full.readings is None


def test_a_result_of_before_there_were_readings_is_read() -> None:
    found = measure(make_case("permute", SPEC), ["torch"], "cpu", BRIEF)
    stored = found.to_json()
    del stored["readings"]

    assert found.readings is None  # a CPU has none
    assert CaseResult.from_json(stored) == found
