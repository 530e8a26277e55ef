"""Reads what is stored of the cases of one job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs.results import Measurement
from warpcall_bench.jobs import conclusions
from warpcall_bench.jobs.results import measurements
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_bench.runs.stored_results import result_of, summary_of, within_bounds


class Summary(NamedTuple):
    """What is stored of one implementation in one case, without the samples.

    Attributes:
        key, spec: of the case.
        columns: of the result; see the table.
        limit_us: the time of the copy.
        no_verdict: why its time cannot be compared with that of the first implementation, for
            readers; empty if it can be, or if its status says why.
    """

    position: int
    key: str
    spec: str
    implementation: str
    status: str
    columns: Mapping[str, Any]
    limit_us: float | None
    no_verdict: str


class MeasuredCase(NamedTuple):
    """A case that was measured: its key, its stored result, and its rows in the order of results."""

    position: int
    key: str
    result: Mapping[str, Any]
    rows: list[Measurement]


def summaries(session: Session, job: Job) -> list[Summary]:
    """All that was measured in a job, in the order of its cases."""
    cases = session.execute(
        sa.select(JobCase.position, JobCase.key, JobCase.spec).where(
            JobCase.job_number == job.number
        )
    )
    of_case = {position: (key, spec) for position, key, spec in cases}
    rows = session.execute(
        sa.select(Row.position, Row.implementation, Row.summary, Row.limit_us)
        .where(Row.job_number == job.number)
        .order_by(Row.position)
    )
    found = [
        (position, name, summary_of(text), within_bounds(limit_us, "limit_us"))
        for position, name, text, limit_us in rows
    ]
    read = [
        (position, name, str(columns["status"]), columns, limit_us)
        for position, name, columns, limit_us in found
    ]
    first = json.loads(job.implementations)[0]
    against = {
        position: conclusions.reason(name, status, columns["tags"])
        for position, name, status, columns, _ in read
        if name == first
    }
    return [
        Summary(
            position,
            *of_case[position],
            name,
            status,
            columns,
            limit_us,
            ""
            if status != "ok"
            else conclusions.reason(name, status, columns["tags"], "its times")
            or against.get(position, ""),
        )
        for position, name, status, columns, limit_us in read
    ]


def measured(session: Session, job: Job, first: int, most: int) -> list[MeasuredCase]:
    """At most so many measured cases, from position `first` on."""
    cases = session.execute(
        sa.select(JobCase.position, JobCase.key, JobCase.result)
        .where(
            JobCase.job_number == job.number,
            JobCase.result.is_not(None),
            JobCase.position >= first,
        )
        .order_by(JobCase.position)
        .limit(most)
    ).all()
    found = {
        position: MeasuredCase(position, key, result_of(result), [])
        for position, key, result in cases
        if result is not None  # which mypy cannot see in the query
    }
    for row in measurements(session, job, [*found]):
        found[row.position].rows.append(row)
    return [*found.values()]


def first_without_result(session: Session, job: Job) -> str | None:
    """The key of the first case that has no result yet."""
    return session.scalars(
        sa.select(JobCase.key)
        .where(JobCase.job_number == job.number, JobCase.result.is_(None))
        .order_by(JobCase.position)
        .limit(1)
    ).one_or_none()


def keys_and_specs(session: Session, job_id: str, key: str, most: int) -> Sequence[tuple[str, str]]:
    """The keys and specs of at most so many cases of a job, of which one may be named by its key."""
    rows = session.execute(
        sa.select(JobCase.key, JobCase.spec)
        .join(Job, Job.number == JobCase.job_number)
        .where(Job.id == job_id)
        .where(JobCase.key == key if key else sa.true())
        .order_by(JobCase.position)
        .limit(most)
    )
    return [(key, spec) for key, spec in rows]
