"""How a run of a monitor ended: its steps, whether it failed, and the calls that follow.

A monitor begins to fail with the first run that fails, and works again with the next one that does
not. Its URL is called for both, once each, because the call is added in the transaction that notes
the change. Every function takes a session and blocks.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import COMPLETED
from warpcall_bench.jobs.measurements import OF_CASE
from warpcall_bench.jobs.tables import Job, JobCase, Measurement
from warpcall_bench.monitors import deliveries, history
from warpcall_bench.monitors.tables import Monitor
from warpcall_service.store.times import now_ms

MAX_DETAIL = 1000
ENDS = {
    "failed": "failed",
    "invalid": "could not be measured",
    "timed_out": "took too long",
    "interrupted": "was interrupted",
}


def note_end(session: Session, monitor: Monitor) -> int:
    """Note how the latest job of a monitor ended, and search its history for steps.

    Returns:
        The number of steps that were found.
    """
    job = session.get_one(Job, monitor.job_number)
    found = history.find_steps(session, monitor)
    if found:
        deliveries.add(session, monitor, "steps", job.id, steps=found)
    if job.state != "cancelled":  # a user ended it, so it says nothing
        note(session, monitor, _why_failed(session, job), job.id)
    monitor.job_number = None
    return len(found)


def note(session: Session, monitor: Monitor, why: str, job_id: str | None) -> None:
    """Note whether the latest run of a monitor failed.

    Args:
        why: why it failed; empty if it did not.
        job_id: its job; None if it could not be submitted.
    """
    monitor.detail = why[:MAX_DETAIL]
    if bool(why) == (monitor.failing_ms is not None):
        return
    monitor.failing_ms = now_ms() if why else None
    deliveries.add(session, monitor, "failing" if why else "recovered", job_id)


def _why_failed(session: Session, job: Job) -> str:
    """Why a job has not measured all that it should; empty if it has."""
    if job.state not in COMPLETED:
        return f"the job {ENDS.get(job.state, job.state)}: {job.detail or job.exit_class}"
    missing = session.execute(
        sa.select(Measurement.implementation, JobCase.key, Measurement.status)
        .join(JobCase, OF_CASE)
        .where(Measurement.job_number == job.number, Measurement.status != "ok")
        .order_by(Measurement.position, Measurement.implementation)
    ).all()
    if not missing:
        return ""
    implementation, case, status = missing[0]
    more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{implementation} has no time in {case[:300]}: {status.replace('_', ' ')}{more}"
