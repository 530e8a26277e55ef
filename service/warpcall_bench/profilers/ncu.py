"""Profiles one implementation in one case with Nsight Compute, NVIDIA's `ncu`.

The profiler starts `programs.profiled`, which makes the calls, and repeats each kernel of one of
them until it has read all counters. Nothing of this is timed.
"""

from __future__ import annotations

import os
import subprocess  # nosec B404
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from warpcall_bench.profilers.messages import ChildTask
from warpcall_bench.profilers.program import (
    Ended,
    Lease,
    NoProfile,
    ProfileLimits,
    run_child,
    task_of_job,
)
from warpcall_service.processes import temporary

if TYPE_CHECKING:
    from warpcall_bench.runs.messages import Task

SECTIONS = (
    "SpeedOfLight",
    "MemoryWorkloadAnalysis",
    "ComputeWorkloadAnalysis",
    "LaunchStats",
    "Occupancy",
    "SchedulerStats",
    "WarpStateStats",
)
MAX_KERNELS = 16  # of one call, which are profiled
FORBIDDEN = (
    "the performance counters of the GPU may not be read: the operator would have to load NVIDIA's "
    "driver with NVreg_RestrictProfilingToAdminUsers=0, or, for code that does not run in the "
    "sandbox, give the server the capability CAP_SYS_ADMIN"
)
MISSING = (
    "Nsight Compute is not on the server that measured: the operator would have to install it, or "
    "set WARPCALL_NCU to the path of ncu"
)
NO_KERNEL = "its call launched no kernel that Nsight Compute could see"


class Files(NamedTuple):
    """A profile: the report of Nsight Compute, and the page of details that it prints of it."""

    report: bytes
    text: bytes


def profile_of_job(task: Task, position: int, key: str, name: str, lease: Lease) -> Files:
    """Profile an implementation of a job in one of its cases, beside its process, as `profile` does.

    Args:
        key: of the case.
    """
    wanted = task["profile"]
    assert wanted is not None
    if not wanted["ncu"]:
        raise NoProfile(MISSING)
    if not task["device"].startswith("cuda"):
        raise NoProfile("it ran without a GPU, and Nsight Compute profiles kernels of NVIDIA GPUs")
    of_child = task_of_job(task, position, name, reports=False)
    limits = ProfileLimits(wanted["limit_s"], wanted["call_s"], wanted["most_bytes"])
    return profile(wanted["ncu"], of_child, f"{key}\n{name}, by Nsight Compute", limits, lease)


def profile(ncu: str, task: ChildTask, heading: str, limits: ProfileLimits, lease: Lease) -> Files:
    """Profile one call.

    Args:
        ncu: path of the program.
        heading: first lines of the text, which is cut at `limits.nbytes`.
        lease: entered while the call is repeated.

    Raises:
        NoProfile: the profiler or the implementation failed, or took too long.
    """
    until = time.monotonic() + limits.seconds
    with temporary.folder() as folder:
        report = folder / "profile.ncu-rep"
        sections = [option for name in SECTIONS for option in ("--section", name)]
        command = [
            *(ncu, "--target-processes", "all", "--profile-from-start", "off"),
            *("--clock-control", "none", "--launch-count", str(MAX_KERNELS), *sections),
            *("--force-overwrite", "--export", str(report)),
        ]
        ended = run_child(command, task, folder, limits, lease)
        if ended.error or ended.status or not report.exists():
            raise NoProfile(_reason(ended))
        content = report.read_bytes()
        if len(content) > limits.nbytes:
            raise NoProfile(
                f"its report has {len(content)} bytes, at most {limits.nbytes} are kept; profile a "
                "case with fewer kernels"
            )
        text = f"{heading}\n\n{_printed(ncu, report, until)}"
        return Files(content, text.encode()[: limits.nbytes])


def _printed(ncu: str, report: Path, until: float) -> str:
    """The details of a report, kernel by kernel, as text."""
    command = [ncu, "--import", str(report), "--page", "details"]
    try:
        done = subprocess.run(  # nosec B603
            command,
            capture_output=True,
            check=False,
            env={**os.environ, "TMPDIR": str(report.parent)},
            timeout=max(1.0, until - time.monotonic()),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoProfile(f"Nsight Compute could not print its report: {error}") from None
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        raise NoProfile(_reason(Ended("", done.returncode, text)))
    return text


def _reason(ended: Ended) -> str:
    """Why there is no report."""
    if "ERR_NVGPUCTRPERM" in ended.printed:
        return FORBIDDEN
    if ended.error:
        return ended.error
    if "No kernels were profiled" in ended.printed:
        return NO_KERNEL
    lines = ended.printed.splitlines()
    wrong = [line.removeprefix("==ERROR==").strip() for line in lines if "==ERROR==" in line]
    if wrong:
        return f"Nsight Compute failed: {' '.join(wrong)}"
    signal, status = -ended.status, ended.status
    how = f"by signal {signal}" if signal > 0 else f"with exit status {status}"
    return f"Nsight Compute ended {how} without a report"
