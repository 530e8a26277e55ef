"""What the program that is profiled (`programs.profiled`) gets, and the files of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NotRequired, TypedDict

from warpcall_bench.runs.messages import ProblemSource, Task, Upload

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
        once: whether to make one call only, under compute-sanitizer; absent means not.
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
    once: NotRequired[bool]


class Made(NamedTuple):
    """A profile: the content of its files by name, or why there are none."""

    files: Mapping[str, bytes]
    error: str


class ApartRequest(TypedDict):
    """The request to an upload process for the profile of an implementation in one case.

    Attributes:
        task: of the job, with no other upload than the one that is profiled.
        key: of the case.
    """

    task: Task
    position: int
    key: str
    implementation: str
