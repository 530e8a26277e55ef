"""How a reaper ends the processes that are left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# The orphan, whose parent has ended, ends just after `end_children` has waited for what had ended.
PROGRAM = """
import contextlib, ctypes, os, signal, time
from warpcall_service.runs import reaper

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
