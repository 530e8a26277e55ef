"""Code in the sandbox that takes too much or stays too long, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.service.runs.sandboxes import ROOT, bubblewraps, needs_bubblewrap, settings, tried
from tests.suspended import suspend
from tests.waiting import lives, until
from warpcall_bench.runs import cgroups
from warpcall_bench.runs.one_shot import NotStarted, OneShotError, run_one_shot

pytestmark = [needs_bubblewrap, pytest.mark.slow]

FORK = """
import os, time
count = 0
try:
    for count in range(100):
        if not os.fork():
            time.sleep(600)
            os._exit(0)
except BlockingIOError:
    return count
return 100
"""
THREADS = """
import threading, time
count = 0
try:
    for count in range(100):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
except RuntimeError:
    return count
return 100
"""
ALLOCATE = "return len(bytearray(size))"
LEAVE = """
import os, signal, time
if not os.fork():
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        os.closerange(0, 1000)
        os.execv("/bin/sleep", ["sleep", seconds])
    os._exit(0)
os.wait()
time.sleep(0.3)
"""


@pytest.fixture(autouse=True)
def nothing_is_left() -> object:
    """Fails a test that leaves a mount, a control group or a process of bubblewrap.

    A reaper that was killed removes no control group. The next start of a sandbox removes it, which
    it can only if the group has no process.
    """
    mounted, before = mounts(), set(groups_of_the_dead())
    others = bubblewraps()  # of servers that other tests still use
    yield
    assert mounts() == mounted

    def all_are_removed() -> bool:
        if group := cgroups.create(processes=10, memory_bytes=1 << 20):
            group.remove()
        return before.issuperset(groups_of_the_dead())

    until(all_are_removed, "a group is left")
    assert [process for process in bubblewraps() if process not in others] == []


def groups_of_the_dead() -> list[Path]:
    """Control groups whose maker has ended. Those of other tests, whose maker runs, do not count."""
    return [path for path in groups() if not psutil.pid_exists(int(path.name.split("-")[1]))]


def groups(name: str = "warpcall-*") -> list[Path]:
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-name", name], capture_output=True, text=True, check=False
    )
    return list(map(Path, found.stdout.splitlines()))


def mounts() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines]


@pytest.mark.parametrize("code", [FORK, THREADS], ids=["processes", "threads"])
def test_no_more_processes_and_threads_exist_than_the_setting_says(
    code: str, tmp_path: Path
) -> None:
    few = tried({"x": code}, settings(tmp_path / "data", sandbox_processes=64))
    many = tried({"x": code}, settings(tmp_path / "data", sandbox_processes=256))

    assert few["x"][0] == "done"
    assert 40 < few["x"][1] < 64
    assert many["x"] == ["done", 100]


def test_memory_beyond_the_limit_of_one_process_is_refused(tmp_path: Path) -> None:
    small = settings(tmp_path / "data", job_memory_bytes=256 << 20)
    large = settings(tmp_path / "data", job_memory_bytes=512 << 20)

    too_much = tried({"x": ALLOCATE}, small, size=300 << 20)
    very_much = tried({"x": ALLOCATE}, small, size=64 << 30)
    allowed = tried({"x": ALLOCATE}, large, size=300 << 20)

    assert too_much["x"][1].startswith("MemoryError")
    assert very_much["x"][1].startswith("MemoryError")
    assert allowed["x"] == ["done", 300 << 20]


def test_memory_of_all_processes_together_ends_them(tmp_path: Path) -> None:
    code = """
import os, time
for _ in range(6):
    if not os.fork():
        kept = b"x" * (100 << 20)
        time.sleep(600)
