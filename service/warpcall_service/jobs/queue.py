"""The queue in the database: which job is next, what its run leaves behind, what becomes of it.

Whoever changes the order locks the clock's row first, so that servers which share a database take
turns. Everything here takes a session, and blocks.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import ACTIVE, UNFINISHED, ExitClass, State
from warpcall_service.jobs.events import append_event, now_ms
from warpcall_service.jobs.fair_order import QueuedJob, forecast, in_order, virtual_time_us
from warpcall_service.jobs.orphans import Heartbeat
from warpcall_service.store.tables import Job, JobCase, JobClock, JobEvent, JobShare, Measurement

MAX_ATTEMPTS = 2  # an interrupted job is run again, once
LOST = "the server that ran it was lost"
RESUMED = -1  # before the priorities, which count from 0
PROGRESS_KEPT_MS = 86_400_000  # after the end of a job; its states and cases are kept for ever
PRUNED_JOBS = 200  # at a time


class ClaimLost(Exception):
    """The job was taken from this run, or has ended: what the run had to write is not written."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one run to write about its job.

    Attributes:
        number: of the job.
        runner: id of the server that runs it.
        fence: the job's own `fence` when it was claimed. Each later claim counts that up, so that
            nothing which an earlier run writes can be taken for the later one's.
    """

    number: int
    runner: str
    fence: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job stands: 0 runs, 1 is next; times from now."""

    position: int
    starts_in_s: float
    ends_in_s: float


def lock(session: Session) -> int:
    """Have the queue to oneself until the transaction ends; the virtual time.

    Where nothing waits and nothing runs, nobody owes anything: the clock goes to the last end.
    """
    clock = session.get_one(JobClock, 1, with_for_update=True, populate_existing=True)
    if (
        session.scalars(sa.select(Job.number).where(Job.state.in_(UNFINISHED)).limit(1)).first()
        is None
    ):
        last = session.scalars(sa.select(sa.func.max(JobShare.end_us))).one()
        clock.now_us = max(clock.now_us, last or 0)
    return clock.now_us


def claim(session: Session, runner: str, user_running: int) -> Job | None:
    """Take the next job, if one may begin.

    Args:
        runner: the server that takes it.
        user_running: jobs that one user may have running.
    """
    lock(session)
    running = Counter(session.scalars(sa.select(Job.user_name).where(Job.state.in_(ACTIVE))))
    entries, ends = _entries(session), _ends(session)
    for scheduled in in_order(entries, ends):
        if running[scheduled.entry.user] >= user_running:
            continue
        job = session.get_one(Job, scheduled.entry.number)
        clock = session.get_one(JobClock, 1)
        clock.now_us = max(clock.now_us, virtual_time_us(entries, ends, scheduled.entry.priority))
        session.merge(JobShare(user_name=job.user_name, end_us=scheduled.end_us))
        job.runner, job.fence, job.ran_ms = runner, job.fence + 1, 0
        job.started_ms = now_ms()
        job.attempts += 1
        advance(session, job, "preparing")
        return job
    return None


def advance(session: Session, job: Job, state: State) -> None:
    """Note that a job has come to another state; a second time changes nothing."""
    if job.state == state:
        return  # it was written before by a transaction whose end this server did not hear of
    job.state = state
    append_event(session, job, "state", {"state": state})


def lock_claimed(session: Session, claim: Claim) -> Job:
    """The job of a claim that still holds, locked until the transaction ends.

    The lock makes this check and what is then written one step: a server that takes the job over
    does so before, and this raises, or after, and then it sees all that was written. A transaction
    that also locks the queue must do that first, as everyone does: two that lock in different order
    can block each other.

    Raises:
        ClaimLost: the claim does not hold any more.
    """
    query = sa.select(Job).where(*_holds(claim)).execution_options(populate_existing=True)
    job = session.scalars(query.with_for_update(key_share=True)).one_or_none()
    if job is None:
        raise ClaimLost
    return job


def write_heartbeats(session: Session, ran_ms: Mapping[Claim, int]) -> set[Claim]:
    """Write the heartbeat of this server's runs, and return the claims that do not hold any more.

    Args:
        ran_ms: how long each run has lasted; more than at its last heartbeat.
    """
    lost = set()
    for claim in sorted(ran_ms, key=lambda claim: claim.number):
        change = sa.update(Job).where(*_holds(claim)).values(ran_ms=ran_ms[claim])
        change = change.execution_options(synchronize_session=False)
        if session.scalars(change.returning(Job.number)).one_or_none() is None:
            lost.add(claim)
    return lost


def to_cancel(session: Session, runner: str) -> Sequence[int]:
    """The numbers of this server's jobs that somebody wants to end."""
    return session.scalars(
        sa.select(Job.number).where(
            Job.runner == runner, Job.state.in_(ACTIVE), Job.cancel_ms.is_not(None)
        )
    ).all()


def unmeasured_cases(session: Session, job: Job) -> list[tuple[int, Any]]:
    """Positions and specs of the cases that have no result yet."""
    rows = session.execute(
        sa.select(JobCase.position, JobCase.spec)
        .where(JobCase.job_number == job.number, JobCase.result.is_(None))
        .order_by(JobCase.position)
    )
    return [(position, json.loads(spec)) for position, spec in rows]


def save_case(session: Session, job: Job, position: int, result: Mapping[str, Any]) -> None:
    """Keep what a case gave; a second time changes nothing."""
    case = session.get_one(JobCase, (job.number, position))
    if case.result is not None:
        return
    case.result = zlib.compress(json.dumps(result, separators=(",", ":")).encode())
    case.finished_ms = now_ms()
    for told in result["implementations"]:
        session.add(
            Measurement(
                job_number=job.number,
                position=position,
                implementation=told["name"],
                series_sha256=series(job.op, told["name"], case.key),
                environment=job.environment or "",
                finished_ms=case.finished_ms,
                status=told["status"],
                summary=json.dumps({k: v for k, v in told.items() if k != "samples_us"}),
            )
        )
    job.cases_done += 1
    statuses = {told["name"]: told["status"] for told in result["implementations"]}
    done = {"position": position, "case": case.key, "statuses": statuses}
    append_event(session, job, "case", {**done, "cases_done": job.cases_done})


