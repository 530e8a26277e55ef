"""Runs `programs.profiled` for a job's process, alone or under a profiler, with time limits."""

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from warpcall_bench.profilers.messages import SOCKET, TASK, ChildTask
from warpcall_bench.runs import process_tree
from warpcall_service.lanes.messages import frame, read_frame

if TYPE_CHECKING:
    from warpcall_bench.runs.messages import Task

CHILD_MODULE = "warpcall_bench.programs.profiled"
END_S = 5.0  # in which the child ends after its last call
POLL_S = 0.1
MAX_LOG_BYTES = 64 << 10  # of what a profiler prints that are read

Lease = Callable[[], AbstractContextManager[object]]


class NoProfile(Exception):
    """There is no profile. The message says why, for readers."""


class ProfileLimits(NamedTuple):
    """What a profile may take.

    Attributes:
        seconds: from the start of the child to the last of the profile's files.
        call_s: seconds of them for which its call may keep the device.
        nbytes: size of its largest file.
    """

    seconds: float
    call_s: float
    nbytes: int


class Ended(NamedTuple):
    """How a child, or the profiler that started it, ended.

    Attributes:
        error: what went wrong, for readers; empty if nothing is known to be wrong.
        status: exit status, negative for a signal.
        printed: the beginning of what the profiler printed.
    """

    error: str
    status: int
    printed: str


def task_of_job(task: Task, position: int, name: str, *, reports: bool) -> ChildTask:
    """The child's task for an implementation of a job in one of its cases."""
    wanted = task["profile"]
    assert wanted is not None
    return {
        "device": task["device"],
        "modules": task["modules"],
        "uploads": [one for one in task["uploads"] if one["name"] == name],
        "problem": task["problem"],
        "op": task["op"],
        "seed": task["seed"] + position,
        "spec": next(spec for number, spec, _ in wanted["cases"] if number == position),
        "implementation": name,
        "reports": reports,
    }


def run_child(
    profiler: Sequence[str],
    task: ChildTask,
    folder: Path,
    limits: ProfileLimits,
    lease: Lease,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run the child, and wait until it has ended.

    Args:
        profiler: command that starts the child's; empty if there is none.
        folder: for temporary files, of the child as well.
        lease: entered while the call is profiled.
        environment: variables of the child beside those of this process.

    Raises:
        NoProfile: the profiler could not be started.
    """
    until = time.monotonic() + limits.seconds
    (folder / TASK).write_text(json.dumps(task))
    log = folder / "log"
    command = [*profiler, sys.executable, "-P", "-m", CHILD_MODULE, str(folder)]
    with socket.socket(socket.AF_UNIX) as listener, log.open("wb") as output:
        listener.bind(str(folder / SOCKET))
        listener.listen(1)
        process = _started(command, output, folder, environment or {})
        try:
            error = _follow(process, listener, until, limits, lease)
        finally:
            _kill(process)
    with log.open("rb") as file:
        printed = file.read(MAX_LOG_BYTES).decode(errors="replace")
    return Ended(error, process.returncode, printed)


def _started(
    command: Sequence[str], output: IO[bytes], folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the profiler. It has its lock and its temporary files in the folder: users of a machine
    cannot share those in /tmp.
    """
    try:
        return subprocess.Popen(  # nosec B603
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment, "TMPDIR": str(folder)},
            start_new_session=True,
        )
    except OSError as error:
        raise NoProfile(f"the profiler could not be started: {error}") from None


def _follow(
    process: subprocess.Popen[bytes],
    listener: socket.socket,
    until: float,
    limits: ProfileLimits,
    lease: Lease,
) -> str:
    """Lead the child through its calls until the profiler has ended; returns what went wrong."""
    child = _accepted(process, listener, until)
    if child is None:
        return "" if process.poll() is not None else _late(limits.seconds)
    with child:
        error = _awaited(child, "ready", until, _late(limits.seconds))
        if not error:
            asked = time.monotonic()
            with lease():
                until += time.monotonic() - asked  # jobs to which this one gave way take none of it
                child.sendall(frame({"go": True}))
                call_until = min(until, time.monotonic() + limits.call_s)
                late = f"its call was not profiled within {limits.call_s:g} s"
                error = _awaited(child, "done", call_until, late)
                if error == late:
                    _kill(process)  # before others use the device
        if not error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(END_S, max(0.0, until - time.monotonic())))
    # The end of the connection ends the child, and that ends the profiler. After an error, too, it may
    # have something to write: compute-sanitizer says then what the child did before.
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return error or _late(limits.seconds)
    return error


def _late(limit_s: float) -> str:
    return f"the profiler was not done within {limit_s:g} s"


def _accepted(
    process: subprocess.Popen[bytes], listener: socket.socket, until: float
) -> socket.socket | None:
    """The connection of the child; None if the profiler ends or the time is over before it."""
    while time.monotonic() < until:
        if select.select([listener], [], [], POLL_S)[0]:
            return listener.accept()[0]
        if process.poll() is not None:
            return None
    return None


def _awaited(child: socket.socket, wanted: str, until: float, late: str) -> str:
    """Wait for a frame of the child; returns an error if another one comes, or none in time.

    A child that ends without one gives an empty frame, and the profiler's output says why.
    """
    child.settimeout(max(0.01, until - time.monotonic()))
    try:
        text = read_frame(child)
        found: Any = {} if text is None else json.loads(text)
    except TimeoutError:
        return late
    except (OSError, ValueError):
        found = {}
    if isinstance(found, dict) and found.get(wanted) is True:
        return ""
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, str) and error else "its process ended early"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the profiler and all that it has started."""
    if process.poll() is None:
        process_tree.send([process.pid, *process_tree.descendants(process.pid)], signal.SIGKILL)
        process.wait()
