"""The runs of monitors in the database: which is due, who submits it, and when its job has ended.

A run is claimed as a job is: each claim increments the monitor's `fence`, and the job of the run is
queued in one transaction with the check that the fence is still the claim's own. However many
servers share the database, and whenever one of them is killed, a due run is submitted once. Every
function takes a session and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import UNFINISHED
from warpcall_bench.jobs import queue, submissions
from warpcall_bench.jobs.models import JobRequest
from warpcall_bench.jobs.tables import Job
from warpcall_bench.monitors import outcomes
from warpcall_bench.monitors.database import job_request
from warpcall_bench.monitors.tables import Monitor
from warpcall_bench.runs.messages import Checked
from warpcall_service.auth.tables import User
from warpcall_service.identity import Caller
from warpcall_service.store.times import now_ms

LEASE_MS = 120_000  # to submit a run that was claimed
RETRY_MS = 60_000  # between two attempts to submit a run that the server cannot take at present


class RunLost(Exception):
    """The run was claimed again, or its monitor was paused or removed: it must not be submitted."""


@dataclass(frozen=True, slots=True)
class DueRun:
    """The right to submit one run of a monitor.

    Attributes:
        monitor: its number; `monitor_id` is its id.
        again: whether a server has claimed the same run before.
        caller: its user, with the role that jobs need.
        request: the job to submit.
    """

    monitor: int
    monitor_id: str
    fence: int
    again: bool
    caller: Caller
    request: JobRequest


def due() -> sa.Select[Monitor]:
    """Monitors that have a due run."""
    return sa.select(Monitor).where(_due(now_ms()))


def claim(session: Session) -> DueRun | None:
    """Claim a run that is due; None if none is.

    A monitor whose latest job has not ended, or whose user is disabled, has no due run.
    """
    query = (
        due().order_by(Monitor.next_ms, Monitor.number).limit(1).with_for_update(skip_locked=True)
    )
    monitor = session.scalars(query).one_or_none()
    if monitor is None:
        return None
    now, every_ms = now_ms(), 1000 * monitor.every_s
    # A lease that ended long ago is forgotten: no server ran since then.
    again = now < monitor.lease_ms + max(every_ms, LEASE_MS)
    monitor.fence += 1
    monitor.lease_ms = now + LEASE_MS
    caller = Caller(monitor.user_name, "bench")
    return DueRun(monitor.number, monitor.id, monitor.fence, again, caller, job_request(monitor))


def submit(session: Session, due: DueRun, checked: Checked, private_by_default: bool) -> int:
    """Queue the job of a run that was claimed, and return its number.

    Raises:
        RunLost: the claim does not hold any more.
        InvalidInput: what it times was deleted since it was checked.
    """
    queue.lock(session)  # before the monitor, as all transactions that lock both
    monitor = _locked(session, due)
    job, _ = submissions.submit(
        session, due.caller, due.request, checked, None, 0, private_by_default, due.monitor_id
    )
    monitor.job_number = job.number
    monitor.runs += 1
    _plan_next(monitor)
    return job.number


def put_off(session: Session, due: DueRun, why: str) -> None:
    """Note why a run that was claimed cannot be submitted: it failed. The next one is due as usual.

    Raises:
        RunLost: the claim does not hold any more.
    """
    monitor = _locked(session, due)
    outcomes.note(session, monitor, f"the job was refused: {why}", None)
    _plan_next(monitor)


def retry_later(session: Session, due: DueRun, why: str) -> None:
    """Let a run that was claimed, and that the server cannot take at present, be claimed again soon.

    If it is still refused one period after its first refusal, it has failed. The next run is due
    then, and takes its place.

    Raises:
        RunLost: the claim does not hold any more.
    """
    monitor = _locked(session, due)
    now, every_ms = now_ms(), 1000 * monitor.every_s
    failed = due.again and now >= monitor.next_ms + every_ms
    if failed:
        outcomes.note(session, monitor, f"the job was refused: {why}", None)
    if failed or not due.again:
        monitor.next_ms = now
    monitor.lease_ms = min(now + RETRY_MS, monitor.next_ms + every_ms)


def ended(session: Session) -> Sequence[int]:
    """Numbers of the monitors whose latest job has ended, and was not searched for steps yet."""
    return session.scalars(with_ended_job().order_by(Monitor.number)).all()


def with_ended_job() -> sa.Select[int]:
    """As `ended`, as a query."""
    return (
        sa.select(Monitor.number)
        .join(Job, Job.number == Monitor.job_number)
        .where(Job.state.not_in(UNFINISHED))
    )


def _due(now: int) -> sa.ColumnElement[bool]:
    disabled = sa.select(User.name).where(User.disabled_at.is_not(None))
    return sa.and_(
        Monitor.next_ms <= now,
        Monitor.lease_ms <= now,
        Monitor.paused.is_(False),
        Monitor.job_number.is_(None),
        Monitor.user_name.not_in(disabled),
    )


def _plan_next(monitor: Monitor) -> None:
    """Plan the next run. Runs that were missed, because no server ran, are not made up for."""
    now, every_ms = now_ms(), 1000 * monitor.every_s
    monitor.lease_ms = 0
    monitor.next_ms += every_ms * max(1, (now - monitor.next_ms) // every_ms + 1)


def _locked(session: Session, due: DueRun) -> Monitor:
    query = (
        sa.select(Monitor)
        .where(Monitor.number == due.monitor, Monitor.fence == due.fence)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    monitor = session.scalars(query).one_or_none()
    if monitor is None:
        raise RunLost
    return monitor
