from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.suspended import suspend, suspended
from tests.waiting import until

CPU = min(os.sched_getaffinity(0))

# The first thread, which gets the signal, has the lowest priority on a CPU that another process
# keeps busy. The second one counts.
COUNTING = f"""
import os, threading, time

def count():
    for n in range(10 ** 9):
        os.pwrite(1, b"%09d" % n, 0)
        time.sleep(0.001)

threading.Thread(target=count, daemon=True).start()
os.sched_setaffinity(os.getpid(), {{{CPU}}})
os.sched_setscheduler(os.getpid(), os.SCHED_IDLE, os.sched_param(0))
time.sleep(1000)
"""
BUSY = f"import os; os.sched_setaffinity(0, {{{CPU}}})\nwhile True: pass"


class Counting:
    """A process of two threads, the second of which counts."""

    def __init__(self, count: int) -> None:
        self._fd = count
        self.child = subprocess.Popen([sys.executable, "-c", COUNTING], stdout=count)
        self.process = psutil.Process(self.child.pid)

    def count(self) -> int:
        return int(os.pread(self._fd, 9, 0) or 0)

    def wait(self, count: int) -> None:
        """Wait until it has counted further than that."""
        until(lambda: self.count() > count)


@pytest.fixture
def counting() -> Iterator[Counting]:
    count = os.memfd_create("count")
    busy, found = subprocess.Popen([sys.executable, "-c", BUSY]), Counting(count)
    try:
        found.wait(10)
        yield found
    finally:
        for child in (busy, found.child):
            child.kill()
            child.wait()
        os.close(count)


def test_no_thread_of_a_suspended_process_goes_on(counting: Counting) -> None:
    for _ in range(10):
        with suspended(counting.process):
            before = counting.count()
            time.sleep(0.05)
            assert counting.count() == before
        counting.wait(before)


def test_a_process_that_has_ended_can_be_suspended(counting: Counting) -> None:
    process = counting.process
    process.kill()
    until(lambda: process.status() == psutil.STATUS_ZOMBIE)

    suspend(process)
    counting.child.wait()
    with suspended(process):
        pass
