"""How a reaper ends the processes that are left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# The orphan, whose parent has ended, ends just after `end_children` has waited for what had ended.
PROGRAM = """
import contextlib, ctypes, os, signal, time
from warpcall_bench.runs import reaper

def wait_and_then_end_the_orphan(pid, options, waitpid=os.waitpid):
    found = waitpid(pid, options)
    if found == (0, 0):
        os.kill(orphan, signal.SIGKILL)
        os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
    return found

ctypes.CDLL(None).prctl(reaper.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    orphan = os.fork()
    if orphan == 0:
        time.sleep(60)
    os.write(writing, str(orphan).encode())
    os._exit(7)
orphan = int(os.read(reading, 20))
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
os.waitpid = wait_and_then_end_the_orphan

status = reaper.end_children(child, gracefully=False)

with contextlib.suppress(ChildProcessError):
    raise SystemExit(f"left: {os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)}")
assert status == 7
"""


def test_a_process_that_ends_between_two_waits_is_no_zombie_afterwards(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


# A set of both would list the child before its parent. Between two signals the reaper waits, as it
# does on a busy machine.
PARENT = """
import ctypes, os, time
from warpcall_bench.runs import reaper

def wait_for_a_child(started, saw):
    while (child := os.fork()) and child % 8 >= os.getpid() % 8:
        os.kill(child, 9)
        os.waitpid(child, 0)
    if child:
        os.write(started, b"x")
        os.waitpid(child, 0)
        os.write(saw, b"the parent saw the end of its child")
    time.sleep(60)

def kill_and_wait(pid, number, kill=os.kill):
    kill(pid, number)
    time.sleep(0.05)

ctypes.CDLL(None).prctl(reaper.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
(waiting, started), (seen, saw) = os.pipe(), os.pipe()
while (parent := os.fork()) % 8 == 0:
    if parent == 0:
        wait_for_a_child(started, saw)
    os.kill(parent, 9)
    os.waitpid(parent, 0)
os.close(saw)
os.read(waiting, 1)
os.kill = kill_and_wait

reaper.end_children(parent, gracefully=False)

raise SystemExit(os.read(seen, 100).decode())
"""


def test_a_parent_is_killed_before_it_can_see_the_end_of_its_child(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert done.stderr.decode().strip() == ""
