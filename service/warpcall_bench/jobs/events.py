"""The events of a job in the database, and their text in an event stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall_bench.jobs.tables import Job, JobEvent
from warpcall_service.identity import Caller
from warpcall_service.store.times import moment, now_ms

BATCH = 500  # events that are read at a time


class Latest(NamedTuple):
    """The state of a job, the sequence of its latest event, and who may read it."""

    state: str
    sequence: int
    user_name: str
    private: bool

    def is_readable(self, caller: Caller) -> bool:
        """Whether the caller may read the job; see `submissions.readable`."""
        return not self.private or caller.owns(self.user_name)


def append_event(session: Session, job: Job, kind: str, data: Mapping[str, Any]) -> None:
    """Add an event to a job.

    Two transactions that do this at once for one job get the same sequence, and one of them fails.
    """
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


def after(session: Session, number: int, sequence: int) -> Sequence[sa.Row[int, int, str, str]]:
    """Sequence, time, kind and data of the events after `sequence`, at most BATCH."""
    return session.execute(
        sa.select(JobEvent.sequence, JobEvent.at_ms, JobEvent.kind, JobEvent.data)
        .where(JobEvent.job_number == number, JobEvent.sequence > sequence)
        .order_by(JobEvent.sequence)
        .limit(BATCH)
    ).all()


def latest_progress(session: Session, number: int, most: int) -> Sequence[str]:
    """The data of the latest events of progress, at most so many, in their order."""
    found = session.scalars(
        sa.select(JobEvent.data)
        .where(JobEvent.job_number == number, JobEvent.kind == "progress")
        .order_by(JobEvent.sequence.desc())
        .limit(most)
    ).all()
    return found[::-1]


def latest(session: Session, number: int) -> Latest:
    """Where a job stands now."""
    last = (
        sa.select(sa.func.max(JobEvent.sequence))
        .where(JobEvent.job_number == number)
        .scalar_subquery()
    )
    query = sa.select(Job.state, last, Job.user_name, Job.private).where(Job.number == number)
    state, sequence, user_name, private = session.execute(query).one()
    return Latest(state, sequence or 0, user_name, private)


def as_text(rows: Sequence[sa.Row[int, int, str, str]]) -> bytes:
    """Events as text of an event stream. Their data are JSON already and are not parsed."""
    return "".join(
        f'id: {sequence}\nevent: {kind}\ndata: {{"sequence":{sequence},"at":"{moment(at_ms)}",'
        f'"kind":"{kind}","data":{data}}}\n\n'
        for sequence, at_ms, kind, data in rows
    ).encode()
