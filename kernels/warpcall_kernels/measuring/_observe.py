"""What disturbs a GPU, and what it uses, by NVML; nothing where there is no NVML."""

from __future__ import annotations

import functools
import statistics
from typing import Any

import torch

CLOCK_DROP = 0.05
LOOKS = 64  # of which the median is the clock that is normal

# Bits of NVML's clock event reasons. What the power limit does in software is a steady state, and a tag.
SLOWED = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
POWER_CAP = 0x04


class Observer:
    """Looks at a device between timed blocks; this one, of a CPU, sees nothing."""

    def look(self) -> str | None:
        """What has disturbed the device since the last look, or None."""
        return None

    def tags(self) -> tuple[str, ...]:
        """What held for the whole measurement, such as "power capped"."""
        return ()

    def energy_mj(self) -> float | None:
        """What the device has used so far."""
        return None


class GpuObserver(Observer):
    """Sees throttling, drops of the clock, and processes that come."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._clocks_mhz: list[int] = []
        self._processes = self._pids()
        self._capped = False

    def look(self) -> str | None:
        reasons = self._ask(self._nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
        self._capped |= bool(reasons & POWER_CAP)
        for bit, reason in SLOWED.items():
            if reasons & bit:
                return reason
        now = self._pids()
        come = now - self._processes
        self._processes |= now
        if come:
            return f"{len(come)} other process{'es' * (len(come) > 1)} came to the GPU"
        return None if reasons & POWER_CAP else self._clock()

    def tags(self) -> tuple[str, ...]:
        return ("power capped",) if self._capped else ()

    def energy_mj(self) -> float | None:
        found = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if found is None else float(found)

    def _clock(self) -> str | None:
        now = self._ask(self._nvml.nvmlDeviceGetClockInfo, self._nvml.NVML_CLOCK_SM)
        if not now:
            return None
        self._clocks_mhz = [*self._clocks_mhz[-LOOKS:], now]
        normal = statistics.median(self._clocks_mhz)
        if now < (1 - CLOCK_DROP) * normal:
            return f"the clock fell from {normal:.0f} to {now} MHz"
        return None

    def _pids(self) -> set[int]:
        found = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses) or []
        return {process.pid for process in found}

    def _ask(self, question: Any, *more: Any) -> Any:
        """An answer of NVML, or None: not every GPU, driver and container has each."""
        try:
            return question(self._handle, *more)
        except self._nvml.NVMLError:
            return None


def observer(device: torch.device) -> Observer:
    """The observer of a device."""
    nvml = _nvml() if device.type == "cuda" else None
    handle = None if nvml is None else _handle(nvml, device)
    return Observer() if handle is None else GpuObserver(nvml, handle)


def facts(device: torch.device) -> dict[str, Any]:
    """What NVML says of a GPU: driver, limits, clocks, ECC, bandwidth."""
    nvml = _nvml()
    handle = None if nvml is None else _handle(nvml, device)
    if nvml is None or handle is None:
        return {}
    see = GpuObserver(nvml, handle)._ask
    power_mw = see(nvml.nvmlDeviceGetEnforcedPowerLimit)
    ecc = see(nvml.nvmlDeviceGetEccMode)
    return {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "power_limit_w": None if power_mw is None else power_mw / 1000,
        "sm_clock_max_mhz": see(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        "memory_clock_max_mhz": see(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
        "memory_bus_bits": see(nvml.nvmlDeviceGetMemoryBusWidth),
        "ecc": None if ecc is None else bool(ecc[0]),
    }


def theoretical_gb_per_s(device: torch.device) -> float | None:
    """What the memory of a GPU moves at most: its clock, both edges, the width of its bus."""
    if device.type != "cuda":
        return None
    known, told = facts(device), torch.cuda.get_device_properties(device)
    clock_mhz = known.get("memory_clock_max_mhz") or getattr(told, "memory_clock_rate", 0) / 1000
    bits = known.get("memory_bus_bits") or getattr(told, "memory_bus_width", 0)
    return clock_mhz * 2 * bits / 8 / 1000 if clock_mhz and bits else None


@functools.cache
def _nvml() -> Any:
    """NVML, ready; None where it is not installed or there is no driver."""
    try:
        import pynvml  # not above: an extra

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001  # its own errors have no common base with ImportError and OSError
        return None
    return pynvml


def _handle(nvml: Any, device: torch.device) -> Any:
    """Of the same GPU, however CUDA numbers it."""
    try:
        uuid = torch.cuda.get_device_properties(device).uuid
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return None
