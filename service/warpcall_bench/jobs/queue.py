"""The queue of jobs in the database: its lock, which job is next, and the claims of the runs.

A transaction that changes the order locks the queue first, so that servers which share a database
change it one after the other. Every function takes a session and blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import ACTIVE, PRIORITIES, UNFINISHED
from warpcall_bench.jobs.events import append_event
from warpcall_bench.jobs.fair_order import (
    QueuedJob,
    ScheduledJob,
    forecast,
    in_order,
    virtual_time_us,
)
from warpcall_bench.jobs.orphans import Heartbeat
from warpcall_bench.jobs.placement import Device, Devices
from warpcall_bench.jobs.tables import Job, JobClock, JobEvent, JobShare
from warpcall_service.store.times import now_ms

RUNNING = "user_running_jobs"  # a quota
DAY_MS = 86_400_000

RESUMED = -1  # priority of jobs that were interrupted: before all others, which count from 0
BEHIND = len(PRIORITIES)  # priority of the jobs of monitors: behind all others
PASSES_US = 60_000_000  # a running job waits for no job that is estimated to take longer


class ClaimLost(Exception):
    """The job was claimed again or has ended, so the run that raised this must not write about it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one run to write about its job.

    Attributes:
        number: number of the job.
        runner: id of the server that runs the job.
        fence: the job's `fence` after it was claimed. Each claim increments it, so that what an
            earlier run writes cannot be taken for what the later run writes.
    """

    number: int
    runner: str
    fence: int


@dataclass(frozen=True, slots=True)
class GivesWay:
    """A job that runs, and would wait while a short job of another user runs on its device.

    Attributes:
        priority: a job of a lower priority does not come before it.
        end_us: virtual time of its user after it. Jobs of users who have received less come before
            it, so that others delay it by no more than it costs itself, and one short job.
        room_bytes: memory that the other job may need, because this one keeps its own.
    """

    user: str
    priority: int
    end_us: int
    room_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job stands in the queue.

    Attributes:
        position: 0 if the job runs, 1 if it is next.
        starts_in_s, ends_in_s: estimates, in seconds from now, or from when there is a device.
        has_device: whether a server that runs has a device for it.
    """

    position: int
    starts_in_s: float
    ends_in_s: float
    has_device: bool = True


@dataclass(frozen=True, slots=True)
class Backlog:
    """The jobs that have not ended.

    Attributes:
        jobs: number of jobs by state, without the states that none has.
        oldest_ms: when the oldest of those that wait was submitted, in milliseconds since 1970; None
            if none waits.
    """

    jobs: Mapping[str, int]
    oldest_ms: int | None

    def oldest_s(self) -> float:
        """Seconds since the oldest of those that wait was submitted; 0 if none waits."""
        return 0.0 if self.oldest_ms is None else max(0.0, (now_ms() - self.oldest_ms) / 1000)


def lock(session: Session) -> int:
    """Lock the queue until the transaction ends, and return the clock's virtual time.

    If no job waits or runs, the clock moves to the latest time at which a user's last job ends. All
    users then start equal, whatever their past jobs took.
    """
    clock = session.get_one(JobClock, 1, with_for_update=True, populate_existing=True)
    if (
        session.scalars(sa.select(Job.number).where(Job.state.in_(UNFINISHED)).limit(1)).first()
        is None
    ):
        last = session.scalars(sa.select(sa.func.max(JobShare.end_us))).one()
        clock.now_us = max(clock.now_us, last or 0)
    return clock.now_us


