"""What disturbs a GPU while it is measured is seen, by what NVML says."""

from __future__ import annotations

from typing import Any

from warpcall_kernels.measuring._observe import GpuObserver


class ScriptedNvml:
    """NVML's own functions, with answers that a test sets."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.reasons, self.clock_mhz, self.pids = 0, 1980, [1]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int) -> int:  # noqa: N802
        return self.clock_mhz

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[Any]:  # noqa: N802
        return [type("Process", (), {"pid": pid}) for pid in self.pids]

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
