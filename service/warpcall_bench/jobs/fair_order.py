"""The order in which jobs run: fair to users, with short jobs first as far as that is fair.

Each user has a virtual time in microseconds: the device time that they received, added to the clock
of the queue. The start of a job in virtual time is its user's time, or the clock's time when the
job was submitted if that is later, so that an idle user accumulates no advantage. The job ends
after its cost. Of the users' next jobs, the one that would *end* first runs first. The clock is the
least start among the jobs that could run. It follows that while a job is its user's next one, no
other user receives more time than this job itself takes:

- A short job waits less than its own duration for each other user.
- A long job waits for the jobs that run already, and then at most its own duration for each other
  user, however many short jobs they submit. It needs no aging.

These bounds are in estimated costs. The actual duration replaces the estimate when a job ends. A
running job waits while a short one of another user runs who has received less (`queue.GivesWay`).
Jobs that it does not wait for start once a device is free.
Priorities come before all this: jobs of a lower priority start only when none of a higher priority
can.

Ordering by virtual end is fair queueing as in Demers, Keshav and Shenker (SIGCOMM 1989). The clock
is that of Linux's fair scheduler (`min_vruntime`). `lanes/fair_queue.py` orders calls by virtual
start (start-time fair queueing). For jobs, that would let the first long job of each user run
before any user's second short job. docs/benchmarking.md compares both in a simulation. All state is
in the database, so that a restart changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits.

    Attributes:
        priority: jobs of 0 run before those of 1.
        since_us: virtual time of the clock when the job was submitted.
        cost_us: estimated device time.
    """

    number: int
    user: str
    priority: int
    since_us: int
    cost_us: int


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job and the virtual time at which it starts."""

    entry: QueuedJob
    start_us: int

    @property
    def end_us(self) -> int:
        """The virtual time of the job's user after this job."""
        return self.start_us + self.entry.cost_us


def in_order(entries: Iterable[QueuedJob], ends_us: Mapping[str, int]) -> Iterator[ScheduledJob]:
    """All jobs that wait, in the order in which they should start.

    Args:
        ends_us: virtual time of each user: the end of the last job that they started.
    """
    ends = dict(ends_us)
    queues: dict[int, dict[str, list[QueuedJob]]] = {}
    for entry in sorted(entries, key=lambda entry: -entry.number):
        queues.setdefault(entry.priority, {}).setdefault(entry.user, []).append(entry)
    for priority in sorted(queues):
        heads = [_next_of(user_queue, ends) for user_queue in queues[priority].values()]
        heapq.heapify(heads)
        while heads:
            scheduled = heads[0][-1]
            entry = scheduled.entry
            yield scheduled
            ends[entry.user] = scheduled.end_us
            user_queue = queues[priority][entry.user]
            user_queue.pop()
            if user_queue:
                heapq.heapreplace(heads, _next_of(user_queue, ends))
            else:
                heapq.heappop(heads)


def forecast(estimates_s: Sequence[float], free_in_s: Iterable[float]) -> list[tuple[float, float]]:
    """When jobs in this order start and end, in seconds from now.

    Args:
        estimates_s: estimated duration of each job.
        free_in_s: for each device, when its present job is expected to end.
    """
    free = list(free_in_s) or [0.0]
    heapq.heapify(free)
    times = []
    for estimate_s in estimates_s:
        begin_s = free[0]
        times.append((begin_s, begin_s + estimate_s))
        heapq.heapreplace(free, begin_s + estimate_s)
    return times


def virtual_time_us(entries: Iterable[QueuedJob], ends_us: Mapping[str, int], priority: int) -> int:
    """The clock's virtual time when a job starts: the least start of the users' next jobs.

    Args:
        entries: all jobs that wait, including the one that starts.
        ends_us: as for `in_order`.
        priority: priority of the job that starts. Jobs of other priorities do not count. Otherwise
            a job of a low priority that waits for hours would hold the clock back, and a user who
            comes then would receive these hours.
    """
    first: dict[str, QueuedJob] = {}
    for entry in entries:
        if entry.priority == priority:
            known = first.setdefault(entry.user, entry)
            first[entry.user] = min(known, entry, key=lambda one: one.number)
    return min(max(entry.since_us, ends_us.get(user, 0)) for user, entry in first.items())


def _next_of(user_queue: list[QueuedJob], ends: Mapping[str, int]) -> tuple[int, int, ScheduledJob]:
    """A user's next job as an item of the heap, which orders by virtual end, then by age."""
    entry = user_queue[-1]
    scheduled = ScheduledJob(entry, max(entry.since_us, ends.get(entry.user, 0)))
    return scheduled.end_us, entry.number, scheduled
