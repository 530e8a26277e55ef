"""Where stored times are a basis for a verdict: the rule of `warpcall.jobs.results`, for rows.

Rows keep the verdict with which they were measured. Whatever shows or uses a verdict of stored rows
asks here first, because older rows carry verdicts that the rule does not allow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import sqlalchemy as sa

from warpcall.implementations import WRONG_IN_ODD_CASES
from warpcall.jobs.outcomes import UNDECIDED
from warpcall.jobs.results import (
    TAGS_WITHOUT_VERDICT,
    Measurement,
    can_conclude,
    why_no_verdict,
)
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_bench.runs.stored_results import LEAST, MOST_US


def word(verdict: str | None) -> str | None:
    """A verdict as the API, the pages and the SDK have it. The sampler and stored rows say
    "inconclusive", which servers of an earlier release read in the rows of this one."""
    return UNDECIDED if verdict == "inconclusive" else verdict


def checked_row(row: Measurement) -> Measurement:
    """The row, without its ratio and verdict if its own time is no basis for a verdict."""
    return row if can_conclude(row.status, row.tags) else _without_verdict(row)


def checked_rows(rows: Sequence[Measurement], first: str) -> list[Measurement]:
    """The rows of one case, without ratios and verdicts if the time of `first` is no basis for them.

    Args:
        first: name of the implementation with which the others are compared.
    """
    against = [row for row in rows if row.implementation == first]
    if all(can_conclude(row.status, row.tags) for row in against):
        return [*rows]
    return [_without_verdict(row) for row in rows]


def reason(implementation: str, status: str, tags: Collection[str], pronoun: str = "") -> str:
    """Why there is no verdict on the times of an implementation, for readers; empty if there may be.

    Args:
        pronoun: what stands for "the times of" and the name, such as "its times".
    """
    why = why_no_verdict(status, tags)
    if why in TAGS_WITHOUT_VERDICT:
        return f"{pronoun or f'the times of {implementation}'} are {why}"
    return f"{implementation} has no valid time" if why else ""


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


def _without_verdict(row: Measurement) -> Measurement:
    return dataclasses.replace(row, ratio=None, ratio_low=None, ratio_high=None, verdict=None)
