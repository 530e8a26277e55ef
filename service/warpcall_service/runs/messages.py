"""What server, lane, reaper and a job's process say to each other; without torch, for all of them.

A job's process gets a `Task` as the first frame (`lanes.messages.frame`) on its socket, then one
`{"go": true}` for each time that it asked for the device. It sends frames of one member each:

- `hello`: fingerprint and environment class of what it runs on, once torch and the device are up;
- `want`: it asks for the device, and does nothing until it hears `go`; `release`: it gives it back;
- `progress`: what the sampler does now;
- `result`: the sampler's whole result of the case at `position`;
- `ended`: the class of what ended it, with `detail`; the last frame, also when all went well.

The reaper, its parent, has a control socket. It gets `stop` there, or the end of it, and sends a
`ReaperReport` as JSON when the job has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

TAG_VARIABLE = "WARPCALL_JOB_TAG"  # in the environment of all that a job starts: whose it is


class CheckedCase(TypedDict):
    """A case as the lane checked it."""

    spec: Mapping[str, Any]
    key: str
    device_bytes: int


class Checked(TypedDict):
    """What a lane says of a submission.

    Attributes:
        implementation_s: what the precision gives one implementation of one case.
        environment: class of the machine and its software.
        kernels_sha256: of the code that would be measured.
    """

    cases: list[CheckedCase]
    implementation_s: float
    environment: str
    kernels_sha256: str


class Task(TypedDict):
    """What a job's process is to do.

    Attributes:
        modules: with more implementations.
        seed: of the values that are timed.
        cases: position and spec of each.
        memory_bytes: that it may have; `threads` that the CPU's kernels may use, 0 for all.
    """

    device: str
    modules: list[str]
    op: str
    implementations: list[str]
    precision: str
    seed: int
    cases: list[tuple[int, Any]]
    memory_bytes: int
    threads: int


class ReaperReport(TypedDict):
    """How a job's process ended, and what its reaper found.

    Attributes:
        status: as of `subprocess`: negative for a signal.
        over_memory: it was ended because its processes together had too much.
        left: processes that could not be ended.
    """

    status: int
    over_memory: bool
    left: list[int]
