"""The upload processes of a job, as its reaper starts and ends them.

An upload process runs one uploaded implementation, a problem, or the profile of one of these. With
`uploads=sandboxed` each has a sandbox of its own. That of the recorder of a verified upload shows no GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess  # nosec B404
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from warpcall_bench.runs import process_tree, sandboxed
from warpcall_bench.runs.cgroups import Cgroup
from warpcall_bench.runs.messages import (
    PROFILE_MODULE,
    RECORD_MODULE,
    REQUEST_BYTES,
    TAG_VARIABLE,
    EndUpload,
    Launch,
    StartUpload,
    UploadEnded,
    UploadLaunch,
    UploadStarted,
)

MOST_FDS = 2  # of a request: a socket, and a pipe for what the process prints


@dataclass
class _Process:
    """One upload process.

    Attributes:
        child: the reaper's own child: bubblewrap, or the process itself without a sandbox.
        root: as in `UploadStarted`.
        root_fd: a descriptor of that process, readable once it has ended.
        status: of `child` if it ended by itself; None before.
        reaped: whether `child` has ended.
        end_at: when it is killed; None if nobody requested its end. `give_up_at` likewise.
    """

    number: int
    child: subprocess.Popen[bytes]
    root: int
    root_fd: int
    tag: str
    cgroup: Cgroup | None
    status: int | None = None
    reaped: bool = False
    killed: bool = False
    out_of_memory: bool = False
    end_at: float | None = None
    give_up_at: float | None = None


class UploadProcesses:
    """Starts and ends upload processes as the job's process requests it.

    Args:
        requests: the reaper's end of the socket to the job's process.
        launch: None if the job may start none.
        log_fd: where those write what they print for which the job's process does not ask.
    """

    def __init__(self, requests: socket.socket, launch: UploadLaunch | None, log_fd: int) -> None:
        self._requests = requests
        self._launch = launch
        self._log_fd = log_fd
        self._processes: dict[int, _Process] = {}
        self._in_sandbox = launch is not None and launch["sandbox"] is not None

    def fileno(self) -> int:
        """The descriptor of the socket with the requests."""
        return self._requests.fileno()

    def receive(self) -> bool:
        """Receive the next request; returns False if the job's process has ended."""
        try:
            text, fds, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES, MOST_FDS)
        except OSError:
            return False
        if not text:
            return False
        request: StartUpload | EndUpload = json.loads(text)
        try:
            if "start" in request:
                self._answer(self._start(cast("StartUpload", request), *fds))
            else:
                self._request_end(request)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def reaped(self, pid: int, status: int) -> None:
        """A child of the reaper has ended, perhaps none of these."""
        for process in self._processes.values():
            if process.child.pid == pid and not process.reaped:
                process.reaped = True
                process.child.returncode = status  # it would otherwise be waited for once more
                if not process.killed:
                    process.status = status
                    _kill(process)  # what it has left behind

    def advance(self) -> None:
        """Kill processes whose time is over, and answer requests whose processes have ended."""
        now = time.monotonic()
        for process in [*self._processes.values()]:
            if process.end_at is None or process.give_up_at is None:
                continue
            if now >= process.end_at and not process.reaped:
                _kill(process)
            gone = process.reaped and _has_ended(process.root_fd)
            if gone and not self._in_sandbox:
                gone = not process_tree.kill_tagged(process.tag, os.getpid())
            if gone or now >= process.give_up_at:
                self._finish(process, left=not gone)

    def next_poll_s(self, otherwise_s: float) -> float:
        """Seconds after which `advance` must be called again."""
        ending = any(process.end_at is not None for process in self._processes.values())
        return process_tree.POLL_S if ending else otherwise_s

    def end_without_memory(self) -> None:
        """Kill those of which the kernel has killed a process because of its group's limit."""
        for process in self._processes.values():
            if not process.killed and process.cgroup and process.cgroup.ran_out_of_memory():
                process.out_of_memory = True
                _kill(process)

    def end_largest(self, nbytes: int) -> bool:
        """Kill those that use more memory than `nbytes`, and return whether there are some."""
        found = False
        for process in self._processes.values():
            if process.killed:
                continue
            pids = [process.root, *process_tree.descendants(process.root)]
            if process_tree.exceeds_memory(pids, nbytes):
                process.out_of_memory = found = True
                _kill(process)
        return found

    def close(self) -> None:
        """Remove the control groups, once all processes have ended."""
        for process in self._processes.values():
            process.child.returncode = process.child.returncode or 0
            if process.cgroup is not None:
                process.cgroup.remove()

    def _start(self, request: StartUpload, fd: int, prints_fd: int | None = None) -> UploadStarted:
        number, module = request["start"], request["module"]
        tag = f"{os.environ.get(TAG_VARIABLE, '')}/upload-{number}."
        failed: UploadStarted = {"root": 0, "processes": "", "bubblewrap": [], "trouble": ""}
        try:
            output_fd = self._log_fd if prints_fd is None else prints_fd
            process = self._started(number, module, fd, output_fd, tag)
        except (sandboxed.CannotStart, OSError) as error:
            return {**failed, "trouble": str(error)}
        self._processes[number] = process
        bubblewrap = [process.child.pid, process.root] if self._in_sandbox else []
        return {
            "root": process.root,
            "processes": process.cgroup.list_of_processes if process.cgroup else "",
            "bubblewrap": bubblewrap,
            "trouble": "",
        }

    def _started(self, number: int, module: str, fd: int, output_fd: int, tag: str) -> _Process:
        launch = self._launch
        if launch is None:
            raise sandboxed.CannotStart("the job was started without uploads")
        records = module == RECORD_MODULE
        device = "cpu" if records else launch["device"]
        options = [f"--server-fd={fd}", f"--device={device}"]
        options += [f"--threads={launch['threads']}", f"--memory-bytes={launch['memory_bytes']}"]
        sandbox = launch["without_gpu"] if records else launch["sandbox"]
        if not self._in_sandbox:
            child = subprocess.Popen(  # nosec B603
                [sys.executable, "-P", "-m", module, f"--parent={os.getpid()}", *options],
                pass_fds=(fd,),
                env={**os.environ, **launch["environment"], TAG_VARIABLE: tag},
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
                start_new_session=True,
            )
            return _Process(number, child, child.pid, os.pidfd_open(child.pid), tag, None)
        if sandbox is None:
            raise sandboxed.CannotStart("the job was started without verified uploads")
        profiler = launch["profiler"] and module == PROFILE_MODULE
        started = sandboxed.start(
            *(_with_variables(sandbox, launch["environment"]), module, options),
            *([fd], output_fd, output_fd),
            gpu=device != "cpu",
            profiler=profiler,
        )
        root = started.init or started.process.pid
        try:
            root_fd = os.pidfd_open(root)
        except ProcessLookupError:
            root_fd = os.pidfd_open(started.process.pid)  # a zombie has one, too
        return _Process(number, started.process, root, root_fd, tag, started.cgroup)

    def _request_end(self, request: EndUpload) -> None:
        process = self._processes[request["end"]]
        now = time.monotonic()
        # One that has ended by itself is not killed, so that its exit status is known.
        waits = request["ended"] and not process.killed
        process.end_at = now + (process_tree.KILL_S if waits else 0.0)
        process.give_up_at = process.end_at + process_tree.KILL_S

    def _finish(self, process: _Process, *, left: bool) -> None:
        del self._processes[process.number]
        os.close(process.root_fd)
        if process.cgroup is not None:
            process.out_of_memory |= process.cgroup.ran_out_of_memory()
            process.cgroup.remove()
        status = process.status
        if status is not None and self._in_sandbox:
            status = sandboxed.status_inside(status)
        self._answer({"status": status, "out_of_memory": process.out_of_memory, "left": left})

    def _answer(self, answer: UploadStarted | UploadEnded) -> None:
        with contextlib.suppress(OSError):  # the job's process has ended
            self._requests.sendall(json.dumps(answer).encode())


def _with_variables(sandbox: Launch, environment: Mapping[str, str]) -> Launch:
    """A sandbox with further variables in its environment."""
    variables = [part for pair in environment.items() for part in ("--setenv", *pair)]
    return {**sandbox, "arguments": [*sandbox["arguments"], *variables]}


def _kill(process: _Process) -> None:
    """Kill a process and all that descend from it. In a sandbox they end with its first one."""
    process.killed = True
    if not process.reaped:
        pids = [process.child.pid]
        if process.root == process.child.pid:
            pids += process_tree.descendants(process.root)
        process_tree.send(pids, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process.root_fd, signal.SIGKILL)


def _has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])
