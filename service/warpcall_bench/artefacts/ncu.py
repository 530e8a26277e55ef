"""Finds Nsight Compute, NVIDIA's profiler of kernels, and says why it cannot be used."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from warpcall_bench.artefacts.tools import find_program
from warpcall_bench.settings import BenchSettings

PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")
ADMIN_ONLY = "RmProfilingAdminOnly: 1"
CAP_SYS_ADMIN = 1 << 21


def program(settings: BenchSettings) -> str:
    """The path of `ncu`, without symbolic links; empty if there is none."""
    return find_program("ncu", settings.ncu)


def trouble(
    settings: BenchSettings,
    lanes: Collection[str],
    *,
    sandboxed: bool,
    parameters: Path = PARAMETERS,
    status: Path = STATUS,
) -> str:
    """Why Nsight Compute cannot profile on this server; empty if nothing is known against it.

    Args:
        lanes: names of the server's devices.
        sandboxed: whether code of users runs in the sandbox, where no process has capabilities.
        parameters: of NVIDIA's driver.
        status: of this process.
    """
    if all(name == "cpu" for name in lanes):
        return "this server has no GPU, and Nsight Compute profiles kernels of NVIDIA GPUs"
    if not program(settings):
        return (
            "Nsight Compute is not on this server: its operator would have to install it, or set "
            "WARPCALL_NCU to the path of ncu"
        )
    if ADMIN_ONLY in _read(parameters) and (sandboxed or not _is_admin(_read(status))):
        more = "" if sandboxed else ", or give the server the capability CAP_SYS_ADMIN"
        where = " from the sandbox" if sandboxed else ""
        return (
            f"this server may not read the GPU's performance counters{where}: its operator would "
            "have to load NVIDIA's driver with NVreg_RestrictProfilingToAdminUsers=0" + more
        )
    return ""


def _is_admin(status: str) -> bool:
    lines = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(lines) and bool(int(lines[0], 16) & CAP_SYS_ADMIN)


def _read(file: Path) -> str:
    """The text of a file; nothing if it cannot be read, as where the driver has none."""
    try:
        return file.read_text()
    except OSError:
        return ""
