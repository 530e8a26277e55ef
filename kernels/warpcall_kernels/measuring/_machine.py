"""What measured times depend on: the device, the versions, the code."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from warpcall_kernels.measuring._observe import facts

# The parts of a fingerprint that must be equal for times to be comparable.
CLASS = ("device", "torch", "triton", "cuda", "driver")


def fingerprint(device: torch.device | str) -> dict[str, Any]:
    """Properties of this machine, its software and a device, as JSON."""
    device = torch.device(device)
    return {
        **(_gpu(device) if device.type == "cuda" else _cpu()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "warpcall": _version(),
        "kernels_sha256": kernels_sha256(),
        "host": socket.gethostname(),
    }


def environment_class(fingerprint: Mapping[str, Any]) -> str:
    """The environment class of a fingerprint, as text. Times of one class may be compared."""
    return " / ".join(str(fingerprint[name]) for name in CLASS if fingerprint.get(name))


def kernels_sha256() -> str:
    """Hash of the code of all kernels: every module of the library except the measuring package."""
    total = hashlib.sha256()
    for name, content in sources():
        total.update(name.encode() + b"\0" + content)
    return total.hexdigest()


def sources() -> Iterator[tuple[str, bytes]]:
    """Path and content of each file that `kernels_sha256` covers."""
    library = Path(__file__).parents[1]
    for file in sorted(library.rglob("*.py")):
        if not file.is_relative_to(Path(__file__).parent):
            yield file.relative_to(library).as_posix(), file.read_bytes()


def _gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "kind": "cuda",
        "device": properties.name,
        "uuid": str(properties.uuid),
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        **facts(device),
    }


def _cpu() -> dict[str, Any]:
    return {
        "kind": "cpu",
        "device": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version() -> str | None:
    try:
        return importlib.metadata.version("warpcall-server")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return None
