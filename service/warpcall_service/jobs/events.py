"""What happens to a job, row by row: what the stream, the command line and the page show."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall_service.schema import Job, JobEvent

BATCH = 500  # events that are read at a time


def note(session: Session, job: Job, kind: str, data: Mapping[str, Any]) -> None:
    """Add an event; who calls this in two transactions at once for one job has one of them fail."""
    session.flush()
    last = session.scalars(
        sa.select(sa.func.max(JobEvent.sequence)).where(JobEvent.job_number == job.number)
    ).one()
    session.add(
        JobEvent(
            job_number=job.number,
            sequence=(last or 0) + 1,
            at_ms=now_ms(),
            kind=kind,
            data=json.dumps(data, separators=(",", ":")),
        )
    )


def after(session: Session, number: int, sequence: int) -> Sequence[JobEvent]:
    """What happened after the event `sequence`, in order; BATCH at most."""
    return session.scalars(
        sa.select(JobEvent)
        .where(JobEvent.job_number == number, JobEvent.sequence > sequence)
        .order_by(JobEvent.sequence)
        .limit(BATCH)
    ).all()


def now_ms() -> int:
    """The time, as the database keeps it."""
    return time.time_ns() // 1_000_000
