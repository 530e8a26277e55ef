"""Finds and ends the processes of a job, also those whose parents have ended."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from warpcall_bench.runs.messages import TAG_VARIABLE

TERMINATE_S = 2.0  # between SIGTERM and SIGKILL
KILL_S = 5.0  # a killed process that still exists then cannot be ended by the kernel
POLL_S = 0.02
TAG_WITHIN_BYTES = 64 << 10  # of an environment: a search must not read megabytes of each process
STAT_BYTES = 1024  # more than a process's `stat` has
CPUCLOCK_SCHED = 2  # of the id of a process's clock, as clock_getcpuclockid(3) makes it
_PROC = Path("/proc")


def tagged(tag: str, pids: Iterable[int] | None = None) -> list[int]:
    """Those of these processes whose tag begins with `tag`; None means all of the machine.

    Processes inherit the tag in their environment, of which only the beginning is read. Code that
    was uploaded can give a process another environment, so this finds no process that hides.
    """
    wanted = f"{TAG_VARIABLE}={tag}".encode()
    found = []
    for pid in _pids() if pids is None else pids:
        # The process has ended, or belongs to another user. Other errors must be raised: without
        # a free descriptor for this file, a running process would count as ended.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            with (_PROC / str(pid) / "environ").open("rb", buffering=0) as file:
                environment = file.read(TAG_WITHIN_BYTES)  # a zombie has none
            if any(entry.startswith(wanted) for entry in environment.split(b"\0")):
                found.append(pid)
    return found


def descendants(root: int) -> list[int]:
    """Ids of processes that descend from `root`, without zombies, each before its children."""
    children, zombies = defaultdict[int, list[int]](list), set[int]()
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            state, parent = _state_and_parent(pid)
            children[parent].append(pid)
            if state in b"ZX":
                zombies.add(pid)
    found = [root]
    for pid in found:  # it grows meanwhile
        found += children.pop(pid, ())
    return [pid for pid in found[1:] if pid not in zombies]


def below(root: int) -> set[int]:
    """Ids of processes that descend from `root`, perhaps with zombies.

    Where the kernel lists the children of a process (CONFIG_PROC_CHILDREN), only these processes
    are read, and not all of the machine as in `descendants`.
    """
    if not _lists_children():
        return {*descendants(root)}
    found, waiting = set[int](), [root]
    while waiting:
        task = f"/proc/{waiting.pop()}/task"
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(task):  # noqa: PTH208  # faster
                with contextlib.suppress(OSError):
                    with open(f"{task}/{thread}/children", "rb") as file:  # noqa: PTH123  # faster
                        children = {*map(int, file.read().split())}
                    waiting += children - found
                    found |= children
    return found


@functools.cache
def _lists_children() -> bool:
    return (_PROC / f"self/task/{os.getpid()}/children").exists()


def _state_and_parent(pid: int) -> tuple[bytes, int]:
    """The state and the parent of a process.

    A search reads this of each process of the machine, and a job searches for each sample. With a file
    of Python, or a path of pathlib, a search would take three times as long.
    """
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, STAT_BYTES)
    finally:
        os.close(fd)
    state, parent = text[text.rindex(b")") + 2 :].split(None, 2)[:2]
    return state, int(parent)


def runs(pid: int) -> bool:
    """Whether a thread of a process is neither stopped nor ended."""
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            with open(f"{_PROC}/{pid}/task/{thread}/stat", "rb") as file:  # noqa: PTH123  # faster
                text = file.read()
            if text[text.rindex(b")") + 2 :][:1] not in b"TtZX":
                return True
    return False


def cpu_us(pid: int) -> float:
    """The CPU time in us of all threads of a process so far, also of those that have ended."""
    with contextlib.suppress(OSError):  # it has ended
        return time.clock_gettime_ns((~pid << 3) | CPUCLOCK_SCHED) / 1000
    return 0.0


def _threads(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(f"{_PROC}/{pid}/task")  # noqa: PTH208  # faster
    return []


def exceeds_memory(pids: Collection[int], nbytes: int) -> bool:
    """Whether these processes together use more memory than `nbytes`."""
    if sum(_sum_kb(pid, "status", ("RssAnon:", "RssShmem:")) for pid in pids) << 10 <= nbytes:
        return False
    # Memory that forks share was counted for each of them. The exact sum stops a process for
    # milliseconds, so it is read only now.
    return (
        sum(_sum_kb(pid, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for pid in pids) << 10
        > nbytes
    )


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those processes that still exist, in their order.

    If a process is killed before its children, it cannot see their end and act on it.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_tagged(tag: str, root: int | None = None) -> set[int]:
    """Kill all processes with this tag, and return those that still exist after KILL_S.

    It is for processes that have lost their reaper, and for some of the processes below a living
    one. A reaper ends all that descend from it without looking at their environments.

    Args:
        root: only what descends from this process is searched; None means the whole machine.
    """
    deadline = time.monotonic() + KILL_S
    while left := tagged(tag, None if root is None else descendants(root)):
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            return {*left}
        time.sleep(POLL_S)
    return set()


def kill_left(pids: Iterable[int]) -> set[int]:
    """Kill processes that a reaper could not end, and return those that still exist after KILL_S."""
    with contextlib.ExitStack() as opened:
        waiting = dict[int, int]()  # ids by descriptors, which cannot mean another process later
        ends = select.poll()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                opened.callback(os.close, fd)
                ends.register(fd, select.POLLIN)
                waiting[fd] = pid
        deadline = time.monotonic() + KILL_S
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for fd in waiting:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            for fd, _ in ends.poll(1000 * left_s):
                ends.unregister(fd)
                del waiting[fd]
        return {*waiting.values()}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208  # faster


def _sum_kb(pid: int, file: str, lines: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError):
        text = (_PROC / str(pid) / file).read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(lines))
    return 0
