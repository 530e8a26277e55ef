"""Problems that misbehave in the sandbox: how their check and their jobs end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.service.runs.sandboxes import needs_bubblewrap, settings
from tests.service.worker.problem_sources import NAME, ROW_NORM, with_inputs, with_reference
from warpcall_bench.runs.events import CaseMeasured, RunEvent
from warpcall_bench.runs.messages import ProblemRequest, Task
from warpcall_bench.runs.one_shot import OneShotError, run_one_shot
from warpcall_bench.runs.runner import Outcome, Run
from warpcall_service.lanes.device_lease import DeviceLease
from warpcall_service.lanes.messages import Hello

pytestmark = [needs_bubblewrap, pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]

MODULE = "warpcall_bench.programs.problem_check"
LANE: Hello = {"fingerprint": {"device": "of the lane"}, "environment": "of the lane"}
MAX_ANSWER_BYTES = 64 << 10
ON_VALUES = "if x.device.type != 'meta':"
FORKS = (
    "import os, time",
    "for _ in range(12):",
    "    if not os.fork():",
    "        kept = b'x' * (100 << 20)",
    "        time.sleep(600)",
    "time.sleep(600)",
)
FIND_SOCKET = (
    "import json, os, socket, stat, struct",
    "sockets = [fd for fd in range(3, 1024) if os.path.exists(f'/proc/self/fd/{fd}')]",
    "sockets = [fd for fd in sockets if stat.S_ISSOCK(os.fstat(fd).st_mode)]",
)


def check(folder: Path, source: str, limit_s: float = 60.0) -> dict[str, Any]:
    request: ProblemRequest = {"name": NAME, "source": source, "job": None, "limit_s": limit_s}
    given = settings(folder / "data", job_memory_bytes=1 << 30)
    text = json.dumps(request).encode()
    answer = asyncio.run(run_one_shot(given, MODULE, text, 120.0, MAX_ANSWER_BYTES, trusted=False))
    found: dict[str, Any] = json.loads(answer)
    return found


def run(folder: Path, source: str, **changes: Any) -> tuple[Outcome, Sequence[RunEvent]]:
    """Run a job on the problem, of its reference."""
    task: Task = {
        "device": "cpu",
        "modules": {},
        "uploads": [],
        "problem": {"name": NAME, "source": source},
        "sandboxed": True,
        "op": NAME,
        "implementations": ["torch"],
        "precision": "quick",
        "seed": 1,
        "cases": [(0, {"sizes": {"rows": 3}})],
        "memory_bytes": 1 << 30,
        "threads": 1,
    }
    events: list[RunEvent] = []
    lease = DeviceLease(lambda: False, lambda: False, lambda: None)
    given = settings(folder / "data", job_memory_bytes=1 << 30, **changes)

    async def play() -> Outcome:
        return await Run(task, f"test/{os.getpid()}", LANE, lease, given, events.append).run()

    outcome = asyncio.run(play())

    assert lease.since is None, "the lane has its device again"
    assert outcome.left == ()
    return outcome, events


def test_a_good_problem_is_checked_and_measured_in_the_sandbox(tmp_path: Path) -> None:
    asks = ROW_NORM.replace(
        "import torch\n",
        "import os\nimport torch\nassert os.getuid() == 1000, 'there is no sandbox'\n",
    )

    answer = check(tmp_path, asks)
    outcome, events = run(tmp_path, asks)

    assert answer["function"] == "row_norm"
    assert (outcome.exit_class, outcome.detail) == ("ok", "")
    (case,) = (event.result for event in events if isinstance(event, CaseMeasured))
    assert [(one["name"], one["status"]) for one in case["implementations"]] == [("torch", "ok")]


def test_what_a_problem_may_not_do_is_an_error_of_its_line(tmp_path: Path) -> None:
    tries = (
        "torch.ones(10**15)",
        "[0] * 10**12",
        "open('/etc/x', 'w')",
        "__import__('socket').create_connection(('192.0.2.1', 1))",
    )
    source = with_inputs(
        "found = []",
        f"for code in {tries!r}:",
        "    try:",
        "        eval(code)",
        "        found.append('done')",
        "    except BaseException as error:",
        "        found.append(isinstance(error, OSError) or type(error).__name__)",
        "raise ValueError(found)",
    )

    answer = check(tmp_path, source)

    assert answer["field"] == "source"
    assert answer["error"] == "line 22: ValueError: ['RuntimeError', 'MemoryError', True, True]"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import os\nos._exit(0)\n", "its process ended before it had answered"),
        (with_reference(*FORKS), "took more than 1073741824 bytes of memory"),
        (
            with_reference(
                *FIND_SOCKET,
                "for fd in sockets:",
                "    socket.socket(fileno=os.dup(fd)).sendall(bytes([255]) * 4)",
            ),
            "its answer has 4294967295 bytes, more than 65536",
        ),
    ],
    ids=["exit", "memory", "answer"],
)
def test_a_check_that_is_ended_says_why(source: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(OneShotError, match=error):
        check(tmp_path, source)


@pytest.mark.parametrize(
    ("lines", "status", "error"),
    [
        (("import os", "os._exit(3)"), "crashed", "exited with status 3 in the reference"),
        (("import time", "time.sleep(600)"), "timeout", "the reference did not end within 10 s"),
        (FORKS, "oom", "its processes took too much memory in the reference"),
        (
            (
                *FIND_SOCKET,
                "text = json.dumps({'result': {}}).encode()",
                "for fd in sockets:",
                "    with socket.socket(fileno=os.dup(fd)) as one:",
                "        one.sendall(struct.pack('<I', len(text)) + text)",
            ),
            "",
            "",
        ),
    ],
    ids=["exit", "loop", "memory", "result"],
)
def test_a_reference_that_misbehaves_has_no_time_and_its_job_ends_well(
    lines: Sequence[str], status: str, error: str, tmp_path: Path
) -> None:
    source = with_reference(ON_VALUES, *(f"    {line}" for line in lines))

    limit_s = 10.0 if status == "timeout" else 60.0

    outcome, events = run(tmp_path, source, upload_call_s=limit_s, upload_compile_s=limit_s)

    (case,) = (event.result for event in events if isinstance(event, CaseMeasured))
    (row,) = case["implementations"]
    assert (outcome.exit_class, outcome.detail) == ("ok", "")
    assert row["status"] != "ok"
    assert status in ("", row["status"])
    assert error in row["error"]
