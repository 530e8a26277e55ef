"""Runs jobs with uploads as a server does, in this process and without a database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.service.runs.sandboxes import Uploads, bubblewraps, settings
from tests.waiting import until
from warpcall_bench.runs.events import CaseMeasured, RunEvent
from warpcall_bench.runs.messages import ProfileTask, Task, Upload
from warpcall_bench.runs.runner import Outcome, Run
from warpcall_service.lanes.device_lease import DeviceLease
from warpcall_service.lanes.messages import Hello

LANE: Hello = {"fingerprint": {"device": "of the lane"}, "environment": "of the lane"}
SPEC = {"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}


def run(
    folder: Path,
    source: str | Mapping[str, str] | Sequence[Upload],
    *,
    uploads: Uploads = "sandboxed",
    profile: ProfileTask | None = None,
    cases: Sequence[Any] = ((0, SPEC),),
    precision: str = "quick",
    memory_bytes: int = 1 << 30,
    **changes: Any,
) -> tuple[Outcome, Sequence[RunEvent]]:
    """Run a job of a plain implementation and uploaded ones.

    Args:
        source: of `ann/mine`, or of several by their names, or the uploads as a job has them.
        uploads: how the processes of uploads run.
        profile: to make, as of a job that has measured all its cases.
        cases: position and spec of each; there are none with a profile.
        changes: of the server's settings.
    """
    given = settings(folder / "data", uploads, job_memory_bytes=memory_bytes, **changes)
    if isinstance(source, str):
        source = {"ann/mine": source}
    if isinstance(source, Mapping):
        source = [
            {"name": name, "op": "permute", "function": "permute", "source": text}
            for name, text in source.items()
        ]
    task: Task = {
        "device": "cpu",
        "modules": {},
        "uploads": [*source],
        "problem": None,
        "sandboxed": uploads == "sandboxed",
        "op": "permute",
        "implementations": ["torch", *(one["name"] for one in source)],
        "precision": precision,
        "seed": 1,
        "cases": [] if profile else [*cases],
        "memory_bytes": memory_bytes,
        "threads": 1,
        "profile": profile,
    }
    events: list[RunEvent] = []
    lease = DeviceLease(lambda: False, lambda: False, lambda: None)

    async def play() -> Outcome:
        return await Run(task, f"test/{os.getpid()}", LANE, lease, given, events.append).run()

    others = bubblewraps()  # of servers that other tests still use
    outcome = asyncio.run(play())

    assert lease.since is None, "the lane has its device again"
    assert outcome.left == ()
    until(lambda: all(process in others for process in bubblewraps()), "one is left")
    return outcome, events


def rows(events: Sequence[RunEvent]) -> list[dict[str, Any]]:
    """The results of the implementations in the only case."""
    (case,) = (event.result for event in events if isinstance(event, CaseMeasured))
    found: list[dict[str, Any]] = case["implementations"]
    return found
