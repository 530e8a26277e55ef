"""Rows of results from the database, with a verdict only where their times are a basis for one.

The rule is that of `warpcall.jobs.results`. Rows keep the verdict with which they were measured.
Whatever shows or uses a verdict of stored rows asks here first, because older rows carry verdicts
that the rule does not allow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.implementations import WRONG_IN_ODD_CASES
from warpcall.jobs.outcomes import UNDECIDED, why_undecided
from warpcall.jobs.results import (
    TAGS_WITHOUT_VERDICT,
    Measurement,
    can_conclude,
    why_no_verdict,
)
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_bench.runs.stored_results import LEAST, MOST_US, summary_of
from warpcall_service.formats.payloads import checked

# The case of a row, in a join of both tables.
OF_CASE = sa.and_(JobCase.job_number == Row.job_number, JobCase.position == Row.position)
STORED = [field.name for field in dataclasses.fields(Measurement)]  # some are columns of a row


def series(op: str, implementation: str, case_key: str) -> str:
    """Hash that is the same for all measurements of an implementation in a case, in any job."""
    return hashlib.sha256(json.dumps([op, implementation, case_key]).encode()).hexdigest()


def measurements(
    session: Session, job: Job, positions: Sequence[int] | None = None
) -> list[Measurement]:
    """Rows of the cases at these positions, case by case, with the implementations in the order of
    the request. None means all cases. Those of cases in which the time of the first implementation
    is no basis for a verdict have no verdict."""
    names = json.loads(job.implementations)
    found: Iterable[Any] = session.execute(
        sa.select(
            Row.position,
            Row.implementation,
            Row.source_sha256,
            Row.problem_sha256,
            Row.summary,
            JobCase.key,
        )
        .join(JobCase, OF_CASE)
        .where(
            Row.job_number == job.number,
            sa.true() if positions is None else Row.position.in_(positions),
        )
    )
    rows = [measurement(row, row.key) for row in found]
    rows.sort(key=lambda row: (row.position, names.index(row.implementation)))
    return [
        row
        for _, of_case in groupby(rows, lambda row: row.position)
        for row in checked_rows([*of_case], names[0])
    ]


def measurement(row: Any, case: str) -> Measurement:
    """A row of the results. It has no verdict if its own time is no basis for one; see `measurements`
    for the rows of a case.

    Args:
        row: a `Row`, or only its columns that `measurements` reads.
        case: key of the case.
    """
    stored = {"traceback": None, **summary_of(row.summary)}  # older servers kept no traceback
    relative = stored.get("relative") or {}
    found = checked(
        Measurement,
        {
            **{name: stored[name] for name in STORED if name in stored},
            "position": row.position,
            "case": case,
            "implementation": row.implementation,
            "source_sha256": row.source_sha256,
            "problem_sha256": row.problem_sha256,
            "ratio": relative.get("ratio"),
            "ratio_low": relative.get("low"),
            "ratio_high": relative.get("high"),
            "verdict": word(relative.get("verdict")),
        },
    )
    return found if can_conclude(found.status, found.tags) else _without_verdict(found)


def with_reasons(
    rows: Iterable[Measurement], margins: Mapping[int, float], precision: str
) -> list[Measurement]:
    """Rows that say why they are undecided.

    Args:
        margins: of the cases, by position. Rows of other cases stay as they are.
        precision: with which the job measured.
    """
    return [
        dataclasses.replace(
            row,
            why_undecided=why_undecided(
                row.ratio_low or 1.0, row.ratio_high or 1.0, margins[row.position], precision
            ),
        )
        if is_undecided(row) and row.position in margins
        else row
        for row in rows
    ]


def is_undecided(row: Measurement) -> bool:
    """Whether the interval of a row leaves its verdict open."""
    return row.verdict == UNDECIDED and bool(row.ratio_low and row.ratio_high)


def no_verdict(row: Measurement, first: Measurement) -> str:
    """Why the time of a row cannot be compared with that of the first implementation, for readers;
    empty if it can be, or if its status says why."""
    if row.status != "ok":
        return ""
    return _reason(row, "its times") or _reason(first, f"the times of {first.implementation}")


def word(verdict: str | None) -> str | None:
    """A verdict as the API, the pages and the SDK have it. The sampler and stored rows say
    "inconclusive", which servers of an earlier release read in the rows of this one."""
    return UNDECIDED if verdict == "inconclusive" else verdict


def checked_rows(rows: Sequence[Measurement], first: str) -> list[Measurement]:
    """The rows of one case, without ratios and verdicts if the time of `first` is no basis for them.

    Args:
        first: name of the implementation with which the others are compared.
    """
    against = [row for row in rows if row.implementation == first]
    if all(can_conclude(row.status, row.tags) for row in against):
        return [*rows]
    return [_without_verdict(row) for row in rows]


def _reason(row: Measurement, times: str) -> str:
    why = why_no_verdict(row.status, row.tags)
    if why in TAGS_WITHOUT_VERDICT:
        return f"{times} are {why}"
    return f"{row.implementation} has no valid time" if why else ""


def basis_for_verdict() -> sa.ColumnElement[bool]:
    """Whether the time of a stored row is a basis for a verdict, in SQL."""
    us = Row.median_us
    sound = sa.or_(us.is_(None), us == 0, us.between(LEAST, MOST_US))  # null and 0: only checked
    return sa.and_(Row.status == "ok", sound, *(~tagged(tag) for tag in TAGS_WITHOUT_VERDICT))


def has_time() -> sa.ColumnElement[bool]:
    """Whether a stored row has a time, and the copy of its case, too, within the bounds of times."""
    return sa.and_(*(one.between(LEAST, MOST_US) for one in (Row.median_us, Row.limit_us)))


def can_rank(status: str, tags: Collection[str]) -> bool:
    """Whether a row may have a rank on a board: its time is a basis for a verdict, and its version is
    not known to be wrong in odd cases."""
    return can_conclude(status, tags) and WRONG_IN_ODD_CASES not in tags


def basis_for_rank() -> sa.ColumnElement[bool]:
    """Whether a stored row may have a rank, in SQL; the same rule as `can_rank`."""
    return sa.and_(basis_for_verdict(), ~tagged(WRONG_IN_ODD_CASES))


def tagged(tag: str) -> sa.ColumnElement[bool]:
    """Whether a stored row has a tag. The tags are the last member of its summary."""
    return Row.summary.like(f'%"tags": [%"{tag}"%')


def verified() -> sa.ColumnElement[bool]:
    """Whether a stored row is of a verified kernel. No text in a summary has this member, because JSON
    writes a quotation mark in a text with a backslash."""
    return Row.summary.like('%"verified": true%')


def _without_verdict(row: Measurement) -> Measurement:
    return dataclasses.replace(row, ratio=None, ratio_low=None, ratio_high=None, verdict=None)
