"""Runs one call of an upload under compute-sanitizer, NVIDIA's checker of memory accesses and races.

The sanitizer starts `programs.profiled`, which makes one call. Its instrumented kernels take some 10
to 100 times as long, and nothing of this is timed. Torch allocates each tensor on its own meanwhile:
otherwise an access behind the end of a tensor would fall into torch's pool, and be no error.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING

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
    from pathlib import Path

    from warpcall_bench.profilers.messages import ChildTask
    from warpcall_bench.runs.messages import Task

MISSING = (
    "compute-sanitizer is not on the server that measured: the operator would have to install it, "
    "or set WARPCALL_COMPUTE_SANITIZER to its path"
)
NO_GPU = "it ran without a GPU, and compute-sanitizer checks kernels on NVIDIA GPUs"
MOST_ERRORS = 20  # that are printed in full; the others are counted
MAX_LOG_BYTES = 60 << 10  # of what the sanitizer writes
MAX_SHORT_CHARS = 400
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
SUMMARY = re.compile(
    r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+ (?:error|hazard)s?)(?: displayed)?( \([^)]*\))?\s*$",
    re.MULTILINE,
)
FINDING = re.compile(r"^=+ (?! )(.+?)\s*$")  # the first line of what was found; others are indented
DETAIL = re.compile(r"^=+ {2,}(\S.*?)\s*$")
# Lines that are no findings: the name of the program, its sums, and how the program ended.
NO_FINDING = re.compile(
    r"COMPUTE-SANITIZER|\w+ SUMMARY|Target application|(Error: )?(process|Target)\b|Internal Sanitizer"
)
FOLDERS = re.compile(r"/[^\s:]*/")


def check_of_job(tool: str, task: Task, position: int, key: str, name: str, lease: Lease) -> bytes:
    """What a tool of compute-sanitizer says of an upload of a job in one of its cases, as text.

    Args:
        tool: "memcheck" or "racecheck".
        key: of the case.
        lease: entered once before, so that jobs to which this one gives way run first.

    Raises:
        NoProfile: it could not be checked.
    """
    wanted = task["profile"]
    assert wanted is not None
    if not task["device"].startswith("cuda"):
        raise NoProfile(NO_GPU)
    if not wanted["program"]:
        raise NoProfile(MISSING)
    of_child = task_of_job(task, position, name, reports=False)
    of_child["once"] = True
    limits = ProfileLimits(wanted["limit_s"], wanted["call_s"], wanted["most_bytes"])
    with lease():
        pass
    return check(tool, wanted["program"], of_child, f"{key}\n{name}", limits)


def check(tool: str, program: str, task: ChildTask, heading: str, limits: ProfileLimits) -> bytes:
    """What a tool says of one call, as text: the short text, the heading, and all that it wrote.

    Args:
        program: path of compute-sanitizer.
        task: whose `once` is true.
        heading: lines of the text, which is cut at `limits.nbytes`.

    Raises:
        NoProfile: the implementation or the sanitizer failed, or took too long.
    """
    with temporary.folder() as folder:
        log = folder / "sanitizer"
        command = [program, "--tool", tool, "--print-limit", str(MOST_ERRORS)]
        command += ["--show-backtrace", "no", "--log-file", str(log)]
        ended = run_child(command, task, folder, limits, nullcontext, ENVIRONMENT)
        written = _written(log)
    short = short_text(tool, written)
    if short is None:
        raise NoProfile(_reason(tool, ended, written))
    if ended.error and short.startswith("0 "):
        raise NoProfile(ended.error.replace("the profiler", tool, 1))
    text = f"{tool}: {short}\n\n{heading}\n\n{written}"
    return text.encode()[: limits.nbytes]


def short_text(tool: str, written: str) -> str | None:
    """What a tool found, in a line, such as "0 errors"; None if it did not come to its sum.

    Of the findings the line has the number, and the first one with its kernel and its line.
    """
    found = SUMMARY.search(written)
    if found is None:
        return None
    total = f"{found[1]}{found[2] or ''}"
    first = "" if found[1].startswith("0 ") else _first_finding(written)
    return f"{total}, first: {first}"[:MAX_SHORT_CHARS] if first else total


def _first_finding(written: str) -> str:
    lines = written.splitlines()
    for number, line in enumerate(lines):
        heading = FINDING.match(line)
        if heading is None or NO_FINDING.match(heading[1]):
            continue
        detail = DETAIL.match(lines[number + 1]) if number + 1 < len(lines) else None
        text = f"{heading[1].removeprefix('Error: ')} {detail[1] if detail else ''}"
        return FOLDERS.sub("", text).strip()
    return ""


def _written(log: Path) -> str:
    try:
        with log.open("rb") as file:
            return file.read(MAX_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _reason(tool: str, ended: Ended, written: str) -> str:
    """Why the sanitizer did not come to its sum."""
    if ended.error:
        return ended.error.replace("the profiler", tool, 1)
    said = [line.strip("= \t") for line in (*written.splitlines(), *ended.printed.splitlines())]
    errors = [line for line in said if line and line != "COMPUTE-SANITIZER"]
    if errors:
        return f"compute-sanitizer failed: {' '.join(errors[:3])}"[:MAX_SHORT_CHARS]
    signal, status = -ended.status, ended.status
    how = f"by signal {signal}" if signal > 0 else f"with exit status {status}"
    return f"compute-sanitizer ended {how} without a result"
