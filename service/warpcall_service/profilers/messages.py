"""What the program that is profiled (`worker.profiled`) gets, and the files of its folder."""

from __future__ import annotations

from typing import Any, TypedDict

from warpcall_service.runs.messages import ProblemSource, Upload

TASK = "task.json"  # in the folder
SOCKET = "socket"
REPORT = "report.json"


class ChildTask(TypedDict):
    """What is to be profiled.

    Attributes:
        device, modules, uploads, problem, op: as in `runs.messages.Task`, but only the upload that
            is profiled.
        seed: of the inputs of this case.
        spec: of the case.
        implementation: its name.
        reports: whether to make a compile report.
    """

    device: str
    modules: dict[str, list[str]]
    uploads: list[Upload]
    problem: ProblemSource | None
    op: str
    seed: int
    spec: Any
    implementation: str
    reports: bool