def claim(
    session: Session,
    runner: str,
    device: Device,
    user_running: Callable[[str], int],
    left_ms: int | None = None,
    running_there: GivesWay | None = None,
) -> Job | None:
    """Claim the next job for a server; None if no job may start.

    Args:
        runner: id of the server.
        device: where the job would run. Jobs that may not run there are left to others.
        user_running: returns the limit on the number of jobs that a user has running at once.
        left_ms: jobs that are estimated to run longer are left to others; None means no limit.
        running_there: the job that runs on the device, if it would wait meanwhile.
    """
    lock(session)
    entries, ends = _fitting(session, device, left_ms), _ends(session)
    scheduled = _next(session, entries, ends, user_running, running_there)
    if scheduled is None:
        return None
    job = session.get_one(Job, scheduled.entry.number)
    clock = session.get_one(JobClock, 1)
    clock.now_us = max(clock.now_us, virtual_time_us(entries, ends, scheduled.entry.priority))
    session.merge(JobShare(user_name=job.user_name, end_us=scheduled.end_us))
    job.runner, job.fence, job.ran_ms = runner, job.fence + 1, 0
    job.model = device.model or None
    job.started_ms = now_ms()
    job.attempts += 1
    job.state = "preparing"
    append_event(session, job, "state", {"state": "preparing"})
    return job


def comes_before(
    session: Session,
    device: Device,
    user_running: Callable[[str], int],
    left_ms: int | None,
    running_there: GivesWay,
) -> bool:
    """Whether a job waits for which the one that runs on a device should wait; arguments as `claim`."""
    entries = _fitting(session, device, left_ms)
    return _next(session, entries, _ends(session), user_running, running_there) is not None


def end_us(session: Session, user: str) -> int:
    """Virtual time of a user after the job of theirs that was claimed last."""
    return session.get_one(JobShare, user).end_us


def queued_ms(session: Session, job: Job) -> int:
    """When a job that has just been claimed was queued last, in milliseconds since 1970."""
    states = (
        sa.select(JobEvent.at_ms)
        .where(JobEvent.job_number == job.number, JobEvent.kind == "state")
        .order_by(JobEvent.sequence.desc())
        .limit(2)
    )
    return session.scalars(states).all()[-1]  # the last state is that of the claim


def is_wanted(
    session: Session,
    device: Device,
    user_running: Callable[[str], int],
    left_ms: int | None = None,
) -> bool:
    """Whether a job that a user submitted waits and could run on a device if the device were free.

    The arguments are those of `claim`. The job of a monitor then gives the device up.
    """
    running = _running(session)
    return any(
        entry.priority != BEHIND and running[entry.user] < user_running(entry.user)
        for entry in _fitting(session, device, left_ms)
    )


def lock_claimed(session: Session, claim: Claim) -> Job:
    """The job of a claim that still holds, with its row locked until the transaction ends.

    The lock makes this check and the writes that follow one step. Another server takes the job over
    either before, and this function raises, or after, and then it sees all that was written. A
    transaction that also locks the queue must lock the queue first, as all do: two transactions
    that lock in different orders can block each other.

    Raises:
        ClaimLost: the claim does not hold any more.
    """
    query = sa.select(Job).where(*_holds(claim)).execution_options(populate_existing=True)
    job = session.scalars(query.with_for_update(key_share=True)).one_or_none()
    if job is None:
        raise ClaimLost
    return job


def write_heartbeats(session: Session, ran_ms: Mapping[Claim, int]) -> set[Claim]:
    """Write a heartbeat for each run of this server, and return the claims that do not hold any
    more.

    Args:
        ran_ms: how long each run has lasted. It must be more than in the run's last heartbeat.
    """
    lost = set()
    for claim in sorted(ran_ms, key=lambda claim: claim.number):
        change = sa.update(Job).where(*_holds(claim)).values(ran_ms=ran_ms[claim])
        change = change.execution_options(synchronize_session=False)
        if session.scalars(change.returning(Job.number)).one_or_none() is None:
            lost.add(claim)
    return lost


def to_cancel(session: Session, runner: str) -> Sequence[int]:
    """Numbers of the jobs that this server runs and that a user has cancelled."""
    return session.scalars(
        sa.select(Job.number).where(
            Job.runner == runner, Job.state.in_(ACTIVE), Job.cancel_ms.is_not(None)
        )
    ).all()


