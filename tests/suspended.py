"""Processes that stand still: they take whatever they are sent, and do nothing with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.waiting import until

STANDING_STILL = "TtZX"  # stopped, stopped by a tracer, ended and not waited for, ended


def suspend(process: psutil.Process) -> None:
    """Suspend a process, and wait until all its threads stand still.

    One thread gets the signal, and the kernel stops the others only once that one takes it. If all
    CPUs are busy, the others run for many milliseconds until then.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    process.suspend()
    _wait_for_threads(process)


@contextmanager
def suspended(*processes: psutil.Process) -> Iterator[None]:
    """Let processes stand still; it does not matter if some end, before or meanwhile."""
    try:
        for process in processes:  # all before the first wait: some may need an answer of others
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in processes:
            _wait_for_threads(process)
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def _wait_for_threads(process: psutil.Process) -> None:
    until(
        lambda: all(state in STANDING_STILL for state in _states(process)),
        "the process does not stand still",
    )


def _states(process: psutil.Process) -> list[str]:
    """The state of each thread as one letter: see proc_pid_stat(5)."""
    found = []
    for stat in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        with suppress(OSError):  # this thread has ended
            found.append(stat.read_text().rpartition(")")[2].split()[0])
    return found
