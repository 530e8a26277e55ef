"""Makes one profile of a job in this process, or beside it: by torch, by Nsight Compute, a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from warpcall_service.text import error_text

if TYPE_CHECKING:
    from warpcall_kernels.measuring import JobCase, Lease
    from warpcall_service.runs.messages import Task


class Made(NamedTuple):
    """A profile: the content of its files by name, or why there are none."""

    files: Mapping[str, bytes]
    error: str


def make(task: Task, position: int, case: JobCase, name: str, lease: Lease) -> Made:
    """Profile an implementation in one case of a job; `lease` is entered for the profiled call."""
    return make_lazily(task, position, case.key, name, lambda: case, lease)


def make_lazily(
    task: Task, position: int, key: str, name: str, case: Callable[[], JobCase], lease: Lease
) -> Made:
    """As `make`, for a process that makes the case only if its profiler needs it.

    Args:
        key: of the case.
    """
    from warpcall_kernels import measuring
    from warpcall_service.profilers import compiled, ncu
    from warpcall_service.profilers.program import NoProfile

    wanted = task["profile"]
    assert wanted is not None
    try:
        if wanted["profiler"] == "torch":
            most_bytes = wanted["most_bytes"]
            device = task["device"]
            trace = measuring.trace(case(), name, device, most_bytes=most_bytes, lease=lease)
            return Made({"trace.json": trace}, "")
        if wanted["profiler"] == "compile":
            return Made({"compiled.json": compiled.report_of_job(task, position, name)}, "")
        files = ncu.profile_of_job(task, position, key, name, lease)
        return Made({"ncu-rep": files.report, "ncu.txt": files.text}, "")
    except (measuring.ProfileFailed, NoProfile) as error:
        return Made({}, str(error))
    except Exception as error:  # noqa: BLE001  # such as too little memory for the inputs
        return Made({}, error_text(error))