def heartbeats(session: Session) -> dict[int, Heartbeat]:
    """The last heartbeats of all jobs that run, by the job's number.

    This function locks the queue, which fails while the database cannot be written. In that time no
    server can write a heartbeat, and a missing heartbeat must not count against it.
    """
    lock(session)
    rows = session.execute(
        sa.select(Job.number, Job.fence, Job.ran_ms).where(Job.state.in_(ACTIVE))
    )
    return {number: Heartbeat(fence, ran_ms) for number, fence, ran_ms in rows}


def places(session: Session, devices: Devices) -> dict[int, Place]:
    """Where each unfinished job stands, by number. Jobs that run come first, and those for which there
    is no device last: nobody can say when they start, and they keep no device from others.

    Args:
        devices: that jobs can run on.
    """
    now = now_ms()
    running = session.execute(
        sa.select(Job.number, Job.started_ms, Job.estimated_ms)
        .where(Job.state.in_(ACTIVE))
        .order_by(Job.started_ms, Job.number)
    ).all()
    found: dict[int, Place] = {}
    for number, started_ms, estimated_ms in running:
        left_s = max(0, (started_ms or now) + estimated_ms - now) / 1e3
        found[number] = Place(0, 0.0, left_s)
    free = [place.ends_in_s for place in found.values()]
    free += [0.0] * (devices.number - len(free))
    lacking = _without_device(session, devices)
    entries = _entries(session)
    estimates = {entry.number: entry.cost_us / 1e6 for entry in entries}
    whole = [scheduled.entry.number for scheduled in in_order(entries, _ends(session))]
    order = [number for number in whole if number not in lacking]
    times = forecast([estimates[number] for number in order], free)
    for position, (number, (starts_s, ends_s)) in enumerate(zip(order, times, strict=True), 1):
        found[number] = Place(position, starts_s, ends_s)
    last = [number for number in whole if number in lacking]
    for position, number in enumerate(last, len(order) + 1):
        found[number] = Place(position, 0.0, estimates[number], has_device=False)
    return found


def unfinished_by_user(session: Session) -> Sequence[tuple[str, int]]:
    """How many unfinished jobs each user has who has some."""
    query = sa.select(Job.user_name, sa.func.count()).where(Job.state.in_(UNFINISHED))
    return [(name, count) for name, count in session.execute(query.group_by(Job.user_name))]


def counted_by_user(session: Session, user: str | None) -> tuple[dict[str, int], dict[str, int]]:
    """How many jobs of each user, or only of one, are unfinished, and how many of these run.

    Those of monitors do not count, as in quotas.
    """
    query = sa.select(Job.user_name, Job.state).where(
        Job.state.in_(UNFINISHED), Job.monitor.is_(None)
    )
    if user is not None:
        query = query.where(Job.user_name == user)
    rows = session.execute(query).all()
    return (
        dict(Counter(name for name, _ in rows)),
        dict(Counter(name for name, state in rows if state in ACTIVE)),
    )


def unfinished(session: Session) -> Sequence[Job]:
    """All jobs that wait or run, in no particular order."""
    return session.scalars(sa.select(Job).where(Job.state.in_(UNFINISHED))).all()


def counts(session: Session) -> dict[str, int]:
    """How many jobs are "queued", are "running", and "failed today" (UTC)."""
    today_ms = now_ms() // DAY_MS * DAY_MS
    failed = Job.state == "failed", Job.finished_ms >= today_ms
    wanted = {
        "queued": (Job.state == "queued",),
        "running": (Job.state.in_(ACTIVE),),
        "failed today": failed,
    }
    number = sa.select(sa.func.count()).select_from(Job)
    return {name: session.scalars(number.where(*those)).one() for name, those in wanted.items()}


def backlog(session: Session) -> Backlog:
    """The jobs that have not ended."""
    columns = Job.state, sa.func.count(), sa.func.min(Job.created_ms)
    query = sa.select(*columns).where(Job.state.in_(UNFINISHED)).group_by(Job.state)
    rows = {state: (number, oldest) for state, number, oldest in session.execute(query)}
    jobs = {state: number for state, (number, _) in rows.items()}
    return Backlog(jobs, rows["queued"][1] if "queued" in rows else None)


