"""The parent of a job's process: python -m warpcall_service.runs.reaper MEMORY_BYTES FD COMMAND...

It lives as long as anything that the job started: orphans of the job become its children, so that
nobody leaves by forking twice. When its stdin ends, because the server says so or is dead, it ends
all of them; and whatever the job leaves behind when it ends by itself. It knows nothing of torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess  # nosec B404
import sys
import time
from typing import Literal

from warpcall_service.runs import process_tree
from warpcall_service.runs.messages import ReaperReport

PR_SET_CHILD_SUBREAPER = 36
MEMORY_POLL_S = 0.5  # between two looks at the memory of all


def main() -> None:
    """Start the command, and stay until nothing of it is left."""
    memory_bytes, fd, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the server speaks through stdin
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(  # nosec B603
        [*command, f"--parent={os.getpid()}"],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    os.close(fd)
    reason = _watch(process.pid, memory_bytes)
    status = _end(process.pid, gracefully=reason == "stop")
    report: ReaperReport = {
        "status": status,
        "over_memory": reason == "memory",
        "left": sorted(process_tree.descendants(os.getpid())),
    }
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(report))
        sys.stdout.flush()


def _watch(pid: int, memory_bytes: int) -> Literal["ended", "stop", "lost", "memory"]:
    """Wait until the process has ended, or has to."""
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([0, ended], [], [], MEMORY_POLL_S)
        if 0 in ready:
            return "stop" if os.read(0, 64) else "lost"
        if ready:
            return "ended"
        if process_tree.exceeds_memory(process_tree.descendants(os.getpid()), memory_bytes):
            return "memory"


def _end(pid: int, *, gracefully: bool) -> int:
    """End all that is left, and say how the process itself ended."""
    status: int | None = None
    began = time.monotonic()
    terminate_until = began + (process_tree.TERMINATE_S if gracefully else 0)
    if gracefully:
        process_tree.send(process_tree.descendants(os.getpid()), signal.SIGTERM)
    while time.monotonic() < terminate_until + process_tree.KILL_S:
        with contextlib.suppress(ChildProcessError):
            while (gone := os.waitpid(-1, os.WNOHANG))[0]:
                if gone[0] == pid:
                    status = os.waitstatus_to_exitcode(gone[1])
        left = process_tree.descendants(os.getpid())
        if not left and status is not None:
            return status
        if time.monotonic() >= terminate_until:
            process_tree.send(left, signal.SIGKILL)
        time.sleep(process_tree.POLL_S)
    return -int(signal.SIGKILL) if status is None else status


if __name__ == "__main__":
    main()
