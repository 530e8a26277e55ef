"""The history of a monitor: the times that its jobs measured, and the steps that are found in them.

Every function takes a session and blocks.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.answers import Measured, changed
from warpcall_bench.jobs.measurements import OF_CASE, basis_for_verdict
from warpcall_bench.jobs.tables import Job, JobCase, Measurement
from warpcall_bench.monitors.detection import RUNS, FoundStep, Limits, find_step, limits_of
from warpcall_bench.monitors.tables import Monitor, MonitorStep
from warpcall_bench.runs.operator_modules import LIMIT
from warpcall_service.identity import Caller
from warpcall_service.store.times import now_ms


@dataclass(frozen=True, slots=True)
class Key:
    """What a series is about: an implementation in a case on devices of one model."""

    case: str
    implementation: str
    model: str


@dataclass(frozen=True, slots=True)
class Point:
    """What one job measured."""

    job_number: int
    job_id: str
    finished_ms: int
    median_us: float
    source_sha256: str | None


def series_of(
    session: Session, monitor: Monitor, caller: Caller | None = None
) -> dict[Key, list[Point]]:
    """The times that the latest jobs of a monitor measured, the earliest first.

    Times of the copy are left out: they are what others are compared with. So are times that are
    no basis for a verdict, because a step in them would say nothing about the code.

    Args:
        caller: only jobs that they may read; None means all.
    """
    latest = (
        sa.select(Job.number)
        .where(
            Job.monitor == monitor.id, sa.true() if caller is None else submissions.readable(caller)
        )
        .order_by(Job.number.desc())
        .limit(RUNS)
        .subquery()
    )
    rows = session.execute(
        sa.select(
            JobCase.key,
            Measurement.implementation,
            Job.model,
            Job.number,
            Job.id,
            Measurement.finished_ms,
            Measurement.median_us,
            Measurement.source_sha256,
        )
        .join(latest, latest.c.number == Measurement.job_number)
        .join(Job, Job.number == Measurement.job_number)
        .join(JobCase, OF_CASE)
        .where(
            basis_for_verdict(),
            Measurement.median_us > 0,
            Measurement.implementation != LIMIT,
        )
        .order_by(Measurement.job_number, Measurement.position)
    )
    found: defaultdict[Key, list[Point]] = defaultdict(list)
    for case, implementation, model, number, job_id, at_ms, median_us, source in rows:
        point = Point(number, job_id, at_ms, median_us or 0.0, source)
        found[Key(case, implementation, model or "")].append(point)
    return dict(found)


def find_steps(session: Session, monitor: Monitor) -> list[MonitorStep]:
    """The steps that the latest job of a monitor has shown, stored as rows.

    Each series is searched from its last known step on, so that no step is found twice.
    """
    found_number = monitor.job_number
    if found_number is None:
        return []
    known: defaultdict[Key, list[int]] = defaultdict(list)
    for step in steps_of(session, monitor, None):
        known[Key(step.case_key, step.implementation, step.model)].append(step.job_number)
    rows = []
    for key, points in series_of(session, monitor).items():
        *earlier, present = _levels(points, sorted(known[key]))
        times = [[point.median_us for point in level] for level in (*earlier, present)]
        found = find_step(times[-1], monitor.least, times[:-1])
        if found is not None:
            before, first = present[found.at - 1], present[found.at]
            why = changed(_origin(session, before), _origin(session, first))
            rows.append(_row(monitor, found_number, key, found, first, why))
    session.add_all(rows)
    session.flush()
    return rows


def steps_of(session: Session, monitor: Monitor, most: int | None) -> Sequence[MonitorStep]:
    """The latest steps of a monitor, the latest first. None means all."""
    query = sa.select(MonitorStep).where(MonitorStep.monitor_number == monitor.number)
    return session.scalars(query.order_by(MonitorStep.number.desc()).limit(most)).all()


def limits(points: Sequence[Point], begins: Sequence[int], least: float) -> Limits | None:
    """What is expected of the next run of a series; None if its present level has too few runs.

    Args:
        begins: numbers of the jobs at which levels begin.
    """
    times = [[point.median_us for point in level] for level in _levels(points, begins)]
    return limits_of(times[-1], least, times[:-1])


def _levels(points: Sequence[Point], begins: Sequence[int]) -> list[list[Point]]:
    """The points of each level; levels begin at jobs of these numbers."""
    levels: list[list[Point]] = [[] for _ in range(len(begins) + 1)]
    for point in points:
        levels[sum(begin <= point.job_number for begin in begins)].append(point)
    return levels


def _origin(session: Session, point: Point) -> Measured:
    job = session.get_one(Job, point.job_number)
    return Measured(job.fingerprint, point.source_sha256, job.problem_sha256)


def _row(
    monitor: Monitor,
    found_number: int,
    key: Key,
    found: FoundStep,
    first: Point,
    changed: Sequence[str],
) -> MonitorStep:
    return MonitorStep(
        monitor_number=monitor.number,
        case_key=key.case,
        implementation=key.implementation,
        model=key.model,
        job_number=first.job_number,
        found_number=found_number,
        before_us=found.before,
        after_us=found.after,
        noise=found.noise,
        changed=json.dumps(changed),
        found_ms=now_ms(),
    )
