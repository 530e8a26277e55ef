"""Reads the load, memory and clocks of a device: of a GPU by NVML, of a CPU from /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# Bits of NVML's clock event reasons; as in `warpcall_kernels.measuring`, which needs torch.
SLOWED = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
POWER_CAP = 0x04
MAX_PARENTS = 64  # between a process of a job and this server


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a device at one moment; None where it is not known.

    Attributes:
        load: share of the time in which a GPU ran a kernel, or of a machine's cores that worked.
        memory_bytes, memory_total_bytes: of the GPU, or of the machine.
        sm_clock_mhz, power_w, temperature_c: of a GPU.
        throttled: why a GPU ran slower than it could; empty if it did not.
        power_capped: whether a GPU ran at its power limit.
        other_processes: number of processes on a GPU that are not this server's.
    """

    load: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttled: str = ""
    power_capped: bool = False
    other_processes: int | None = None


class Reader(Protocol):
    """Reads the state of one device. A reading can take some ms, and hangs if the driver does."""

    def read(self, worker_pid: int | None) -> Reading:
        """The present state. `worker_pid` is the process that runs the lane's calls."""
        ...


def open_reader(fingerprint: Mapping[str, Any]) -> Reader | None:
    """A reader of the device with this fingerprint; None if NVML does not know the GPU."""
    if fingerprint.get("kind") != "cuda":
        return CpuReader()
    try:
        import pynvml  # not at the top: only a machine with a GPU has the library that it loads

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{fingerprint.get('uuid')}")
    except Exception:  # noqa: BLE001  # its own errors have no common base with ImportError and OSError
        return None
    return GpuReader(pynvml, handle)


class CpuReader:
    """Reads what all programs of the machine use.

    Args:
        proc: folder of the kernel's files.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before = self._times()

    def read(self, worker_pid: int | None) -> Reading:
        """The memory in use, and the share of the cores that worked since the last reading."""
        before, self._before = self._before, self._times()
        busy, total = (now - then for now, then in zip(self._before, before, strict=True))
        memory = self._memory()
        available, whole = memory.get("MemAvailable"), memory.get("MemTotal")
        return Reading(
            load=min(1.0, max(0.0, busy / total)) if total > 0 else None,
            memory_bytes=None if whole is None or available is None else whole - available,
            memory_total_bytes=whole,
        )

    def _times(self) -> tuple[int, int]:
        """Time that all cores worked, and all their time, in ticks since the machine started."""
        try:
            line = (self._proc / "stat").read_text().partition("\n")[0]
            ticks = [int(part) for part in line.split()[1:9]]
        except (OSError, ValueError):
            return 0, 0
        return sum(ticks) - sum(ticks[3:5]), sum(ticks)  # without "idle" and "iowait"

    def _memory(self) -> dict[str, int]:
        """Bytes by name, as in /proc/meminfo."""
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
            parts = [line.split() for line in lines]
            return {part[0].rstrip(":"): 1024 * int(part[1]) for part in parts if len(part) == 3}
        except (OSError, ValueError):
            return {}


class GpuReader:
    """Reads a GPU by NVML.

    Args:
        nvml: the module of NVML's functions.
        handle: NVML's handle of the GPU.
        proc: folder of the kernel's files, in which a process finds its parent.
    """

    def __init__(self, nvml: Any, handle: Any, proc: Path = Path("/proc")) -> None:
        self._nvml = nvml
        self._handle = handle
        self._proc = proc

    def read(self, worker_pid: int | None) -> Reading:
        """As `Reader.read`."""
        see, nvml = self._query, self._nvml
        reasons = see(nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
        memory = see(nvml.nvmlDeviceGetMemoryInfo)
        use = see(nvml.nvmlDeviceGetUtilizationRates)
        power_mw = see(nvml.nvmlDeviceGetPowerUsage)
        return Reading(
            load=None if use is None else use.gpu / 100,
            memory_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            sm_clock_mhz=see(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=see(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            throttled=next((why for bit, why in SLOWED.items() if reasons & bit), ""),
            power_capped=bool(reasons & POWER_CAP),
            other_processes=self._others(worker_pid),
        )

    def _others(self, worker_pid: int | None) -> int | None:
        """Number of processes that are not this server's.

        In a container NVML may name processes by the numbers of the host. None of them can then be
        recognised, not even the worker.
        """
        found = self._query(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        pids = {process.pid for process in found or ()}
        if worker_pid not in pids:
            return None
        return sum(not self._is_own(pid) for pid in pids)

    def _is_own(self, pid: int) -> bool:
        """Whether a process is this server's, or one of its children's."""
        for _ in range(MAX_PARENTS):
            if pid == os.getpid():
                return True
            try:
                stat = (self._proc / str(pid) / "stat").read_text()
                pid = int(stat.rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                return False
        return False

    def _query(self, function: Any, *more: Any) -> Any:
        """The result of an NVML function, or None where the GPU, driver or container lacks it."""
        try:
            return function(self._handle, *more)
        except self._nvml.NVMLError:
            return None
