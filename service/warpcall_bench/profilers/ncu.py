"""Profiles one implementation in one case with Nsight Compute, NVIDIA's `ncu`.

The profiler starts `programs.profiled`, which makes the calls, and repeats each kernel of one of
them until it has read all counters. Nothing of this is timed.
"""

from __future__ import annotations

import os
import re
import subprocess  # nosec B404
import time
from collections.abc import Sequence
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
    from warpcall_bench.runs.messages import NcuOptions, Task

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
LAUNCHED = re.compile(r"^\s+\d+\.\s+(\S.*?)\s*$", re.MULTILINE)  # in ncu's list of kernels
MOST_NAMED = 8  # kernels in a message
NAME_CHARS = 80


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
    if not wanted["program"]:
        raise NoProfile(MISSING)
    if not task["device"].startswith("cuda"):
        raise NoProfile("it ran without a GPU, and Nsight Compute profiles kernels of NVIDIA GPUs")
    of_child = task_of_job(task, position, name, reports=False)
    limits = ProfileLimits(wanted["limit_s"], wanted["call_s"], wanted["most_bytes"])
    heading = f"{key}\n{name}, by Nsight Compute"
    return profile(wanted["program"], of_child, heading, limits, lease, wanted.get("options", {}))


def profile(
    ncu: str,
    task: ChildTask,
    heading: str,
    limits: ProfileLimits,
    lease: Lease,
    options: NcuOptions | None = None,
) -> Files:
    """Profile one call.

    Args:
        ncu: path of the program.
        heading: first lines of the text, which is cut at `limits.nbytes`.
        lease: entered while the call is repeated.
        options: of the job; None for the default ones.

    Raises:
        NoProfile: the profiler or the implementation failed, or took too long.
    """
    until = time.monotonic() + limits.seconds
    with temporary.folder() as folder:
        report = folder / "profile.ncu-rep"
        command = [
            *(ncu, "--target-processes", "all", "--profile-from-start", "off"),
            *("--clock-control", "none", *_chosen(options or {})),
            *("--force-overwrite", "--export", str(report)),
        ]
        ended = run_child(command, task, folder, limits, lease)
        if ended.error or ended.status or not report.exists():
            raise NoProfile(_reason(ended, options))
        content = report.read_bytes()
        if len(content) > limits.nbytes:
            raise NoProfile(
                f"its report has {len(content)} bytes, at most {limits.nbytes} are kept; profile a "
                "case with fewer kernels"
            )
        details = _printed(ncu, report, until)
        if unknown := _without_values(details, (options or {}).get("metrics") or ()):
            raise NoProfile(
                f"Nsight Compute has no values of {', '.join(unknown)} on this GPU: `ncu --query-metrics` "
                "lists the metrics that there are"
            )
        text = f"{heading}\n\n{details}"
        return Files(content, text.encode()[: limits.nbytes])


def _chosen(options: NcuOptions) -> list[str]:
    """The options of the program that say which launches it profiles, and what it reads of them."""
    launch, metrics = options.get("launch"), options.get("metrics")
    which = ["--launch-count", str(MAX_KERNELS)]
    if launch is not None:
        which = ["--launch-skip", str(launch - 1), "--launch-count", "1"]
    if (kernels := options.get("kernels")) is not None:
        which += ["--kernel-name", f"regex:{kernels}"]
    sections = options.get("sections") or (() if metrics else SECTIONS)
    what = [argument for name in sections for argument in ("--section", name)]
    return [*which, *what, *(["--metrics", ",".join(metrics)] if metrics else [])]


def _without_values(details: str, metrics: Sequence[str]) -> list[str]:
    """The metrics that the details name and of which no launch has a value, such as unknown ones."""
    found: list[str] = []
    for metric in metrics:
        rows = [line for line in details.splitlines() if line.split()[:1] == [metric]]
        if rows and all(line.rstrip().endswith("(!) n/a") for line in rows):
            found.append(metric)
    return found


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


def _reason(ended: Ended, options: NcuOptions | None = None) -> str:
    """Why there is no report."""
    if "ERR_NVGPUCTRPERM" in ended.printed:
        return FORBIDDEN
    if ended.error:
        return ended.error
    if "No kernels were profiled" in ended.printed:
        return _no_kernel(ended.printed, options or {})
    lines = ended.printed.splitlines()
    wrong = [line.removeprefix("==ERROR==").strip() for line in lines if "==ERROR==" in line]
    if wrong:
        return f"Nsight Compute failed: {' '.join(wrong)}"
    signal, status = -ended.status, ended.status
    how = f"by signal {signal}" if signal > 0 else f"with exit status {status}"
    return f"Nsight Compute ended {how} without a report"


def _no_kernel(printed: str, options: NcuOptions) -> str:
    """Why no kernel was profiled. With options, the program lists the kernels that were launched."""
    kernels, launch = options.get("kernels"), options.get("launch")
    if kernels is None and launch is None:
        return NO_KERNEL
    names = [*dict.fromkeys(LAUNCHED.findall(printed.partition("Available Kernels")[2]))]
    which = "" if kernels is None else f" of a kernel that matches {kernels!r}"
    number = "" if launch is None else f" number {launch}"
    more = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    shown = ", ".join(name[:NAME_CHARS] for name in names[:MOST_NAMED])
    launched = f"; it launched {shown}{more}" if names else ""
    return f"its call had no launch{number}{which}{launched}"
