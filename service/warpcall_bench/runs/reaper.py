"""The parent of a job's process: python -m warpcall_bench.runs.reaper, started by the server.

It also starts the processes that run code of users, as the job's process requests them
(`runs.upload_processes`). For the check of an upload, and for a scratch run, it starts one process, in the
sandbox if the server says so.

The reaper lives as long as any process of the job: processes whose parents have ended become its
children, so that none can escape by forking twice. It ends all of them when the server requests it
on the control socket, when the server has ended, when they use too much memory together, or when
the job's process itself has ended. It never imports torch.
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
from collections.abc import Sequence
from typing import Any, Literal

from warpcall_bench.runs import process_tree, sandboxed
from warpcall_bench.runs.cgroups import Cgroup
from warpcall_bench.runs.messages import ReaperReport
from warpcall_bench.runs.upload_processes import UploadProcesses
from warpcall_service.processes import temporary

PR_SET_CHILD_SUBREAPER = 36
MEMORY_POLL_S = 0.5  # between two checks of the memory of all processes


def main() -> None:
    """Start the job's process, and stay until all its processes have ended."""
    parser = argparse.ArgumentParser()
    for name in ("parent", "memory-bytes", "control-fd", "server-fd"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--sandbox", default="")  # a `Launch` as JSON; empty means no sandbox
    parser.add_argument("--profiler", type=int, default=0)  # 1 if it runs a profiler in the sandbox
    # An `UploadLaunch` as JSON, "null" for a job that runs no code of users; empty for a check.
    parser.add_argument("--uploads", default="")
    parser.add_argument("--log-fd", type=int)  # what upload processes print
    parser.add_argument("--ahead", default="[]")  # modules of upload processes to start at once
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the server uses the control socket
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control = socket.socket(fileno=args.control_fd)
    ends = _ends_of_children()
    uploads: UploadProcesses | None = None
    options, fds = [f"--server-fd={args.server_fd}"], [args.server_fd]
    if args.uploads:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        uploads = UploadProcesses(ours, json.loads(args.uploads), args.log_fd)
        options.append(f"--reaper-fd={theirs.fileno()}")
        fds.append(theirs.detach())
    try:
        process, cgroup = _start(args.module, options, fds, args.sandbox, args.profiler == 1)
    except sandboxed.CannotStart as error:
        _report(control, {"status": 1, "over_memory": False, "left": [], "trouble": str(error)})
        return
    for fd in fds:
        os.close(fd)
    if uploads is not None:
        uploads.start_ahead(json.loads(args.ahead))
    watcher = _Watcher(process, control, ends, args.memory_bytes, cgroup, uploads)
    reason = watcher.wait()
    status = watcher.status
    if status is None:
        status = end_children(process.pid, gracefully=reason == "stop")
    else:
        end_children(process.pid, gracefully=False)
    process.returncode = status
    report: ReaperReport = {
        "status": sandboxed.status_inside(status) if args.sandbox else status,
        "over_memory": reason == "memory" or _ran_out(cgroup),
        "left": sorted(process_tree.descendants(os.getpid())),
        "trouble": "",
    }
    if cgroup is not None:
        cgroup.remove()
    if uploads is not None:
        uploads.close()
    temporary.sweep()
    _report(control, report)


def _ends_of_children() -> socket.socket:
    """A socket that becomes readable when a child of this process ends."""
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    return reading


def _report(control: socket.socket, report: ReaperReport) -> None:
    with contextlib.suppress(OSError):  # the server has gone
        control.sendall(json.dumps(report).encode())


def _start(
    module: str, options: Sequence[str], fds: Sequence[int], launch: str, profiler: bool
) -> tuple[subprocess.Popen[bytes], Cgroup | None]:
    if launch:
        started = sandboxed.start(json.loads(launch), module, options, fds, profiler=profiler)
        return started.process, started.cgroup
    process = subprocess.Popen(  # nosec B603
        [sys.executable, "-P", "-m", module, f"--parent={os.getpid()}", *options],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    return process, None


class _Watcher:
    """Waits until the job's process has ended or must be ended.

    Attributes:
        status: the exit status of the job's process; None while it runs.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        ends: socket.socket,
        memory_bytes: int,
        cgroup: Cgroup | None,
        uploads: UploadProcesses | None,
    ) -> None:
        self.status: int | None = None
        self._pid = process.pid
        self._control = control
        self._ends = ends
        self._memory_bytes = memory_bytes
        self._cgroup = cgroup
        self._uploads = uploads

    def wait(self) -> Literal["ended", "stop", "lost", "memory"]:
        """Wait, serve requests for upload processes meanwhile, and return why it must be ended."""
        check_at = time.monotonic() + MEMORY_POLL_S
        while True:
            timeout_s = max(0.0, check_at - time.monotonic())
            sources: list[Any] = [self._control, self._ends]
            if self._uploads is not None:
                sources.append(self._uploads)
                timeout_s = min(timeout_s, self._uploads.next_poll_s(timeout_s))
            ready, _, _ = select.select(sources, [], [], timeout_s)
            if self._control in ready:
                return "stop" if _received(self._control) else "lost"
            with contextlib.suppress(BlockingIOError):
                self._ends.recv(4096)
            self._reap()
            if self.status is not None:
                return "ended"
            if self._uploads is not None:
                if self._uploads in ready and not self._uploads.receive():
                    self._uploads = None  # the job's process is about to end
                else:
                    self._uploads.advance()
            if time.monotonic() >= check_at:
                if self._exceeds_memory():
                    return "memory"
                check_at = time.monotonic() + MEMORY_POLL_S

    def _reap(self) -> None:
        """Wait for all children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (gone := os.waitpid(-1, os.WNOHANG))[0]:
                status = os.waitstatus_to_exitcode(gone[1])
                if gone[0] == self._pid:
                    self.status = status
                elif self._uploads is not None:
                    self._uploads.reaped(gone[0], status)

    def _exceeds_memory(self) -> bool:
        """Whether the job must be ended, because no upload process alone takes most of the memory."""
        if self._uploads is not None:
            self._uploads.end_without_memory()
        all_pids = process_tree.descendants(os.getpid())
        if _ran_out(self._cgroup):
            return True
        if not process_tree.exceeds_memory(all_pids, self._memory_bytes):
            return False
        return self._uploads is None or not self._uploads.end_largest(self._memory_bytes // 2)


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
                    # The others run for this one, or were left behind by it.
                    terminate_until = min(terminate_until, time.monotonic())
        except ChildProcessError:  # there are no more
            break
        if time.monotonic() >= terminate_until:
            process_tree.send(process_tree.descendants(os.getpid()), signal.SIGKILL)
        time.sleep(process_tree.POLL_S)
    return status


if __name__ == "__main__":
    main()
