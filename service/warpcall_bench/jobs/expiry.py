"""Which jobs and events are older than the operator keeps them, and their deletion.

Every function takes a session and blocks. A job that a monitor names stays: the first run at a new
level, the run after which a step was found, and the latest run. The newest job stays, too, since a
SQLite database would give its number to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import UNFINISHED
from warpcall_bench.jobs.tables import (
    Job,
    JobCase,
    JobEvent,
    JobTag,
    Measurement,
    PrintedText,
)
from warpcall_bench.monitors.tables import Monitor, MonitorStep
from warpcall_bench.uploads.tables import JobUpload


def expired_jobs(session: Session, before_ms: int, limit: int) -> Sequence[int]:
    """Numbers of the oldest jobs that ended before a time and can be deleted."""
    query = sa.select(Job.number).where(*_expired(before_ms)).order_by(Job.number).limit(limit)
    return session.scalars(query).all()


def count_expired_jobs(session: Session, before_ms: int) -> int:
    """How many jobs ended before a time and can be deleted."""
    query = sa.select(sa.func.count()).select_from(Job).where(*_expired(before_ms))
    return session.scalars(query).one()


def delete_jobs(session: Session, numbers: Sequence[int]) -> None:
    """Delete jobs with their cases, measurements, printed texts, tags and events.

    Rows of other folders that name them must have been deleted before.
    """
    tables: tuple[type[JobTag | JobCase | Measurement | PrintedText | JobEvent], ...]
    tables = (JobTag, JobCase, Measurement, PrintedText, JobEvent)
    for table in tables:
        _delete(session, sa.delete(table).where(table.job_number.in_(numbers)))
    _delete(session, sa.delete(Job).where(Job.number.in_(numbers)))


def expired_events(session: Session, before_ms: int) -> int:
    """How many events belong to jobs that ended before a time, and are not the last of their job."""
    query = sa.select(sa.func.count()).select_from(JobEvent).where(_old_event(before_ms))
    return session.scalars(query).one()


def jobs_with_events(session: Session, before_ms: int, limit: int) -> Sequence[int]:
    """Numbers of jobs that ended before a time and have events besides the last one."""
    query = sa.select(JobEvent.job_number).where(_old_event(before_ms)).distinct().limit(limit)
    return session.scalars(query).all()


def delete_events(session: Session, numbers: Sequence[int]) -> None:
    """Delete the events of jobs that have ended, except the last one, which says how they ended."""
    old = JobEvent.job_number.in_(numbers), JobEvent.sequence < _last_of_its_job()
    _delete(session, sa.delete(JobEvent).where(*old))


def _expired(before_ms: int) -> tuple[sa.ColumnElement[bool], ...]:
    steps = sa.select(MonitorStep.number)
    return (
        Job.finished_ms < before_ms,
        Job.state.not_in(UNFINISHED),
        Job.number < sa.select(sa.func.max(Job.number)).scalar_subquery(),
        ~sa.exists(sa.select(Monitor.number).where(Monitor.job_number == Job.number)),
        ~sa.exists(steps.where(MonitorStep.job_number == Job.number)),
        ~sa.exists(steps.where(MonitorStep.found_number == Job.number)),
        ~sa.exists(sa.select(JobUpload.job_number).where(JobUpload.job_number == Job.number)),
    )


def _old_event(before_ms: int) -> sa.ColumnElement[bool]:
    ended = sa.select(Job.number).where(Job.finished_ms < before_ms, Job.state.not_in(UNFINISHED))
    return sa.and_(JobEvent.job_number.in_(ended), JobEvent.sequence < _last_of_its_job())


def _last_of_its_job() -> sa.ScalarSelect[int]:
    other = sa.alias(JobEvent.__table__)
    return (
        sa.select(sa.func.max(other.c.sequence))
        .where(other.c.job_number == JobEvent.job_number)
        .scalar_subquery()
    )


def _delete(session: Session, statement: Any) -> None:
    session.execute(statement.execution_options(synchronize_session=False))
