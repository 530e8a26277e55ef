"""The order of benchmark jobs, simulated: how long short and long jobs wait, and by which order.

    python -m bench.jobs.job_order

runs the jobs of a shared machine through the order of `warpcall_bench.jobs.fair_order`, and
through the one that was there before, start-time fair queueing: both know the jobs' costs. Nothing
is measured, and the output is the same on every machine. A lab of 8 users submits jobs in bursts
for 48 hours: 80 % take 10 to 60 s, 15 % take 2 to 10 minutes, and 5 % take 17 to 120 minutes;
devices are busy for 80 % of the time. A slowdown is the time from submission to end over the time
that the job itself takes.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from warpcall_bench.jobs.fair_order import QueuedJob, ScheduledJob, in_order, virtual_time_us

SECOND = 1_000_000  # microseconds
HOURS, USERS, LOAD, SEEDS = 48, 8, 0.8, 12
SHORT_S, LONG_S = 60, 1000
BURSTS = (1, 1, 1, 2, 3, 7)

Order = Literal["end", "begin"]


@dataclass(frozen=True)
class Job:
    user: str
    at_s: int
    takes_s: int


@dataclass(frozen=True)
class Begun:
    """A job, when it began, its entry in the queue, and where it began in virtual time."""

    job: Job
    at_s: int
    entry: QueuedJob
    start_us: int


def simulate(
    jobs: Sequence[Job], devices: int = 1, running: int = 1000, order: Order = "end"
) -> list[Begun]:
    """Run jobs on devices that do nothing else, as the queue in the database would.

    Args:
        running: jobs that one user may have running.
        order: by their end in virtual time, or, as it was before, by their begin.
    """
    jobs = sorted(jobs, key=lambda job: job.at_s)
    coming = list(enumerate(jobs))[::-1]
    waiting: dict[int, QueuedJob] = {}
    ends: dict[str, int] = {}
    clock = now = 0
    busy: list[tuple[int, str]] = []
    begun: list[Begun] = []
    while coming or waiting or busy:
        while coming and coming[-1][1].at_s <= now:
            number, job = coming.pop()
            if not waiting and not busy:
                clock = max(clock, *ends.values(), 0)
            waiting[number] = QueuedJob(number, job.user, 0, clock, job.takes_s * SECOND)
        has = Counter(user for _, user in busy)
        ordered = in_order(waiting.values(), ends) if order == "end" else _by_begin(waiting, ends)
        allowed = (scheduled for scheduled in ordered if has[scheduled.entry.user] < running)
        if len(busy) < devices and (scheduled := next(allowed, None)):
            least_us = (
                virtual_time_us(waiting.values(), ends, 0) if order == "end" else scheduled.start_us
            )
            clock = max(clock, least_us)
            job = jobs[scheduled.entry.number]
            begun.append(Begun(job, now, waiting.pop(scheduled.entry.number), scheduled.start_us))
            ends[job.user] = scheduled.end_us
            heapq.heappush(busy, (now + job.takes_s, job.user))
        elif busy and (not coming or busy[0][0] <= coming[-1][1].at_s):
            now, _ = heapq.heappop(busy)
        else:
            now = coming[-1][1].at_s
    return begun


def _by_begin(waiting: Mapping[int, QueuedJob], ends: Mapping[str, int]) -> list[ScheduledJob]:
    """The users' next jobs as start-time fair queueing orders them."""
    first = {entry.user: entry for _, entry in sorted(waiting.items(), reverse=True)}
    ordered = [ScheduledJob(e, max(e.since_us, ends.get(user, 0))) for user, e in first.items()]
    return sorted(ordered, key=lambda scheduled: (scheduled.start_us, scheduled.entry.number))


def lab(seed: int, devices: int) -> list[Job]:
    """Two days of a lab's jobs."""
    draw = random.Random(seed)
    mean_s = 0.8 * 35 + 0.15 * 360 + 0.05 * 4000
    pause_s = mean_s * sum(BURSTS) / len(BURSTS) / (LOAD * devices)
    jobs, at_s = [], 0.0
    while at_s < HOURS * 3600:
        at_s += draw.expovariate(1 / pause_s)
        user = f"user {draw.randrange(USERS)}"
        for _ in range(draw.choice(BURSTS)):
            low, high = draw.choices([(10, 60), (120, 600), (1000, 7000)], [80, 15, 5])[0]
            jobs.append(Job(user, round(at_s), draw.randint(low, high)))
    return jobs


def main() -> None:
    """Print a table in Markdown."""
    write = sys.stdout.write
    write("| devices | ordered by | short: slowdown, median | 95 % | wait, 95 % |")
    write(" long: slowdown, median | 95 % |\n| --- | --- | --- | --- | --- | --- | --- |\n")
    orders: tuple[Order, ...] = ("begin", "end")
    for devices in (1, 2):
        for order in orders:
            begun = [
                one
                for seed in range(SEEDS)
                for one in simulate(lab(seed, devices), devices, 2, order)
            ]
            short = [one for one in begun if one.job.takes_s <= SHORT_S]
            long = [one for one in begun if one.job.takes_s >= LONG_S]
            waits_s = sorted(one.at_s - one.job.at_s for one in short)
            write(
                f"| {devices} | virtual {order} | {_slowdown(short, 0.5):.0f} | "
                f"{_slowdown(short, 0.95):.0f} | {waits_s[int(0.95 * len(waits_s))]:,} s | "
                f"{_slowdown(long, 0.5):.1f} | {_slowdown(long, 0.95):.1f} |\n"
            )


def _slowdown(begun: Sequence[Begun], share: float) -> float:
    found = sorted((b.at_s - b.job.at_s + b.job.takes_s) / b.job.takes_s for b in begun)
    return found[int(share * len(found))]


if __name__ == "__main__":
    main()
