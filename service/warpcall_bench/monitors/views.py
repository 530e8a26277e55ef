"""Answers about monitors from the database. Every function takes a session and blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.monitors import (
    Monitor,
    MonitorDelivery,
    MonitorDetails,
    MonitorList,
    MonitorPoint,
    MonitorSeries,
    MonitorStep,
    NewMonitor,
)
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.monitors import database
from warpcall_bench.monitors.history import Key, Point, limits, series_of, steps_of
from warpcall_bench.monitors.tables import Monitor as Row
from warpcall_bench.monitors.tables import MonitorDelivery as DeliveryRow
from warpcall_bench.monitors.tables import MonitorStep as StepRow
from warpcall_service.auth.tables import User
from warpcall_service.formats.payloads import checked
from warpcall_service.identity import Caller
from warpcall_service.store.times import moment

MOST_STEPS = 200
MOST_DELIVERIES = 50


def monitors(session: Session, caller: Caller, user: str | None) -> MonitorList:
    """The monitors that the caller may read."""
    rows = database.listed(session, caller, user)
    return MonitorList(monitors=[checked(Monitor, one) for one in _fields(session, caller, rows)])


def added(session: Session, caller: Caller, row: Row) -> NewMonitor:
    """A monitor that was just added, with its secret."""
    (fields,) = _fields(session, caller, [row])
    return checked(NewMonitor, {**fields, "secret": row.secret})


def details(session: Session, caller: Caller, monitor_id: str) -> MonitorDetails:
    """A monitor with its history.

    Raises:
        NotFound: there is no such monitor, or it is private to another user.
    """
    row = database.find(session, caller, monitor_id)
    (fields,) = _fields(session, caller, [row])
    rows = steps_of(session, row, None)
    series = [
        MonitorSeries(
            case=key.case,
            implementation=key.implementation,
            model=key.model,
            points=[
                MonitorPoint(
                    job=point.job_id, at=moment(point.finished_ms), median_us=point.median_us
                )
                for point in points
            ],
            **_limits(key, points, rows, row.least),
        )
        for key, points in series_of(session, row, caller).items()
    ]
    found = steps(session, rows[:MOST_STEPS], caller)
    return checked(
        MonitorDetails,
        {
            **fields,
            "series": series,
            "found": found,
            "deliveries": _deliveries(session, caller, row),
        },
    )


def steps(
    session: Session, rows: Sequence[StepRow], caller: Caller | None = None
) -> list[MonitorStep]:
    """Steps whose jobs the caller may read; None means all."""
    ids = _job_ids(session, {n for row in rows for n in (row.job_number, row.found_number)}, caller)
    return [
        MonitorStep(
            case=row.case_key,
            implementation=row.implementation,
            model=row.model,
            job=ids[row.job_number],
            found_job=ids[row.found_number],
            found_at=moment(row.found_ms),
            before_us=row.before_us,
            after_us=row.after_us,
            ratio=row.after_us / row.before_us,
            noise=row.noise,
            changed=json.loads(row.changed),
        )
        for row in rows
        if row.job_number in ids and row.found_number in ids
    ]


def _limits(
    key: Key, points: Sequence[Point], rows: Sequence[StepRow], least: float
) -> dict[str, float | None]:
    """The fields of `MonitorSeries` about its present level."""
    begins = [
        row.job_number for row in rows if Key(row.case_key, row.implementation, row.model) == key
    ]
    found = limits(points, begins, least)
    if found is None:
        return dict.fromkeys(("level_us", "low_us", "high_us", "noise"))
    return {
        "level_us": found.level,
        "low_us": found.low,
        "high_us": found.high,
        "noise": found.noise,
    }


def _deliveries(session: Session, caller: Caller, row: Row) -> list[MonitorDelivery]:
    """The latest calls of a monitor's URL, for those who may change the monitor."""
    if not caller.owns(row.user_name):
        return []
    query = (
        sa.select(DeliveryRow)
        .where(DeliveryRow.monitor_number == row.number)
        .order_by(DeliveryRow.number.desc())
        .limit(MOST_DELIVERIES)
    )
    return [
        checked(
            MonitorDelivery,
            {
                "id": one.id,
                "event": one.event,
                "state": one.state,
                "attempts": one.attempts,
                "status": one.status,
                "detail": one.detail,
                "created_at": moment(one.created_ms),
                "next_at": moment(one.next_ms) if one.state == "waiting" else None,
                "finished_at": None if one.finished_ms is None else moment(one.finished_ms),
            },
        )
        for one in session.scalars(query)
    ]


def _fields(session: Session, caller: Caller, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The fields of `Monitor`, of each row."""
    numbers = [row.number for row in rows]
    found = session.execute(
        sa.select(StepRow.monitor_number, sa.func.count())
        .where(StepRow.monitor_number.in_(numbers))
        .group_by(StepRow.monitor_number)
    )
    counts: Mapping[int, int] = {number: count for number, count in found}
    disabled = sa.select(User.name).where(User.disabled_at.is_not(None))
    stopped = {*session.scalars(disabled.where(User.name.in_({row.user_name for row in rows})))}
    latest = session.execute(
        sa.select(Job.monitor, sa.func.max(Job.number))
        .where(Job.monitor.in_([row.id for row in rows]), submissions.readable(caller))
        .group_by(Job.monitor)
    )
    last = {monitor: number for monitor, number in latest}
    cases = session.execute(
        sa.select(Job.number, Job.id, Job.cases_total, JobCase.key)
        .join(JobCase, sa.and_(JobCase.job_number == Job.number, JobCase.position == 0))
        .where(Job.number.in_(last.values()))
    )
    jobs = {number: (id_, total, key) for number, id_, total, key in cases}
    made = []
    for row in rows:
        state = "paused" if row.paused else "active"
        state = "stopped" if row.user_name in stopped else state
        job_id, cases_total, first_case = jobs.get(last.get(row.id, 0), (None, 0, ""))
        made.append(
            {
                "id": row.id,
                "user": row.user_name,
                "op": row.op,
                "request": json.loads(row.request),
                "every_s": row.every_s,
                "least": row.least,
                "private": row.private,
                "state": state,
                "detail": row.detail,
                "failing_since": None if row.failing_ms is None else moment(row.failing_ms),
                "notify": row.notify if caller.owns(row.user_name) else None,
                "runs": row.runs,
                "steps": counts.get(row.number, 0),
                "created_at": moment(row.created_ms),
                "next_at": moment(row.next_ms) if state == "active" else None,
                "last_job": job_id,
                "first_case": first_case,
                "cases_total": cases_total,
            }
        )
    return made


def _job_ids(session: Session, numbers: set[int], caller: Caller | None) -> dict[int, str]:
    may = sa.true() if caller is None else submissions.readable(caller)
    query = sa.select(Job.number, Job.id).where(Job.number.in_(numbers), may)
    return {number: id_ for number, id_ in session.execute(query)}
