"""Where the time of a job went, from its events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import UNFINISHED
from warpcall_service.store.tables import Job, JobEvent
from warpcall_service.store.times import now_ms

MOST_EVENTS = 5000  # of a job whose events are added up
# The phases of the sampler, and those that the page names.
NAMES = {"correctness": "check", "preparing": "check", "warmup": "warm"}
LABELS = {
    "queue": "in the queue",
    "start": "starting",
    "check": "compile and check",
    "warm": "warm-up",
    "rounds": "rounds",
    "extras": "hot times and energy",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase with its share of the bar, in percent."""

    name: str
    label: str
    seconds: float
    begin: float
    share: float


@dataclass(frozen=True, slots=True)
class Doing:
    """What a job does now, from its last progress event.

    Attributes:
        half_width: half the width of the widest interval of a ratio so far; None if unknown.
        medians_us: by implementation, the medians so far; empty outside of rounds.
    """

    phase: str
    position: int
    implementation: str | None
    rounds: int | None
    half_width: float | None
    medians_us: dict[str, float]


def phases(session: Session, job: Job) -> list[Phase]:
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
    total = sum(spent.values())
    found, begin = [], 0.0
    for name, label in LABELS.items():
        if total and (ms := spent.get(name, 0)):
            share = 100 * ms / total
            found.append(Phase(name, label, ms / 1e3, round(begin, 2), round(share, 2)))
            begin += share
    return found


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
            name = NAMES.get(phase, phase if phase in LABELS else "check")
    if since is not None:
        spent[name] = spent.get(name, 0) + max(0, end_ms - since)
    return spent


def doing(session: Session, job: Job) -> Doing | None:
    """What a job that runs does now; None if it has not said."""
    row = session.execute(
        sa.select(JobEvent.kind, JobEvent.data)
        .where(JobEvent.job_number == job.number)
        .order_by(JobEvent.sequence.desc())
        .limit(1)
    ).one_or_none()
    if row is None or row.kind != "progress":
        return None
    data = json.loads(row.data)
    return Doing(
        LABELS.get(NAMES.get(data.get("phase"), data.get("phase")), str(data.get("phase"))),
        int(data.get("position", 0)),
        data.get("implementation"),
        data.get("rounds"),
        data.get("half_width"),
        data.get("medians_us") or {},
    )


def last_sequence(session: Session, job: Job) -> int:
    """The sequence of the job's last event."""
    query = sa.select(sa.func.max(JobEvent.sequence)).where(JobEvent.job_number == job.number)
    return session.scalars(query).one() or 0
