"""What the database knows about the spread between jobs that measured the same code.

A worker computes margins from it (`warpcall_kernels.measuring.between_runs`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypedDict

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall_bench.jobs.measurements import basis_for_verdict, has_time
from warpcall_bench.jobs.tables import Measurement
from warpcall_bench.runs.operator_modules import LIMIT

RECENT = 20_000  # latest measurements of an environment that are searched for repeated ones
MAX_GROUPS = 100  # of one environment
MAX_RUNS = 20  # of a group: the latest ones


class Spread(TypedDict):
    """Repeated measurements.

    Attributes:
        groups: logarithms of times relative to the copy, or of the copy's own times. A group is of
            one source in one case, with a value for each job.
        repeats: number of jobs that repeated an earlier measurement.
    """

    groups: list[list[float]]
    repeats: int


def of_environment(session: Session, environment: str, without: Collection[int]) -> Spread:
    """The spread of all that was measured repeatedly in an environment, except the copy.

    Args:
        without: numbers of jobs that are left out, because they are compared.
    """
    recent = (
        _measurements(environment, without)
        .where(Measurement.implementation != LIMIT)  # its times are relative to nothing
        .order_by(Measurement.job_number.desc())
        .limit(RECENT)
        .subquery()
    )
    repeated = (
        sa.select(recent.c.series_sha256, recent.c.source_sha256)
        .group_by(recent.c.series_sha256, recent.c.source_sha256)
        .having(sa.func.count() > 1)
        .order_by(sa.func.max(recent.c.job_number).desc())
        .limit(MAX_GROUPS)
        .subquery()
    )
    rows = session.execute(
        sa.select(recent).join(
            repeated,
            sa.and_(
                recent.c.series_sha256 == repeated.c.series_sha256,
                recent.c.source_sha256.is_not_distinct_from(repeated.c.source_sha256),
            ),
        )
    )
    return _spread(rows)


def of_series(
    session: Session, environment: str, series: Collection[str], without: Collection[int]
) -> Mapping[str, Spread]:
    """The spread of each series that was measured repeatedly in an environment."""
    rows = session.execute(
        _measurements(environment, without)
        .where(Measurement.series_sha256.in_(series))
        .order_by(Measurement.job_number.desc())
        .limit(2 * MAX_RUNS * len(series))
    )
    by_series = defaultdict(list)
    for row in rows:
        by_series[row.series_sha256].append(row)
    return {name: _spread(found) for name, found in by_series.items()}


def _measurements(environment: str, without: Collection[int]) -> sa.Select[*tuple[Any, ...]]:
    """All times of an environment that are a basis for a verdict, and whose source is known. The
    copy has no source.

    Margins that were learned from other times would change verdicts on other implementations.
    """
    return sa.select(
        Measurement.job_number,
        Measurement.implementation,
        Measurement.series_sha256,
        Measurement.source_sha256,
        Measurement.median_us,
        Measurement.limit_us,
    ).where(
        Measurement.environment == environment,
        Measurement.job_number.not_in(without),
        basis_for_verdict(),
        has_time(),
        sa.or_(Measurement.source_sha256.is_not(None), Measurement.implementation == LIMIT),
    )


def _spread(rows: Iterable[Any]) -> Spread:
    groups: dict[tuple[str, str | None], dict[int, float]] = defaultdict(dict)
    for row in rows:
        us = row.median_us if row.implementation == LIMIT else row.median_us / row.limit_us
        groups[row.series_sha256, row.source_sha256][row.job_number] = math.log(us)
    latest = [dict(sorted(found.items())[-MAX_RUNS:]) for found in groups.values()]
    repeats = {number for found in latest for number in [*found][1:]}
    return {"groups": [[*found.values()] for found in latest], "repeats": len(repeats)}
