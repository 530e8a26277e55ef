"""Two jobs differ only if they differ by more than two runs of the same code do."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from tests.service import stored
from tests.service.job_rows import caller, checked, request
from warpcall.jobs.results import ComparedRow
from warpcall_bench.jobs import comparison, lifecycle, submissions
from warpcall_bench.programs import job_check
from warpcall_bench.runs.events import EnvironmentKnown
from warpcall_service.store.database import Store

NAMES = ["mine", "copy"]
OLD, NEW = "1" * 64, "2" * 64
SEEDS = itertools.count()


def measured(
    store: Store,
    factor: float = 1.0,
    *,
    source: str = OLD,
    machine: float = 1.0,
    environment: str = "a machine",
    user: str = "alice",
    copy: bool = True,
) -> str:
    """The id of a job with one case.

    Args:
        factor: time of the implementation, over what it usually takes.
        machine: time of everything in this job, over what it usually takes.
    """
    drawn = np.random.default_rng(next(SEEDS)).lognormal(0, 0.002, (2, 60))
    samples = {"mine": 30 * factor * machine * drawn[0], "copy": 20 * machine * drawn[1]}
    with store.write() as session:
        asked = request(fresh=True, implementations=NAMES)
        job, _ = submissions.submit(session, caller(user), asked, checked(1), None, 1000)
        session.flush()
        facts = {"kernels_sha256": "0" * 64}
        known = EnvironmentKnown(facts, environment, {"mine": source})
        lifecycle.set_environment(session, job, known)
        rows: list[dict[str, Any]] = [
            {**stored.implementation(name, us.tolist()), "median_us": float(np.median(us))}
            for name, us in samples.items()
        ]
        limit = rows[1] if copy else None
        result = stored.result(60, 0, implementations=rows, limit=limit)
        lifecycle.save_case(session, job, 0, result)
        lifecycle.end_job(session, job, "succeeded", "ok", "")
        return job.id


def compared(store: Store, a: str, b: str) -> dict[str, ComparedRow]:
    """The rows of the comparison of two jobs, by implementation."""
    with store.read() as session:
        pair = comparison.pair_of(session, caller("alice"), a, b)
        (part,) = pair.parts()
        asked = json.loads(comparison.lane_request(session, pair, part)[4:])
    text = pair.rows(part, job_check.compare_jobs(asked["compare"], "cpu"))
    return {row["implementation"]: ComparedRow(**row) for row in json.loads(b"[" + text + b"]")}


def repeated(store: Store, *factors: float, **change: Any) -> None:
    for factor in factors:
        measured(store, factor, **change)


def test_without_repeated_measurements_nothing_is_concluded(store: Store) -> None:
    a, b = measured(store), measured(store, 2.0, source=NEW)
    repeated(store, 1.0, 1.01, environment="another machine")
    measured(store, 1.0, source="3" * 64)

    row = compared(store, a, b)["mine"]
    alone = compared(store, a, measured(store))["mine"]

    assert (alone.verdict, alone.margin, alone.repeats) == ("undecided", None, 0)
    assert row.ratio == pytest.approx(2, rel=0.01)
    assert (row.verdict, row.margin, row.repeats) == ("undecided", None, 0)


def test_a_difference_counts_if_it_is_larger_than_between_repeated_jobs(store: Store) -> None:
    repeated(store, 1.0, 1.002, 0.998, 1.001, 1.0, 0.999, user="bob")
    a, same, slower = measured(store), measured(store), measured(store, 1.05, source=NEW)

    rows = [compared(store, a, other)["mine"] for other in (same, slower)]

    assert [row.verdict for row in rows] == ["same", "slower"]
    assert [row.repeats for row in rows] == [5, 6]  # the two that are compared do not count
    assert rows[1].relative_to_copy
    assert rows[1].margin == pytest.approx(0.01)
    assert rows[1].ratio == pytest.approx(1.05, rel=0.002)


def test_the_same_difference_counts_for_nothing_where_repeated_jobs_differ_as_much(
    store: Store,
) -> None:
    repeated(store, 1.0, 1.06, 0.97, 1.03, 0.95, 1.0)
    a, slower = measured(store), measured(store, 1.05, source=NEW)

    row = compared(store, a, slower)["mine"]

    assert row.verdict == "undecided"
    assert row.margin is not None
    assert row.margin > 0.1


def test_a_machine_that_was_slower_for_everything_is_no_slower_implementation(
    store: Store,
) -> None:
    repeated(store, *[1.0] * 6)
    a, b = measured(store), measured(store, machine=1.3)

    rows = compared(store, a, b)

    assert rows["mine"].b_us / rows["mine"].a_us == pytest.approx(1.3, rel=0.01)
    assert rows["mine"].ratio == pytest.approx(1, abs=0.003)
    assert rows["mine"].verdict == "same"
    assert not rows["copy"].relative_to_copy
    assert rows["copy"].verdict == "slower"


def test_different_sources_are_no_repetition_of_each_other(store: Store) -> None:
    repeated(store, 1.0, 1.001, 1.0, 1.001, 1.0, 1.0)
    repeated(store, 2.0, 2.002, source="3" * 64)
    a, slower = measured(store), measured(store, 1.05, source=NEW)

    row = compared(store, a, slower)["mine"]

    assert row.verdict == "slower"
    assert row.margin == pytest.approx(0.01)


def test_in_two_environments_the_wider_spread_counts(store: Store) -> None:
    repeated(store, *[1.0] * 6)
    repeated(store, 1.0, 1.2, 0.9, 1.1, 1.0, 1.3, environment="another machine")
    a, b = measured(store), measured(store, 1.1, environment="another machine")

    row = compared(store, a, b)["mine"]

    assert row.verdict == "undecided"
    assert row.margin is not None
    assert row.margin > 0.2


def test_without_a_copy_nothing_is_concluded(store: Store) -> None:
    repeated(store, *[1.0] * 6)
    a, b = measured(store), measured(store, 2.0, source=NEW, copy=False)

    row = compared(store, a, b)["mine"]

    assert (row.verdict, row.relative_to_copy, row.margin) == ("undecided", False, None)


def test_a_margin_may_come_from_other_cases_and_implementations(store: Store) -> None:
    with store.write() as session:
        for factor in (1.0, 1.001, 1.0, 0.999):
            asked = request(fresh=True, implementations=["other", "copy"])
            job, _ = submissions.submit(session, caller("bob"), asked, checked(2), None, 1000)
            session.flush()
            known = EnvironmentKnown({"kernels_sha256": ""}, "a machine", {"other": OLD})
            lifecycle.set_environment(session, job, known)
            rows = [
                {**stored.implementation("other", [30.0] * 9), "median_us": 30.0 * factor},
                {**stored.implementation("copy", [20.0] * 9), "median_us": 20.0},
            ]
            result = stored.result(9, 0, implementations=rows, limit=rows[1])
            lifecycle.save_case(session, job, 1, result)
    a, slower = measured(store), measured(store, 1.05, source=NEW)

    row = compared(store, a, slower)["mine"]

    assert (row.verdict, row.repeats) == ("slower", 3)
