"""Jobs with uploaded code that misbehaves in the sandbox: how each ends, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.service.job_requests import BRIEF
from tests.service.runs.sandboxes import bubblewraps, needs_bubblewrap, settings
from tests.waiting import until
from warpcall_service.lanes.device_lease import DeviceLease
from warpcall_service.lanes.messages import Hello
from warpcall_service.runs.events import CaseMeasured, EnvironmentKnown, RunEvent
from warpcall_service.runs.messages import Task
from warpcall_service.runs.runner import Outcome, Run

pytestmark = needs_bubblewrap

LANE: Hello = {"fingerprint": {"device": "of the lane"}, "environment": "of the lane"}
GOOD = """
def permute(x, dims):
    return x.permute(dims).contiguous()
"""
CONNECTION = """
import json, os, socket, stat, struct
server = next(
    socket.socket(fileno=os.dup(fd)) for fd in range(3, 100)
    if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode)
)
def send(value):
    text = json.dumps(value).encode()
    server.sendall(struct.pack("<I", len(text)) + text)
HELLO = {"hello": {"fingerprint": {"device": "a faster one"}, "environment": "faked", "sources": {}}}
"""
FORKS = """
import os, time
for _ in range(12):
    if not os.fork():
        kept = b"x" * (100 << 20)
        time.sleep(600)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _jobs_are_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", BRIEF["PYTHONPATH"])


def run(folder: Path, source: str, **changes: Any) -> tuple[Outcome, Sequence[RunEvent]]:
    """Run a job of a plain implementation and an uploaded one."""
    given = settings(folder / "data", job_memory_bytes=1 << 30, **changes)
    task: Task = {
        "device": "cpu",
        "modules": {},
        "uploads": [{"name": "ann/mine", "op": "permute", "function": "permute", "source": source}],
        "problem": None,
        "sandboxed": True,
        "op": "permute",
        "implementations": ["torch", "ann/mine"],
        "precision": "quick",
        "seed": 1,
        "cases": [(0, {"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}})],
        "memory_bytes": 1 << 30,
        "threads": 1,
    }
    events: list[RunEvent] = []
    lease = DeviceLease(lambda: False, lambda: False, lambda: None)

    async def play() -> Outcome:
        return await Run(task, f"test/{os.getpid()}", LANE, lease, given, events.append).run()

    outcome = asyncio.run(play())

    assert lease.since is None, "the lane has its device again"
    assert outcome.left == ()
    until(lambda: not bubblewraps(), "one is left")
    return outcome, events


def test_a_good_implementation_is_measured_and_what_it_left_behind_has_ended(
    tmp_path: Path,
) -> None:
    seconds = str(9_000_000 + os.getpid())
    leave = f"""
import os
if not os.fork():
    os.setsid()
    if not os.fork():
        os.execv("/bin/sleep", ["sleep", "{seconds}"])
    os._exit(0)
"""

    outcome, events = run(tmp_path, leave + GOOD)

    case = next(event for event in events if isinstance(event, CaseMeasured))
    assert (outcome.exit_class, outcome.detail) == ("ok", "")
    assert [one["status"] for one in case.result["implementations"]] == ["ok", "ok"]
    assert seconds not in [arg for p in psutil.process_iter() for arg in arguments(p)]


def arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(
    ("source", "exit_class", "detail"),
    [
        ("import os\nos._exit(3)", "killed", "exit status 3"),
        ("import os\nos.abort()", "killed", "SIGABRT"),
        (FORKS, "oom", "its processes together took more than"),
        (CONNECTION + "send({'result': {}})", "invalid", "its process sent"),
        (CONNECTION + "send(HELLO); send({'release': True})", "invalid", "a release at the wrong"),
        (CONNECTION + "server.sendall(bytes([255]) * 4)", "invalid", "more than 2097152"),
    ],
    ids=["exit", "abort", "memory", "no-result", "release", "large"],
)
def test_what_misbehaves_when_it_is_imported_ends_its_job(
    source: str, exit_class: str, detail: str, tmp_path: Path
) -> None:
    outcome, _ = run(tmp_path, source)

    assert (outcome.exit_class, detail in outcome.detail) == (exit_class, True), outcome


def test_an_import_that_does_not_end_ends_its_job(tmp_path: Path) -> None:
    endless = "import time\nwhile True: time.sleep(1)"

    outcome, _ = run(tmp_path, endless, start_timeout_s=12.0)

    assert (outcome.exit_class, outcome.detail) == ("timeout", "it did not start within 12 s")


def test_what_a_job_says_of_its_machine_does_not_count(tmp_path: Path) -> None:
    faked = CONNECTION + "send(HELLO); send({'ended': {'class': 'ok', 'detail': ''}}); os._exit(0)"

    outcome, events = run(tmp_path, faked)

    known = [event for event in events if isinstance(event, EnvironmentKnown)]
    assert outcome.exit_class == "ok"
    assert [(one.fingerprint, one.environment) for one in known] == [
        ({"device": "of the lane"}, "of the lane")
    ]
