"""What the kernel says of the time of threads: how long they ran, and waited for a CPU."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple


class ThreadTimes(NamedTuple):
    """Times of a thread so far, in us; 0 where the kernel does not count them."""

    ran_us: float
    waited_us: float


def times_of(pid: int | str, thread: int) -> ThreadTimes:
    """The times of one thread of a process."""
    with contextlib.suppress(OSError, IndexError, ValueError):  # not every kernel has this file
        ran, waited, *_ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
        return ThreadTimes(int(ran) / 1000, int(waited) / 1000)
    return ThreadTimes(0.0, 0.0)


class Usage(NamedTuple):
    """Times so far of what takes part in a sample on a CPU.

    Attributes:
        ours: of the thread that measures.
        main: of the main thread of the process with uploaded code.
        all_us: that all threads of all its processes ran, in us.
    """

    ours: ThreadTimes
    main: ThreadTimes
    all_us: float


def late(before: Usage, answered: Usage, stopped: Usage) -> float:
    """How much later an answer came because others used the machine, in us.

    A thread that waited while the upload used the CPU does not count: one of its threads could let
    another wait while a third one computes.

    Args:
        before: when the request was sent.
        answered: when the answer was received.
        stopped: when no thread of the upload ran any more. Only then the kernel has counted all.
    """
    ran_us = stopped.all_us - before.all_us
    others_us = max(0.0, ran_us - (stopped.main.ran_us - before.main.ran_us))
    ours_us = answered.ours.waited_us - before.ours.waited_us
    main_us = answered.main.waited_us - before.main.waited_us
    return max(0.0, ours_us - ran_us) + max(0.0, main_us - others_us)
