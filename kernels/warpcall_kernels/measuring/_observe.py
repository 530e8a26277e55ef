"""Disturbances, energy and properties of a GPU by NVML; nothing without NVML."""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass
from typing import Any

import torch

CLOCK_DROP = 0.05
READINGS = 64  # number of readings whose median is the normal clock

# Bits of NVML's clock event reasons. A software power cap is a steady state: it only sets a tag.
SLOWED = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
POWER_CAP = 0x04


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a GPU at one moment; None where NVML does not tell it."""

    sm_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None


class Observer:
    """Observes a device between timed blocks. This base class, for a CPU, observes nothing."""

    def disturbance(self) -> str | None:
        """What disturbed the device since the last call, or None."""
        return None

    def tags(self) -> tuple[str, ...]:
        """Properties of the whole measurement, such as "power capped"."""
        return ()

    def energy_mj(self) -> float | None:
        """Energy that the device has used so far, in mJ, or None."""
        return None

    def reading(self) -> Reading | None:
        """Clock, power and temperature of the device now, or None for a device that has none."""
        return None


class GpuObserver(Observer):
    """Observes throttling, drops of the clock, and new processes."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._clocks_mhz: list[int] = []
        self._processes = self._pids()
        self._capped = False

    def disturbance(self) -> str | None:
        reasons = self._query(self._nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
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
        found = self._query(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if found is None else float(found)

    def reading(self) -> Reading | None:
        see, nvml = self._query, self._nvml
        power_mw = see(nvml.nvmlDeviceGetPowerUsage)
        return Reading(
            see(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            None if power_mw is None else power_mw / 1000,
            see(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        )

    def _clock(self) -> str | None:
        now = self._query(self._nvml.nvmlDeviceGetClockInfo, self._nvml.NVML_CLOCK_SM)
        if not now:
            return None
        self._clocks_mhz = [*self._clocks_mhz[-READINGS:], now]
        normal = statistics.median(self._clocks_mhz)
        if now < (1 - CLOCK_DROP) * normal:
            return f"the clock fell from {normal:.0f} to {now} MHz"
        return None

    def _pids(self) -> set[int]:
        found = self._query(self._nvml.nvmlDeviceGetComputeRunningProcesses) or []
        return {process.pid for process in found}

    def _query(self, function: Any, *more: Any) -> Any:
        """The result of an NVML function, or None where the GPU, driver or container lacks it."""
        try:
            return function(self._handle, *more)
        except self._nvml.NVMLError:
            return None


def observer(device: torch.device) -> Observer:
    """The observer of a device."""
    nvml = _nvml() if device.type == "cuda" else None
    handle = None if nvml is None else _handle(nvml, device)
    return Observer() if handle is None else GpuObserver(nvml, handle)


def facts(device: torch.device) -> dict[str, Any]:
    """Properties of a GPU by NVML: driver, power limit, clocks, bus width, ECC."""
    nvml = _nvml()
    handle = None if nvml is None else _handle(nvml, device)
    if nvml is None or handle is None:
        return {}
    see = GpuObserver(nvml, handle)._query
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


def minor_number(device: torch.device | str) -> int | None:
    """The number in the name of a GPU's device file; None for a CPU, or if NVML does not tell it."""
    device = torch.device(device)
    nvml = _nvml() if device.type == "cuda" else None
    handle = None if nvml is None else _handle(nvml, device)
    if nvml is None or handle is None:
        return None
    found: int | None = GpuObserver(nvml, handle)._query(nvml.nvmlDeviceGetMinorNumber)
    return found


def theoretical_gb_per_s(device: torch.device) -> float | None:
    """Theoretical bandwidth of a GPU's memory: two transfers a cycle, times the width of its bus."""
    if device.type != "cuda":
        return None
    known, properties = facts(device), torch.cuda.get_device_properties(device)
    clock_mhz = (
        known.get("memory_clock_max_mhz") or getattr(properties, "memory_clock_rate", 0) / 1000
    )
    bits = known.get("memory_bus_bits") or getattr(properties, "memory_bus_width", 0)
    return clock_mhz * 2 * bits / 8 / 1000 if clock_mhz and bits else None


@functools.cache
def _nvml() -> Any:
    """The initialized NVML module; None if it is not installed or there is no driver."""
    try:
        import pynvml  # not at the top: it may not be installed

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001  # its own errors have no common base with ImportError and OSError
        return None
    return pynvml


def _handle(nvml: Any, device: torch.device) -> Any:
    """NVML's handle of the same GPU, found by UUID, since CUDA may number GPUs differently."""
    try:
        uuid = torch.cuda.get_device_properties(device).uuid
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return None
