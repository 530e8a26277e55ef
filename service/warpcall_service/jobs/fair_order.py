"""In which order jobs run: fair to users, and short jobs before long ones as far as that is fair.

Each user has a virtual time: the device time that they were given, in microseconds, counted on from
the clock of the queue. A job would begin where its user's time stands (or at the clock's time when it
was submitted, if that is later: a user who was idle saves nothing up) and end after its cost. Of the
users' next jobs the one that would *end* first is run first. The clock is the least begin among the
jobs that could be run. It follows that while a job waits which is its user's next, no other user is
given more time than this job itself takes:

- A short job waits for what runs already, and then for less than its own length for each other user.
- A long job waits for what runs already, and then for its own length for each other user at most,
  however many short jobs these submit. So it needs no aging.

These bounds count in estimated costs; what a job took replaces its estimate when it ends. A running
job is not interrupted, so on one device a short job may wait for the rest of a long one. Priorities
are classes above all that: of two, the higher one is emptied first.

Ordering by virtual end is fair queueing as in Demers, Keshav and Shenker (SIGCOMM 1989). The clock is
that of Linux's fair scheduler (`min_vruntime`). Start-time fair queueing, by which `lanes/fair_queue.py` orders
calls, orders by begin: it lets the first long job of each user go before anyone's second short job.
docs/benchmarking.md has what both come to in a simulation. All state lies in the database, so that a
restart changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits; `priority` 0 is served before 1, the rest is as in its row in the database."""

    number: int
    user: str
    priority: int
    since_us: int
    cost_us: int


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job and the virtual time at which it begins."""

    entry: QueuedJob
    start_us: int

    @property
    def end_us(self) -> int:
        """Where, in virtual time, its user has been served up to."""
        return self.start_us + self.entry.cost_us


def in_order(entries: Iterable[QueuedJob], ends_us: Mapping[str, int]) -> Iterator[ScheduledJob]:
    """All jobs that wait, the one to begin next first.

    Args:
        ends_us: where what each user was served last ends, in virtual time.
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
    """When jobs in this order begin and end, in seconds from now.

    Args:
        estimates_s: what each is thought to take.
        free_in_s: for each device, when what runs there is thought to end.
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
    """Where the clock stands before one of these jobs is begun: the least begin of a user's next job.

    Args:
        entries: all jobs that wait, the one to be begun included.
        ends_us: as for `in_order`.
        priority: of the job to be begun. Others do not count: jobs of a low priority that wait for
            hours would hold the clock back, and whoever comes then would be given those hours.
    """
    first: dict[str, QueuedJob] = {}
    for entry in entries:
        if entry.priority == priority:
            known = first.setdefault(entry.user, entry)
            first[entry.user] = min(known, entry, key=lambda one: one.number)
    return min(max(entry.since_us, ends_us.get(user, 0)) for user, entry in first.items())


def _next_of(user_queue: list[QueuedJob], ends: Mapping[str, int]) -> tuple[int, int, ScheduledJob]:
    """A user's next job, as the heap compares it: by its end, then by its age."""
    entry = user_queue[-1]
    scheduled = ScheduledJob(entry, max(entry.since_us, ends.get(entry.user, 0)))
    return scheduled.end_us, entry.number, scheduled
