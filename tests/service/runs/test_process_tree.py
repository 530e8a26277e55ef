"""Which processes run, and how those that are left are found and ended.

A process stands still only when each of its threads does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.service.runs.sandboxes import ROOT, settings, tried
from tests.waiting import until
from warpcall_bench.runs import process_tree
from warpcall_bench.runs.messages import TAG_VARIABLE
from warpcall_bench.runs.one_shot import OneShot

WRITES = """
import os, threading
fd = os.memfd_create("file")
content = bytearray(64 << 20)
def write():
    while True:
        os.pwrite(fd, content, 0)
threading.Thread(target=write, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def main_thread_stands_still(pid: int) -> bool:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2] == "T"


def stopped_with_a_thread_in_the_kernel(pid: int) -> bool:
    """Stop a process; whether one of its threads went on after the main thread stood still."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: main_thread_stands_still(pid), "its main thread does not stop")
    went_on = process_tree.runs(pid)
    until(lambda: not process_tree.runs(pid), "a thread does not stop")
    spent = process_tree.cpu_us(pid)
    time.sleep(0.02)
    assert process_tree.cpu_us(pid) == spent, "it stands still"
    os.kill(pid, signal.SIGCONT)
    return went_on


def test_a_process_runs_while_a_thread_is_in_the_kernel() -> None:
    with subprocess.Popen([sys.executable, "-c", WRITES], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            found = [stopped_with_a_thread_in_the_kernel(process.pid) for _ in range(20)]
        finally:
            process.kill()

    assert any(found)
    assert not process_tree.runs(process.pid)
    assert process_tree.cpu_us(process.pid) == 0


def test_processes_that_a_reaper_could_not_end_are_killed_by_their_ids() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    stopped = subprocess.Popen(["sleep", "600"])
    stopped.send_signal(signal.SIGSTOP)

    left = process_tree.kill_left([ended.pid, stopped.pid])

    assert (left, stopped.wait(0)) == (set(), -signal.SIGKILL)
    assert process_tree.kill_left([]) == set()


def test_what_a_killed_reaper_left_is_found_by_its_tag_beside_large_environments(
    large_environments: None,
) -> None:
    tag = f"test/{os.getpid()}"
    environment = {TAG_VARIABLE: f"{tag}/1", "X": "x" * 100_000}
    stray = subprocess.Popen(["sleep", "600"], env=environment)
    before_s = time.process_time()

    left = process_tree.kill_tagged(tag)

    assert (left, stray.wait(0)) == (set(), -signal.SIGKILL)
    assert time.process_time() - before_s < SEARCH_CPU_S


def test_the_tag_comes_before_a_large_environment_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LARGE_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", ROOT)
    given = settings(tmp_path / "data", "trusted")

    async def play() -> tuple[int, set[int]]:
        check = OneShot(given, "tests.service.runs.attempt", trusted=False)
        reaper = psutil.Process(check._reaper.pid)
        until(reaper.children, "it does not start")
        started = {reaper.pid, *(child.pid for child in reaper.children())}
        found = {*process_tree.tagged(check._tag)}
        await check.end()
        return len(started), started - found

    assert asyncio.run(play()) == (2, set())


def test_large_environments_of_other_processes_do_not_delay_the_end_of_a_check(
    large_environments: None, tmp_path: Path
) -> None:
    before_s = time.process_time()

    found = tried({"x": "return 1"}, settings(tmp_path / "data", "trusted"))

    assert found == {"x": ["done", 1]}
    assert time.process_time() - before_s < SEARCH_CPU_S


FORKS = """
import os, time
for _ in range(500):
    if not os.fork():
        break
else:
    print("ready", flush=True)
time.sleep(600)
"""
LARGE_ENVIRONMENT = {f"V{number}": "x" * 120_000 for number in range(16)}  # of each of the forks
SEARCH_CPU_S = 0.4  # one search took 1.0 s when it read whole environments, and 0.02 s since


@pytest.fixture
def large_environments() -> Iterator[None]:
    """Processes of somebody else, with 2 MB of environment each."""
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(
        command, env=LARGE_ENVIRONMENT, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
