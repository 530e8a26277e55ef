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
from collections.abc import Mapping, Sequence
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
WAITING_MODULE = "warpcall_bench.runs.descriptors"


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


@dataclass(frozen=True)
class _Waiting:
    """A process that imports what its module needs, and then waits for its descriptors on `sock`."""

    module: str
    sock: socket.socket
    process: _Process


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
        self._waiting: list[_Waiting] = []
        self._in_sandbox = launch is not None and launch["sandbox"] is not None

    def fileno(self) -> int:
        """The descriptor of the socket with the requests."""
        return self._requests.fileno()

    def start_ahead(self, modules: Sequence[str]) -> None:
        """Start a process for each of these modules, before the job's process requests it.

        If one cannot be started, the request for it will say why.
        """
        for number, module in enumerate(modules):
            tag = f"{os.environ.get(TAG_VARIABLE, '')}/ahead-{number}."
            ours, theirs = socket.socketpair()
            with theirs, contextlib.suppress(sandboxed.CannotStart, OSError):
                process = self._started(module, theirs.fileno(), self._log_fd, tag, waits=True)
                self._waiting.append(_Waiting(module, ours, process))
                continue
            ours.close()

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
        for process in (*self._processes.values(), *(one.process for one in self._waiting)):
            if process.child.pid == pid and not process.reaped:
                process.reaped = True
                process.child.returncode = status  # it would otherwise be waited for once more
                if not process.killed:
                    process.status = status
                    _kill(process)  # what it has left behind

    def advance(self) -> None:
        """Kill processes whose time is over, and answer requests whose processes have ended."""
        now = time.monotonic()
        for number, process in [*self._processes.items()]:
            if process.end_at is None or process.give_up_at is None:
                continue
            if now >= process.end_at and not process.reaped:
                _kill(process)
            gone = process.reaped and _has_ended(process.root_fd)
            if gone and not self._in_sandbox:
                gone = not process_tree.kill_tagged(process.tag, os.getpid())
            if gone or now >= process.give_up_at:
                self._finish(number, left=not gone)

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
        """Kill those that use more memory than `nbytes`, and return whether there are some.

        Those that wait are ended first, whatever they use. What they held may be enough, so the others
        are left until the memory has been read again.
        """
        if self._waiting:
            while self._waiting:
                self._drop(self._waiting.pop())
            return True
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
        for process in (*self._processes.values(), *(one.process for one in self._waiting)):
            process.child.returncode = process.child.returncode or 0
            if process.cgroup is not None:
                process.cgroup.remove()

    def _start(self, request: StartUpload, fd: int, prints_fd: int | None = None) -> UploadStarted:
        number, module = request["start"], request["module"]
        output_fd = self._log_fd if prints_fd is None else prints_fd
        process = self._handed_over(module, fd, output_fd)
        if process is None:
            tag = f"{os.environ.get(TAG_VARIABLE, '')}/upload-{number}."
            try:
                process = self._started(module, fd, output_fd, tag)
            except (sandboxed.CannotStart, OSError) as error:
                return {"root": 0, "processes": "", "bubblewrap": [], "trouble": str(error)}
        self._processes[number] = process
        bubblewrap = [process.child.pid, process.root] if self._in_sandbox else []
        return {
            "root": process.root,
            "processes": process.cgroup.list_of_processes if process.cgroup else "",
            "bubblewrap": bubblewrap,
            "trouble": "",
        }

    def _handed_over(self, module: str, fd: int, output_fd: int) -> _Process | None:
        """A process that waited for this module, with its descriptors; None if there is none."""
        for waiting in [one for one in self._waiting if one.module == module]:
            self._waiting.remove(waiting)
            with waiting.sock, contextlib.suppress(OSError):
                if not waiting.process.reaped:
                    socket.send_fds(waiting.sock, [b"!"], [fd, output_fd])
                    return waiting.process
            self._drop(waiting)
        return None

    def _drop(self, waiting: _Waiting) -> None:
        """End a process that waits."""
        waiting.sock.close()
        _kill(waiting.process)
        os.close(waiting.process.root_fd)
        if waiting.process.cgroup is not None:
            waiting.process.cgroup.remove()

    def _started(
        self, module: str, fd: int, output_fd: int, tag: str, *, waits: bool = False
    ) -> _Process:
        """Start a process.

        Args:
            fd: its socket to the job's process; if it `waits`, the one on which it gets that.
        """
        launch = self._launch
        if launch is None:
            raise sandboxed.CannotStart("the job was started without uploads")
        records = module == RECORD_MODULE
        device = "cpu" if records else launch["device"]
        options = [f"--device={device}", f"--threads={launch['threads']}"]
        options += [f"--memory-bytes={launch['memory_bytes']}"]
        options += [] if waits else [f"--server-fd={fd}"]
        sandbox = launch["without_gpu"] if records else launch["sandbox"]
        if not self._in_sandbox:
            run = [WAITING_MODULE, f"--wait-fd={fd}", module] if waits else [module]
            child = subprocess.Popen(  # nosec B603
                [sys.executable, "-P", "-m", *run, f"--parent={os.getpid()}", *options],
                pass_fds=(fd,),
                env={**os.environ, **launch["environment"], TAG_VARIABLE: tag},
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
                start_new_session=True,
            )
            return _Process(child, child.pid, os.pidfd_open(child.pid), tag, None)
        if sandbox is None:
            raise sandboxed.CannotStart("the job was started without verified uploads")
        profiler = launch["profiler"] and module == PROFILE_MODULE
        started = sandboxed.start(
            *(_with_variables(sandbox, launch["environment"]), module, options),
            *([fd], output_fd, output_fd),
            gpu=device != "cpu",
            profiler=profiler,
            wait_fd=fd if waits else None,
        )
        root = started.init or started.process.pid
        try:
            root_fd = os.pidfd_open(root)
        except ProcessLookupError:
            root_fd = os.pidfd_open(started.process.pid)  # a zombie has one, too
        return _Process(started.process, root, root_fd, tag, started.cgroup)

    def _request_end(self, request: EndUpload) -> None:
        process = self._processes[request["end"]]
        now = time.monotonic()
        # One that has ended by itself is not killed, so that its exit status is known.
        waits = request["ended"] and not process.killed
        process.end_at = now + (process_tree.KILL_S if waits else 0.0)
        process.give_up_at = process.end_at + process_tree.KILL_S

    def _finish(self, number: int, *, left: bool) -> None:
        process = self._processes.pop(number)
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
