"""Where the time of a job went, and what it does now, from its events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import UNFINISHED, JobActivity, JobPhase, JobProgress
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.tables import Job, JobEvent
from warpcall_bench.runs.stored_results import within_bounds
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.store.times import now_ms

MOST_EVENTS = 5000  # of a job whose events are added up
ORDER = ("queue", "start", "check", "warm", "rounds", "extras")
NAMES = {
    "correctness": "check",
    "preparing": "check",
    "warmup": "warm",
    "left": "rounds",
}  # phases of the sampler


def job_progress(session: Session, caller: Caller, job_id: str) -> JobProgress:
    """The progress of a job.

    Raises:
        NotFound: there is no such job, or the caller may not read it.
    """
    job = submissions.find(session, caller, job_id)
    found = {"phases": phases(session, job), "now": activity(session, job)}
    return checked(JobProgress, {"id": job.id, "state": job.state, **found})


def phases(session: Session, job: Job) -> list[JobPhase]:
    """The phases of a job in order, with those that took any time; empty if it is not known."""
    numbers = sa.select(sa.func.count()).where(JobEvent.job_number == job.number)
    if session.scalars(numbers.select_from(JobEvent)).one() > MOST_EVENTS:
        return []
    rows = session.execute(
        sa.select(JobEvent.at_ms, JobEvent.kind, JobEvent.data)
        .where(JobEvent.job_number == job.number)
        .order_by(JobEvent.sequence)
    ).all()
    if job.started_ms is not None and not any(kind == "progress" for _, kind, _ in rows):
        return []  # it has ended long ago, and its progress was deleted
    end = now_ms() if job.state in UNFINISHED else job.finished_ms or now_ms()
    spent = _added_up(((at, kind, json.loads(data)) for at, kind, data in rows), end)
    return [JobPhase(name=name, seconds=spent[name] / 1e3) for name in ORDER if spent.get(name)]


def _added_up(events: Iterable[tuple[int, str, dict[str, Any]]], end_ms: int) -> dict[str, int]:
    """Milliseconds by phase."""
    spent: dict[str, int] = {}
    name, since = "queue", None
    for at, kind, data in events:
        if since is not None:
            spent[name] = spent.get(name, 0) + max(0, at - since)
        since = at
        if kind == "state":
            state = data.get("state")
            if state in ("queued", "interrupted"):
                name = "queue"
            elif state == "preparing":
                name = "start"
        elif kind == "progress":
            phase = str(data.get("phase", ""))
            name = NAMES.get(phase, phase if phase in ORDER else "check")
    if since is not None:
        spent[name] = spent.get(name, 0) + max(0, end_ms - since)
    return spent


def activity(session: Session, job: Job) -> JobActivity | None:
    """What a job that runs does now; None if it does not run, or has not said."""
    if job.state not in UNFINISHED:
        return None
    row = session.execute(
        sa.select(JobEvent.kind, JobEvent.data)
        .where(JobEvent.job_number == job.number)
        .order_by(JobEvent.sequence.desc())
        .limit(1)
    ).one_or_none()
    if row is None or row.kind != "progress":
        return None
    data = within_bounds(json.loads(row.data))
    return JobActivity(
        phase=str(data.get("phase")),
        position=int(data.get("position", 0)),
        implementation=data.get("implementation"),
        rounds=data.get("rounds"),
        half_width=data.get("half_width"),
        medians_us=data.get("medians_us") or {},
    )


def last_sequence(session: Session, job: Job) -> int:
    """The sequence of the job's last event."""
    query = sa.select(sa.func.max(JobEvent.sequence)).where(JobEvent.job_number == job.number)
    return session.scalars(query).one() or 0
