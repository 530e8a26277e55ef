"""The parent of a job's process: python -m warpcall_service.runs.reaper, started by the server.

The process runs in the sandbox if the server says so. The reaper lives as long as any process of the job: processes whose parents have ended become its children,
so that none can escape by forking twice. It ends all of them when the server requests it on the
control socket, when the server has ended, when they use too much memory together, or when the job's
process itself has ended. It never imports torch.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess  # nosec B404
import sys
import time
from typing import Literal

from warpcall_service.runs import process_tree, sandboxed, temporary
from warpcall_service.runs.cgroups import Cgroup
from warpcall_service.runs.messages import ReaperReport

PR_SET_CHILD_SUBREAPER = 36
MEMORY_POLL_S = 0.5  # between two checks of the memory of all processes


def main() -> None:
    """Start the job's process, and stay until all its processes have ended."""
    parser = argparse.ArgumentParser()
    for name in ("parent", "memory-bytes", "control-fd", "server-fd"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--sandbox", default="")  # a `Launch` as JSON; empty means no sandbox
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the server uses the control socket
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control = socket.socket(fileno=args.control_fd)
    try:
        process, cgroup = _start(args.module, args.server_fd, args.sandbox)
    except sandboxed.CannotStart as error:
        _report(control, {"status": 1, "over_memory": False, "left": [], "trouble": str(error)})
        return
    os.close(args.server_fd)
    reason = _watch(process.pid, control, args.memory_bytes, cgroup)
    status = end_children(process.pid, gracefully=reason == "stop")
    report: ReaperReport = {
        "status": sandboxed.status_inside(status) if args.sandbox else status,
        "over_memory": reason == "memory" or _ran_out(cgroup),
        "left": sorted(process_tree.descendants(os.getpid())),
        "trouble": "",
    }
    if cgroup is not None:
        cgroup.remove()
    temporary.sweep()
    _report(control, report)


def _report(control: socket.socket, report: ReaperReport) -> None:
    with contextlib.suppress(OSError):  # the server has gone
        control.sendall(json.dumps(report).encode())


def _start(module: str, fd: int, launch: str) -> tuple[subprocess.Popen[bytes], Cgroup | None]:
    option = f"--server-fd={fd}"
    if launch:
        started = sandboxed.start(json.loads(launch), module, [option], [fd])
        return started.process, started.cgroup
    process = subprocess.Popen(  # nosec B603
        [sys.executable, "-P", "-m", module, f"--parent={os.getpid()}", option],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    return process, None


def _watch(
    pid: int, control: socket.socket, memory_bytes: int, cgroup: Cgroup | None
) -> Literal["ended", "stop", "lost", "memory"]:
    """Wait until the process has ended or must be ended, and return why."""
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [], MEMORY_POLL_S)
        if control.fileno() in ready:
            return "stop" if _received(control) else "lost"
        if ready:
            return "ended"
        if _ran_out(cgroup) or process_tree.exceeds_memory(
            process_tree.descendants(os.getpid()), memory_bytes
        ):
            return "memory"


def _ran_out(cgroup: Cgroup | None) -> bool:
    return cgroup is not None and cgroup.ran_out_of_memory()


def _received(control: socket.socket) -> bool:
    """Whether the server has sent a request to stop; False if it has closed the socket."""
    with contextlib.suppress(OSError):
        return bool(control.recv(64))
    return False


def end_children(pid: int, *, gracefully: bool) -> int:
    """End all processes that are left, and return the exit status of process `pid`.

    It waits for each of them. One that it did not wait for would be a zombie when the reaper ends,
    until its new parent waits for it: that is the first process of a container, which may never do so.
    """
    status = -int(signal.SIGKILL)
    terminate_until = time.monotonic() + (process_tree.TERMINATE_S if gracefully else 0)
    if gracefully:
        process_tree.send(process_tree.descendants(os.getpid()), signal.SIGTERM)
    while time.monotonic() < terminate_until + process_tree.KILL_S:
        try:
            while (gone := os.waitpid(-1, os.WNOHANG))[0]:
                if gone[0] == pid:
                    status = os.waitstatus_to_exitcode(gone[1])
        except ChildProcessError:  # there are no more
            break
        if time.monotonic() >= terminate_until:
            process_tree.send(process_tree.descendants(os.getpid()), signal.SIGKILL)
        time.sleep(process_tree.POLL_S)
    return status


if __name__ == "__main__":
    main()