def end_job(
    session: Session,
    job: Job,
    state: State,
    exit_class: ExitClass,
    detail: str,
    took_ms: int = 0,
) -> None:
    """A job has come to its end."""
    if job.state in ACTIVE:
        _charge(session, job, took_ms)
    job.exit_class = exit_class
    job.detail = detail
    job.finished_ms = now_ms()
    job.state = state
    told = {"state": state, "exit_class": exit_class, "detail": detail}
    append_event(session, job, "state", told)


def interrupt(
    session: Session, job: Job, detail: str, took_ms: int, *, counts: bool = True
) -> None:
    """What ran a job was lost: it is queued again, unless that happened before.

    Args:
        counts: as an attempt; what a server puts back that stops in good order does not.
    """
    if job.cancel_ms is not None:
        end_job(session, job, "cancelled", "cancelled", "cancelled while it ran", took_ms)
        return
    if counts and job.attempts >= MAX_ATTEMPTS:
        again = f"{detail}; it was run {job.attempts} times"
        end_job(session, job, "interrupted", "interrupted", again, took_ms)
        return
    _charge(session, job, took_ms)
    if not counts:
        job.attempts -= 1
    append_event(session, job, "state", {"state": "interrupted", "detail": detail})
    job.runner = None
    advance(session, job, "queued")


def heartbeats(session: Session) -> dict[int, Heartbeat]:
    """The heartbeats of all jobs that run, by number.

    It locks the queue, which is only possible while the database can be written: while it cannot, no
    server's heartbeat can be, and its silence says nothing.
    """
    lock(session)
    rows = session.execute(
        sa.select(Job.number, Job.fence, Job.ran_ms).where(Job.state.in_(ACTIVE))
    )
    return {number: Heartbeat(fence, ran_ms) for number, fence, ran_ms in rows}


def take_over(session: Session, number: int, heartbeat: Heartbeat) -> bool:
    """Queue a job again whose server is gone; False if it has given a heartbeat since.

    Args:
        heartbeat: the last one that was seen.
    """
    lock(session)
    query = sa.select(Job).where(
        Job.number == number,
        Job.fence == heartbeat.fence,
        Job.ran_ms == heartbeat.ran_ms,
        Job.state.in_(ACTIVE),
    )
    job = session.scalars(query.with_for_update(key_share=True)).one_or_none()
    if job is not None:
        interrupt(session, job, LOST, job.ran_ms)
    return job is not None


def requeue_own(session: Session, runner: str) -> int:
    """Queue again what an earlier life of this server left running; how many jobs these are."""
    lock(session)
    jobs = session.scalars(
        sa.select(Job).where(Job.state.in_(ACTIVE), Job.runner == runner).order_by(Job.number)
    ).all()
    for job in jobs:
        interrupt(session, job, LOST, job.ran_ms)
    return len(jobs)


def prune(session: Session, since_ms: int) -> int:
    """Delete the progress of jobs that ended long ago; where to go on the next time.

    Args:
        since_ms: before this nothing is left to delete.
    """
    ended = session.execute(
        sa.select(Job.number, Job.finished_ms)
        .where(Job.finished_ms.between(since_ms, now_ms() - PROGRESS_KEPT_MS))
        .order_by(Job.finished_ms)
        .limit(PRUNED_JOBS)
    ).all()
    numbers = [number for number, _ in ended]
    session.execute(
        sa.delete(JobEvent)
        .where(JobEvent.job_number.in_(numbers), JobEvent.kind == "progress")
        .execution_options(synchronize_session=False)
    )
    return ended[-1].finished_ms or since_ms if ended else since_ms


def places(session: Session, devices: int) -> dict[int, Place]:
    """Where each job stands that has not ended, by number, those that run first."""
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
    free += [0.0] * (devices - len(free))
    entries = _entries(session)
    estimates = {entry.number: entry.cost_us / 1e6 for entry in entries}
    order = [scheduled.entry.number for scheduled in in_order(entries, _ends(session))]
    times = forecast([estimates[number] for number in order], free)
    for position, (number, (starts_s, ends_s)) in enumerate(zip(order, times, strict=True), 1):
        found[number] = Place(position, starts_s, ends_s)
    return found


def unfinished(session: Session) -> Sequence[Job]:
    """All jobs that run or wait."""
    return session.scalars(sa.select(Job).where(Job.state.in_(UNFINISHED))).all()


def series(op: str, implementation: str, case_key: str) -> str:
    """The line of a history that these belong to."""
    return hashlib.sha256(json.dumps([op, implementation, case_key]).encode()).hexdigest()


def _entries(session: Session) -> list[QueuedJob]:
    """What was begun before, and interrupted, comes before everything else."""
    rank = sa.case((Job.started_ms.is_not(None), RESUMED), else_=Job.priority)
    rows = session.execute(
        sa.select(Job.number, Job.user_name, rank, Job.since_us, Job.cost_us).where(
            Job.state == "queued"
        )
    )
    return [QueuedJob(*row) for row in rows]


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


def _charge(session: Session, job: Job, took_ms: int) -> None:
    """Charge a user what his job took, instead of what it was thought to take."""
    lock(session)
    job.took_ms += took_ms
    share = session.get(JobShare, job.user_name)
    if share is not None:
        share.end_us += took_ms * 1000 - job.cost_us
