"""Conditions and orders of a list of jobs, in SQL."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa

from warpcall.jobs import COMPLETED
from warpcall.jobs.outcomes import NO_OTHER, NOT_TIMED, RIGHT, STATUS_WORDS, UNDECIDED
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.words import words_of

MILLISECOND = timedelta(milliseconds=1)

Found = Literal["faster", "slower", "same", "undecided", "wrong result", "without a time", "right"]
# What a case of a job counts as in its outcome, by what a reader asks for.
COUNTED: dict[str, tuple[str, ...]] = {
    "faster": ("faster",),
    "slower": ("slower",),
    "same": ("same",),
    "undecided": (UNDECIDED,),
    "wrong result": ("wrong_result",),
    "without a time": (*(kind for kind in STATUS_WORDS if kind != "unchecked"), NO_OTHER),
    "right": (RIGHT, NOT_TIMED),
}
# The columns by which a list of jobs can be sorted. Rows that are equal there come latest first.
SORTS: dict[str, sa.ColumnElement[Any]] = {
    "job": sa.func.lower(
        sa.func.coalesce(
            sa.func.nullif(Job.name, ""),
            sa.select(JobCase.key)
            .where(JobCase.job_number == Job.number, JobCase.position == 0)
            .correlate(Job)
            .scalar_subquery(),
            Job.op,
        )
    ),
    "precision": Job.precision.expression,
    "user": Job.user_name.expression,
    "took": Job.took_ms.expression,
    "submitted": Job.number.expression,
}


def has_words(text: str) -> list[sa.ColumnElement[bool]]:
    """That a job has each word in its name, note, cases, implementations, tags, op, user or id."""
    columns = (Job.name, Job.note, Job.implementations, Job.tags, Job.op, Job.user_name, Job.id)
    return [
        sa.or_(
            *(column.icontains(word, autoescape=True) for column in columns),
            Job.number.in_(
                sa.select(JobCase.job_number).where(JobCase.key.icontains(word, autoescape=True))
            ),
        )
        for word in words_of(text)
    ]


def has_found(found: str) -> sa.ColumnElement[bool]:
    """That a job found this, one of COUNTED, of the implementation that it is about, in at least one
    of its cases."""
    # The column is JSON without spaces, and no name in it has a quotation mark.
    kinds = (Job.outcomes.contains(f'"{kind}":', autoescape=True) for kind in COUNTED[found])
    return sa.and_(Job.state.in_((*COMPLETED, "failed")), sa.or_(*kinds))


def submitted_within(since: date | None, until: date | None) -> list[sa.ColumnElement[bool]]:
    """That a job was submitted on these days or between them, in UTC."""
    found: list[sa.ColumnElement[bool]] = []
    if since is not None:
        found.append(Job.created_ms >= _begin_ms(since))
    if until is not None:
        found.append(Job.created_ms < _begin_ms(until) + timedelta(days=1) // MILLISECOND)
    return found


def _begin_ms(day: date) -> int:
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return (begin - datetime(1970, 1, 1, tzinfo=UTC)) // MILLISECOND