time.sleep(3)
"""
    with pytest.raises(OneShotError, match="took more than 268435456 bytes of memory"):
        tried({"x": code}, settings(tmp_path / "data", job_memory_bytes=256 << 20))
    allowed = tried({"x": code}, settings(tmp_path / "data", job_memory_bytes=1 << 30))

    assert allowed["x"] == ["done", None]


def test_a_process_that_is_left_behind_ends_with_the_others(tmp_path: Path) -> None:
    left, control = str(7_000_000 + os.getpid()), str(8_000_000 + os.getpid())

    tried({"x": LEAVE}, settings(tmp_path / "data"), seconds=left)
    program = f"seconds = {control!r}\n{LEAVE}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    found = sleeping(control)
    for process in found:
        process.kill()

    assert len(found) == 1, "without the sandbox and the reaper it stays"
    assert sleeping(left) == []


def test_a_check_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    code = "found = os.path.exists('/tmp/mark')\nopen('/tmp/mark', 'w').close()\nreturn found"
    given = settings(tmp_path / "data")

    found = [tried({"x": f"import os\n{code}"}, given)["x"] for _ in range(2)]

    assert found == [["done", False]] * 2


def sleeping(seconds: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if shows(p) == ["sleep", seconds]]


def shows(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_check_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(OneShotError, match="not done within 2 s"):
        tried({"x": "while True: pass"}, settings(tmp_path / "data"), limit_s=2.0)


def test_an_answer_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OneShotError, match="more than"):
        tried({"x": "return 'x' * (2 << 20)"}, settings(tmp_path / "data"))


def reapers() -> set[psutil.Process]:
    """The reapers below this process, which has other children, too."""
    module = "warpcall_bench.runs.reaper"
    return {p for p in psutil.Process().children(recursive=True) if module in shows(p)}


def test_a_run_removes_its_control_group(tmp_path: Path) -> None:
    others = reapers()
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(
            tried, {"x": "import time; time.sleep(1)"}, settings(tmp_path / "data")
        )
        until(lambda: reapers() - others, "no reaper is seen")
        (reaper,) = reapers() - others
        run.result(timeout=60)

    until(lambda: not reaper.is_running(), "the reaper does not end")
    assert groups(f"{cgroups.PREFIX}{reaper.pid}-*") == []


@pytest.mark.parametrize("victim", ["reaper", "bwrap"])
def test_all_of_it_ends_when_a_part_is_killed(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    request = b'{"codes": {"x": "import time; time.sleep(600)"}, "values": {}}'
    given = settings(tmp_path / "data")
    seen: dict[psutil.Process, list[str]] = {}  # with their command lines
    others = reapers()  # of servers that other tests still use

    async def play() -> None:
        run = run_one_shot(given, "tests.service.runs.attempt", request, 60.0, 1000, trusted=False)
        running = asyncio.create_task(run)
        deadline = time.monotonic() + 30
        while sum("tests.service.runs.attempt" in line for line in seen.values()) < 4:
            assert time.monotonic() < deadline, seen
            await asyncio.sleep(0.1)
            for reaper in reapers() - others:
                seen.update((p, shows(p)) for p in [reaper, *reaper.children(recursive=True)])
        next(p for p, line in seen.items() if victim in " ".join(line[:4])).kill()
        with pytest.raises(OneShotError):
            await running

    asyncio.run(play())

    until(lambda: not any(map(lives, seen)), "a process is left", timeout_s=10)
    # A killed reaper removes no control group. The next one does.
    assert tried({"x": "return 1"}, given)["x"] == ["done", 1]


def test_all_of_it_ends_when_the_server_and_the_reaper_are_killed(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tests.service.runs.sandboxes import settings, tried
tried({{"x": "import time; time.sleep(600)"}}, settings(Path({str(tmp_path / "data")!r})))
"""
    server = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    parent, seen = psutil.Process(server.pid), dict[psutil.Process, list[str]]()

    def all_run() -> bool:
        seen.update((p, shows(p)) for p in parent.children(recursive=True))
        return sum("tests.service.runs.attempt" in line for line in seen.values()) >= 4

    until(all_run, "it does not start")

    reaper = next(p for p, line in seen.items() if "warpcall_bench.runs.reaper" in line)
    suspend(parent)  # so that it does not end what the reaper leaves
    reaper.kill()
    parent.kill()
    server.wait()

    until(lambda: not any(map(lives, seen)), "a process is left", timeout_s=10)
    assert tried({"x": "return 1"}, settings(tmp_path / "data"))["x"] == ["done", 1]


def test_a_sandbox_that_cannot_start_is_no_fault_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NotStarted, match="install bubblewrap"):
        tried({"x": "return 1"}, settings(tmp_path / "data"))


def test_what_uploaded_code_prints_is_bounded_and_no_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = '{"time": "2026-01-01T00:00:00Z", "level": "ERROR", "message": "forged"}'
    code = f"import sys\nfor _ in range(5000):\n    print({line!r}, file=sys.stderr, flush=True)"

    tried({"x": code}, settings(tmp_path / "data"))

    written = [record.getMessage() for record in caplog.records]
    assert "dropped" in "".join(written)
    assert all(message.startswith("the check of an upload wrote: ") for message in written)
    assert sum(map(len, written)) < 80_000
