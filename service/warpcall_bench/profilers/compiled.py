"""Compile reports of the Triton kernels that an implementation of a job launches on its GPU.

`programs.profiled` makes one call for it and records the launches. A report has the form of those
of `POST /v1/compile-reports`, which need no GPU and know no choice of an autotuner.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from warpcall_bench.profilers.messages import REPORT
from warpcall_bench.profilers.program import NoProfile, ProfileLimits, run_child, task_of_job
from warpcall_service.processes import temporary

if TYPE_CHECKING:
    from warpcall_bench.runs.messages import Task


def report_of_job(task: Task, position: int, name: str) -> bytes:
    """The report of an implementation of a job in one of its cases, as JSON.

    Raises:
        NoProfile: the implementation failed, took too long or launched too many kernels.
    """
    wanted = task["profile"]
    assert wanted is not None
    if not task["device"].startswith("cuda"):
        raise NoProfile("it ran without a GPU, where no kernels are compiled")
    limits = ProfileLimits(wanted["limit_s"], wanted["call_s"], wanted["most_bytes"])
    with temporary.folder() as folder:
        of_child = task_of_job(task, position, name, reports=True)
        ended = run_child((), of_child, folder, limits, nullcontext)
        if ended.error or ended.status:
            raise NoProfile(ended.error or f"its process ended with exit status {ended.status}")
        content = (folder / REPORT).read_bytes()
    if len(content) > limits.nbytes:
        raise NoProfile(f"its report has {len(content)} bytes, at most {limits.nbytes} are kept")
    return content
