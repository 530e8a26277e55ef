"""What numbers belong to: the device, the versions, the code."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from warpcall_kernels.measuring._observe import facts

# Of a fingerprint, what makes numbers comparable: the same device, on the same software.
CLASS = ("device", "torch", "triton", "cuda", "driver")


def fingerprint(device: torch.device | str) -> dict[str, Any]:
    """Facts about this machine, this software and a device, as JSON."""
    device = torch.device(device)
    return {
        **(_gpu(device) if device.type == "cuda" else _cpu()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "warpcall": _version(),
        "kernels_sha256": source_sha256(),
        "host": socket.gethostname(),
    }


def environment_class(fingerprint: Mapping[str, Any]) -> str:
    """What two machines have in common whose numbers may be compared, as text."""
    return " / ".join(str(fingerprint[name]) for name in CLASS if fingerprint.get(name))


@functools.cache
def source_sha256() -> str:
    """Hash of all code of the kernels."""
    folder = Path(__file__).parents[1]
    total = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):  # not how it is measured
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


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
