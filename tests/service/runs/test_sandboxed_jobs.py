"""Jobs with uploaded code that misbehaves: how each ends, and that nothing is left.

They run in the sandbox where it makes a difference. The others run the same processes without it, since what
is started in a sandbox imports torch.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from tests.service.job_requests import BRIEF
from tests.service.runs.sandboxes import Uploads, needs_bubblewrap
from tests.service.runs.upload_runs import SPEC, rows, run
from warpcall_bench.runs.events import (
    CaseMeasured,
    EnvironmentKnown,
    Printed,
    ProfileMade,
    RunEvent,
)
from warpcall_bench.runs.messages import ProfileTask

pytestmark = [needs_bubblewrap, pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]

GOOD = """
def permute(x, dims):
    return x.permute(dims).contiguous()
"""
CONNECTION = """
import json, os, socket, stat, struct
server = next(
    socket.socket(fileno=os.dup(fd)) for fd in range(3, 1024)
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


def test_a_wheel_that_the_operator_provides_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "wheels" / "turned-1.2-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("turned/__init__.py", GOOD.replace("permute(x, dims)", "turn(x, dims)"))
        archive.writestr("turned-1.2.dist-info/METADATA", "Name: turned\nVersion: 1.2\n")
    monkeypatch.setenv("PYTHONPATH", f"{BRIEF['PYTHONPATH']}:{wheel}")
    source = """
from importlib.metadata import version
from turned import turn
assert version("turned") == "1.2"
def permute(x, dims):
    return turn(x, dims)
"""

    _, events = run(tmp_path, source)

    case = next(event for event in events if isinstance(event, CaseMeasured))
    assert [one["status"] for one in case.result["implementations"]] == ["ok", "ok"]


def arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# Uploads of a job, each with the status of its row and a part of its error.
ENDED = {
    "exit": ("import os\nos._exit(3)", "crashed", "exited with status 3"),
    "abort": ("import os\nos.abort()", "crashed", "SIGABRT"),
    "frame": (
        CONNECTION + "server.sendall(bytes([255]) * 4)",
        "crashed",
        "sent what it may not",
    ),
    "call-exits": (
        GOOD.replace("return", "os._exit(4)\n    return") + "import os\n",
        "crashed",
        "status 4",
    ),
}
HANGING = {
    "import": ("import time\ntime.sleep(600)", "timeout", "did not end within"),
    "call-hangs": (
        GOOD.replace("return", "time.sleep(600)\n    return") + "import time\n",
        "timeout",
        "did not end within",
    ),
}


@pytest.mark.parametrize(
    ("sources", "uploads", "compile_s"),
    [
        (ENDED, "trusted", 60.0),
        (HANGING, "trusted", 8.0),
        ({"memory": (FORKS, "oom", "took too much memory")}, "sandboxed", 60.0),
    ],
    ids=["ended", "hanging", "memory"],
)
def test_uploads_that_misbehave_have_their_rows_and_the_job_goes_on(
    sources: Mapping[str, tuple[str, str, str]], uploads: Uploads, compile_s: float, tmp_path: Path
) -> None:
    outcome, events = run(
        *(tmp_path, {f"ann/{name}": source for name, (source, _, _) in sources.items()}),
        uploads=uploads,
        memory_bytes=1 << 30 if "memory" in sources else 4 << 30,
        upload_compile_s=compile_s,
        upload_call_s=2.0,
    )

    torch, *others = rows(events)
    assert (outcome.exit_class, outcome.detail) == ("ok", "")
    assert (torch["status"], torch["error"]) == ("ok", None)
    for row, (_, status, error) in zip(others, sources.values(), strict=True):
        assert (row["status"], error in row["error"]) == (status, True), row


def test_no_upload_can_send_in_the_name_of_its_job(tmp_path: Path) -> None:
    codes = (
        "send(HELLO)",
        "send({'result': {}})",
        "send({'ended': {'class': 'ok', 'detail': ''}})",
    )
    sources = {f"ann/{number}": f"{CONNECTION}{code}\n{GOOD}" for number, code in enumerate(codes)}

    outcome, events = run(tmp_path, sources, uploads="trusted", memory_bytes=4 << 30)

    torch, *mine = rows(events)
    (known,) = (event for event in events if isinstance(event, EnvironmentKnown))
    assert (outcome.exit_class, torch["status"]) == ("ok", "ok")
    assert len(mine) == len(codes)
    assert all(row["status"] != "ok" for row in mine), mine
    assert "faked" not in known.environment


def test_no_process_of_another_upload_can_be_seen(tmp_path: Path) -> None:
    sees = """
import os
found = [entry for entry in os.listdir("/proc") if entry.isdigit()]
assert len(found) == 2, found
"""
    _, events = run(tmp_path, sees + GOOD)

    assert [row["error"] for row in rows(events)] == [None, None]


def printed(events: Sequence[RunEvent]) -> dict[int, str]:
    """What the upload printed, by the position of the case."""
    assert {event.implementation for event in events if isinstance(event, Printed)} <= {"ann/mine"}
    return {event.position: event.text for event in events if isinstance(event, Printed)}


def test_what_an_upload_prints_until_its_first_call_returns_is_kept_and_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = """
import ctypes, os, sys
line = '{"time": "2026-01-01T00:00:00Z", "level": "ERROR", "message": "forged"}'
print("imported", file=sys.stderr)
def permute(x, dims):
    global calls
    calls += 1
    print(line)
    print("call", calls, end="")
    ctypes.CDLL(None).puts(b", from C")
    os.write(2, b"\\x1b[31mred \\xff")
    return x.permute(dims).contiguous()
calls = 0
"""

    _, events = run(tmp_path, code, cases=[(0, SPEC), (1, SPEC)])

    first, second = printed(events).values()
    assert first.startswith('imported\n{"time": "2026-01-01T00:00:00Z", ')
    assert ", from C" in first
    assert "\ufffd[31mred \ufffd" in first
    assert "call 1" in first
    assert "call 2" not in first
    assert "imported" not in second
    assert second.count("forged") == 1, "calls of the first case are not of the second"
    assert "forged" not in caplog.text


FAILING = {
    "segfault": ("ctypes.string_at(0)", "crashed", "last words of C\n"),
    "exit": ("os._exit(3)", "crashed", "last words of C\n"),
    "sleep": ("time.sleep(600)", "timeout", "last words of C\n"),
    "again": ("while True: print('again'); time.sleep(0.001)", "timeout", "again\n"),
    "raise": ("raise ValueError('not now')", "error", "last words of C\n"),
    "wrong": ("return 3", "wrong_result", "last words of C\n"),
}


def test_the_end_of_what_failing_uploads_printed_is_kept(tmp_path: Path) -> None:
    sources = {
        f"ann/{name}": f"""
import ctypes, os, time
def permute(x, dims):
    for number in range(20_000):
        print("line", number)
    ctypes.CDLL(None).puts(b"last words of C")
    {statement}
"""
        for name, (statement, _, _) in FAILING.items()
    }

    _, events = run(
        tmp_path, sources, uploads="trusted", memory_bytes=4 << 30, upload_compile_s=8.0
    )

    texts = {event.implementation: event.text for event in events if isinstance(event, Printed)}
    assert {*texts} == {*sources}
    for row, (name, (_, status, last)) in zip(rows(events)[1:], FAILING.items(), strict=True):
        text = texts[f"ann/{name}"]
        assert row["status"] == status, row
        assert text.startswith("line 0\nline 1\n")
        assert "bytes are left out" in text
        assert text.endswith(last)
        assert len(text) < 66_000


def test_a_crash_in_a_later_call_adds_what_was_printed_last(tmp_path: Path) -> None:
    code = GOOD.replace(
        "return",
        "calls.append(1)\n    print('call', len(calls))\n"
        "    if len(calls) == 9: os._exit(3)\n    return",
    )

    _, events = run(tmp_path, f"import os\ncalls = []\n{code}", uploads="trusted")

    (text,) = printed(events).values()
    assert text.startswith("call 1\n\n(printed by later calls)\ncall 2\n")
    assert text.endswith("call 9\n")


def test_a_run_says_how_long_it_had_the_device_and_compiled(tmp_path: Path) -> None:
    slow = GOOD.replace("return", "time.sleep(0 if calls else 0.7); calls.append(1)\n    return")

    outcome, _ = run(
        tmp_path, f"import time\ntime.sleep(0.8)\ncalls = []\n{slow}", uploads="trusted"
    )

    # 0.8 s of the import, and 0.7 s of the first call without the time of the second one
    assert 1.4 < outcome.compile_s < outcome.took_s
    assert 0 < outcome.device_s < outcome.took_s
    assert 0 <= outcome.device_wait_s < outcome.took_s


def test_an_upload_that_floods_its_timed_calls_is_measured(tmp_path: Path) -> None:
    code = GOOD.replace("return", "print('y' * 300_000)\n    return")

    outcome, events = run(tmp_path, code, uploads="trusted")

    assert (outcome.exit_class, rows(events)[1]["status"]) == ("ok", "ok")
    (text,) = printed(events).values()
    assert len(text) < 66_000


# What an implementation does in its profile, and the error of that profile.
IN_PROFILES = {
    "exits": ("os._exit(3)", "its process ended early: exited with status 3"),
    "hangs": ("time.sleep(600)", "its call was not profiled within 2 s"),
    "raises": ("raise ValueError('not now')", "it raised ValueError: not now"),
    "done": ("send({'done': True})", "its process sent what is no profile"),
    "other": (
        "send({'file': 'trace.json', 'nbytes': 4}); server.sendall(b'{}  ')",
        "no profile",
    ),
    "large": (
        "send({'release': True}); send({'file': 'trace.json', 'nbytes': 1 << 40})",
        "are kept",
    ),
    "frame": ("server.sendall(bytes([255]) * 8)", "its process sent what is no profile"),
}


def profile_of(implementations: Sequence[str]) -> ProfileTask:
    return {
        "profiler": "torch",
        "cases": [(0, SPEC, [*implementations])],
        "most_bytes": 1 << 20,
        "program": "",
        "limit_s": 40.0,
        "call_s": 2.0,
    }


def test_an_upload_is_profiled_in_the_sandbox(tmp_path: Path) -> None:
    outcome, events = run(tmp_path, GOOD, profile=profile_of(["ann/mine", "torch"]))

    made = {event.implementation: event for event in events if isinstance(event, ProfileMade)}
    assert (outcome.exit_class, outcome.detail) == ("ok", "")
    assert [*made] == ["ann/mine", "torch"]
    assert [one.error for one in made.values()] == ["", ""]
    assert b"traceEvents" in made["ann/mine"].content


def test_code_that_misbehaves_in_its_profile_fails_that_profile_only(tmp_path: Path) -> None:
    recorded = "if torch.autograd._profiler_enabled():"
    sources = {
        f"ann/{name}": f"import time, torch\n{CONNECTION}"
        + GOOD.replace("return", f"{recorded} {statement}\n    return")
        for name, (statement, _) in IN_PROFILES.items()
    }
    outcome, events = run(
        tmp_path, sources, uploads="trusted", profile=profile_of([*sources, "torch"])
    )

    made = {event.implementation: event for event in events if isinstance(event, ProfileMade)}
    torch = made.pop("torch")
    assert (outcome.exit_class, outcome.detail) == ("ok", "")
    assert torch.error == ""
    assert b"traceEvents" in torch.content
    assert [*made] == [*sources]
    for name, (_, error) in IN_PROFILES.items():
        assert error in made[f"ann/{name}"].error, name