def _next(
    session: Session,
    entries: Sequence[QueuedJob],
    ends: Mapping[str, int],
    user_running: Callable[[str], int],
    running_there: GivesWay | None,
) -> ScheduledJob | None:
    running = _running(session)
    for scheduled in in_order(entries, ends):
        if running[user := scheduled.entry.user] >= user_running(user):
            continue
        if running_there is None or _passes(session, scheduled, running_there):
            return scheduled
    return None


def _passes(session: Session, scheduled: ScheduledJob, other: GivesWay) -> bool:
    """Whether a running job should wait for one in the queue."""
    entry = scheduled.entry
    if entry.user == other.user or entry.cost_us > PASSES_US:
        return False
    if (entry.priority, scheduled.start_us) >= (other.priority, other.end_us):
        return False
    needed = session.get_one(Job, entry.number).device_bytes
    return needed is not None and needed <= other.room_bytes


def _fitting(session: Session, device: Device, left_ms: int | None) -> list[QueuedJob]:
    """The jobs that wait and may run on a device, for as long as they take."""
    elsewhere = _elsewhere(session, device, left_ms)
    return [entry for entry in _entries(session) if entry.number not in elsewhere]


def _entries(session: Session) -> list[QueuedJob]:
    """The jobs that wait.

    Those that were interrupted have a priority above all others, those of monitors one below.
    """
    rank = sa.case(
        (Job.monitor.is_not(None), BEHIND),
        (Job.started_ms.is_not(None), RESUMED),
        else_=Job.priority,
    )
    rows = session.execute(
        sa.select(Job.number, Job.user_name, rank, Job.since_us, Job.cost_us).where(
            Job.state == "queued"
        )
    )
    return [QueuedJob(*row) for row in rows]


def _running(session: Session) -> Counter[str]:
    """How many jobs of each user run. Those of monitors do not count: they give way to others."""
    query = sa.select(Job.user_name).where(Job.state.in_(ACTIVE), Job.monitor.is_(None))
    return Counter(session.scalars(query))


def _elsewhere(session: Session, device: Device, left_ms: int | None) -> set[int]:
    """Numbers of the waiting jobs that may not run on a device, or not for as long as they take.

    A job that has measured a case runs only on devices of the model that measured it. Its cases
    would otherwise be those of different GPUs.
    """
    rows = session.execute(
        sa.select(Job.number, Job.gpu, Job.node, Job.model, Job.cases_done).where(
            Job.state == "queued",
            sa.or_(Job.gpu.is_not(None), Job.node.is_not(None), Job.cases_done > 0),
        )
    )
    long: Sequence[int] = ()
    if left_ms is not None:
        query = sa.select(Job.number).where(Job.state == "queued", Job.estimated_ms > left_ms)
        long = session.scalars(query).all()
    return {*long} | {
        number
        for number, gpu, node, model, cases_done in rows
        if not device.fits(gpu, node) or (cases_done and model not in (None, device.model))
    }


def _without_device(session: Session, devices: Devices) -> set[int]:
    """Numbers of the waiting jobs for which no server that runs has a device."""
    asking = sa.or_(Job.gpu.is_not(None), Job.node.is_not(None))
    query = sa.select(Job.number, Job.gpu, Job.node).where(Job.state == "queued", asking)
    return {number for number, gpu, node in session.execute(query) if not devices.fit(gpu, node)}


def _ends(session: Session) -> dict[str, int]:
    return {
        name: end for name, end in session.execute(sa.select(JobShare.user_name, JobShare.end_us))
    }


def _holds(claim: Claim) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        Job.number == claim.number,
        Job.runner == claim.runner,
        Job.fence == claim.fence,
        Job.state.in_(ACTIVE),
    )
