"""What a job says of the implementation that it is about, kept with the job case by case, so that
lists read it with their rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from warpcall.jobs import JobOutcome, outcomes
from warpcall.jobs.outcomes import Row
from warpcall_bench.jobs.tables import Job


def add_case(job: Job, result: Mapping[str, Any]) -> None:
    """Count a case that was just measured.

    Args:
        result: the sampler's, with a member for each implementation.
    """
    names = json.loads(job.implementations)
    rows = {
        one["name"]: row_of(one["status"], one["median_us"], one["tags"], one["relative"])
        for one in result["implementations"]
    }
    kept = json.loads(job.outcomes or "[]") or outcomes.no_cases(names)
    outcomes.add_case(kept, names[0], rows)
    job.outcomes = json.dumps(kept, separators=(",", ":"))


def row_of(
    status: str,
    median_us: float | None,
    tags: Sequence[str],
    relative: Mapping[str, Any] | None,
) -> Row:
    """What outcomes are made from, of one implementation in one case.

    Args:
        relative: its ratio to the first implementation, as the sampler has it.
    """
    found = relative or {}
    has_interval = None not in (found.get("low"), found.get("high"))
    return Row(status, median_us, tags, found.get("ratio"), found.get("verdict"), has_interval)


def outcome_of(job: Job) -> JobOutcome | None:
    """The outcome that lists show; None if not all of the measured cases were counted, because an
    older server measured some."""
    found = map(outcomes.outcome_of, json.loads(job.outcomes or "[]"))
    whole = [one for one in found if one.cases == job.cases_done and one.cases]
    return outcomes.main_outcome(whole)
