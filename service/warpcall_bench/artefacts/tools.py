"""Finds NVIDIA's programs for kernels on this machine: Nsight Compute and compute-sanitizer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from warpcall_bench.settings import BenchSettings
from warpcall_service.findings import Finding
from warpcall_service.settings import Settings

CUDA = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")


def find_program(name: str, given: str) -> str:
    """The path of a program, without symbolic links; empty if there is none.

    Args:
        given: the setting: a path, `auto` for where it usually is, or `none`.
    """
    if given == "none":
        return ""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *CUDA))
    found = shutil.which(name if given == "auto" else given, path=path)
    return "" if found is None else str(Path(found).resolve())


def sanitizer(settings: BenchSettings) -> str:
    """The path of compute-sanitizer, without symbolic links; empty if there is none."""
    return find_program("compute-sanitizer", settings.compute_sanitizer)


def check_programs(settings: Settings) -> Finding:
    """What `warpcall-server doctor` says of them. A server needs neither."""
    assert isinstance(settings, BenchSettings)  # as `Extension.settings` says
    found = {
        "ncu": find_program("ncu", settings.ncu),
        "compute-sanitizer": sanitizer(settings),
    }
    shown = [path or f"no {name}" for name, path in found.items()]
    return Finding(
        "profilers", "ok", f"for jobs with --profile ncu and --sanitize: {', '.join(shown)}"
    )
