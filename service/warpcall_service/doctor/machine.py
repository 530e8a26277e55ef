"""Checks of what computes: the driver, torch and Triton, the devices, the compiler, locked memory.

A process of its own loads torch and opens the devices, so that a driver which crashes or hangs is a
finding as well.
"""

from __future__ import annotations

import json
import resource
import subprocess  # nosec B404
import sys
from dataclasses import dataclass, field
from typing import Any

from warpcall_service.findings import Finding
from warpcall_service.settings import Settings

PROBE = "warpcall_service.worker.machine_probe"
PROBE_S = 180.0  # a first GPU takes some seconds, a compilation some more; CUDA may start slowly
MAX_ERROR = 300  # characters of an error that are shown
DRIVER = "install NVIDIA's driver (580 or newer for CUDA 13); in a container also its toolkit"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the process found.

    Attributes:
        trouble: why torch and Triton cannot be loaded; empty if they can.
        torch, triton: versions.
        cuda: version that torch was built for; None for a build without CUDA.
        driver: version of NVIDIA's driver; empty if NVML does not tell it.
        gpus: number of GPUs that torch can use.
        devices: of the GPUs in the settings, by name: the label, such as "cuda:0 (NVIDIA H200)", or
            an empty text for one that cannot be opened.
        broken: of those that cannot be opened, the reason.
        unlocked: those whose driver refused to page-lock memory, and CUDA's error.
        compiler: path of the C compiler that Triton would use; empty if there is none.
        shipped: whether compiled kernels came with this installation, as in the image.
        launch: why a kernel could not be compiled or run on a GPU; empty if it could, or none was
            tried.
    """

    trouble: str = ""
    torch: str = ""
    triton: str = ""
    cuda: str | None = None
    driver: str = ""
    gpus: int = 0
    devices: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    unlocked: dict[str, str] = field(default_factory=dict)
    compiler: str = ""
    shipped: bool = False
    launch: str = ""


def examine(settings: Settings, limit_s: float = PROBE_S) -> Machine:
    """Load torch and open the devices of the settings, in a process that may take `limit_s`."""
    command = [sys.executable, "-P", "-m", PROBE, settings.devices]
    try:
        done = subprocess.run(  # nosec B603
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Machine(trouble=f"loading torch and opening the devices took over {limit_s:g} s")
    except OSError as error:
        return Machine(trouble=f"no process can be started: {error.strerror}")
    if done.returncode != 0:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:MAX_ERROR]
        return Machine(trouble=f"the process that loads torch ended with {how}: {last}")
    found: dict[str, Any] = json.loads(done.stdout.rpartition(b"\n")[2])
    return Machine(**found)


def check_machine(settings: Settings, machine: Machine) -> list[Finding]:
    """Findings about the driver, torch and Triton, devices, the compiler and locked memory."""
    if machine.trouble:
        return [
            Finding(
                "torch",
                "failed",
                machine.trouble,
                "install this server's packages again, with constraints.txt",
            )
        ]
    return [
        _driver(settings, machine),
        _torch(settings, machine),
        _devices(settings, machine),
        _compiler(machine),
        _locked_memory(settings, machine),
    ]


def _driver(settings: Settings, machine: Machine) -> Finding:
    if machine.driver:
        return Finding("driver", "ok", f"NVIDIA driver {machine.driver}, {_count(machine.gpus)}")
    if machine.gpus:
        return Finding("driver", "ok", f"{_count(machine.gpus)}; NVML does not tell the version")
    if settings.devices.startswith("cuda"):
        return Finding("driver", "failed", "no NVIDIA driver answers", DRIVER)
    if settings.devices == "auto" and machine.cuda:
        text = "no NVIDIA driver answers, so calls are computed on the CPU"
        return Finding("driver", "warning", text, f"{DRIVER}; or set WARPCALL_DEVICES=cpu")
    return Finding("driver", "ok", "none is needed: calls are computed on the CPU")


def _torch(settings: Settings, machine: Machine) -> Finding:
    build = f"CUDA {machine.cuda}" if machine.cuda else "no CUDA"
    text = f"torch {machine.torch} ({build}), Triton {machine.triton}"
    if settings.devices == "cpu":
        return Finding("torch", "ok", text)
    if machine.cuda is None and (settings.devices != "auto" or machine.driver):
        return Finding("torch", "failed", text, "install torch for CUDA, as constraints.txt has it")
    if machine.driver and not machine.gpus:
        why = f"{text}; torch finds no GPU, although a driver answers"
        return Finding(
            "torch", "failed", why, "update the driver, and look at CUDA_VISIBLE_DEVICES"
        )
    return Finding("torch", "ok", text)


def _devices(settings: Settings, machine: Machine) -> Finding:
    if machine.broken:
        text = "; ".join(f"{name}: {why}" for name, why in machine.broken.items())
        advice = f"name others in WARPCALL_DEVICES: there are {_count(machine.gpus)}"
        return Finding("devices", "failed", text, advice)
    if machine.devices:
        return Finding("devices", "ok", ", ".join(machine.devices.values()))
    return Finding("devices", "ok", f"the CPU (WARPCALL_DEVICES={settings.devices})")


def _compiler(machine: Machine) -> Finding:
    found = machine.compiler or "no C compiler"
    found += ", kernels were shipped with this installation" if machine.shipped else ""
    if not machine.devices:
        return Finding("compiler", "ok", f"{found}; without a GPU none is needed")
    if machine.launch:
        text = f"a kernel cannot be compiled and run ({found}): {machine.launch}"
        advice = (
            "install gcc with the headers of Python, or set CC; TRITON_CACHE_DIR must be writable"
        )
        return Finding("compiler", "failed", text, advice)
    if not machine.compiler and not machine.shipped:
        text = "no C compiler; a kernel ran from Triton's cache, which can be lost"
        return Finding("compiler", "warning", text, "install gcc with the headers of Python")
    return Finding(
        "compiler", "ok", f"{found}; a kernel was compiled, or read from the cache, and ran"
    )


def _locked_memory(settings: Settings, machine: Machine) -> Finding:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    limit = "no limit" if soft == resource.RLIM_INFINITY else f"limit of {soft} bytes"
    if not machine.devices:
        return Finding("locked-memory", "ok", f"{limit}; without a GPU none is needed")
    if machine.unlocked:
        refused = "; ".join(f"{name}: {why}" for name, why in machine.unlocked.items())
        text = f"{limit}; memory is not page-locked, so copies take about five times as long: {refused}"
        advice = f"allow {int(settings.arena_bytes)} bytes for each GPU (ulimit -l, LimitMEMLOCK=)"
        return Finding("locked-memory", "warning", text, advice)
    return Finding("locked-memory", "ok", f"{limit}; each GPU can read page-locked memory")


def _count(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"
