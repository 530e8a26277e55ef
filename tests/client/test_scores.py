"""The score of an implementation over several cases, and its interval."""

from __future__ import annotations

import math
import random

import pytest

from warpcall.jobs.scores import (
    NOTHING,
    Ratio,
    Sums,
    add_ratio,
    add_share_of_limit,
    score_of,
    sentence,
)

Z = 1.96


def summed(*ratios: Ratio) -> Sums:
    sums = NOTHING.copy()
    for ratio in ratios:
        add_ratio(sums, ratio)
    return sums


def measured(rng: random.Random, true_log: float, sigma: float) -> Ratio:
    """A ratio as it is measured, with a 95 % interval that is true."""
    log = rng.gauss(true_log, sigma)
    return Ratio(*(math.exp(log + side * Z * sigma) for side in (0, -1, 1)))


def test_one_case_has_the_ratio_and_the_interval_of_this_case() -> None:
    found = score_of("mine", "torch", summed(Ratio(0.8, 0.7, 0.95)), 1, 1)

    assert found is not None
    assert (found.ratio, found.ratio_low, found.ratio_high) == pytest.approx((0.8, 0.7, 0.95))


def test_the_interval_has_the_true_geometric_mean_in_95_percent_of_all_runs() -> None:
    rng = random.Random(1)
    cases = [(rng.uniform(-1, 1), rng.uniform(0.001, 0.2)) for _ in range(12)]
    true = math.exp(sum(log for log, _ in cases) / len(cases))

    runs, inside = 4000, 0
    for _ in range(runs):
        found = score_of("m", "t", summed(*(measured(rng, *case) for case in cases)), 0, 12)
        assert found is not None
        inside += (found.ratio_low or 0) <= true <= (found.ratio_high or 0)

    assert 0.94 <= inside / runs <= 0.96


def test_a_ratio_of_two_jobs_has_its_true_value_in_95_percent_of_all_runs() -> None:
    rng, runs, inside = random.Random(2), 4000, 0
    for _ in range(runs):
        found = measured(rng, 0.3, 0.05).over(measured(rng, -0.2, 0.02))
        inside += (found.low or 0) <= math.exp(0.5) <= (found.high or 0)

    assert 0.94 <= inside / runs <= 0.96


def test_an_inverted_ratio_has_an_inverted_interval() -> None:
    assert Ratio(0.5, 0.4, 0.8).inverted() == Ratio(2.0, 1.25, 2.5)
    assert Ratio(0.5, None, 0.8).inverted() == Ratio(2.0, 1.25, None)


def test_a_ratio_without_bounds_counts_and_leaves_no_interval() -> None:
    found = score_of("mine", "torch", summed(Ratio(0.5, 0.4, 0.6), Ratio(2.0)), 1, 2)

    assert found is not None
    assert found.ratio == pytest.approx(1.0)
    assert (found.ratio_low, found.ratio_high) == (None, None)


def test_a_score_says_how_many_cases_it_covers_and_counts_failures_as_not_won() -> None:
    sums = summed(Ratio(0.5, 0.45, 0.55), Ratio(0.5, 0.45, 0.55))
    for share in (0.4, 0.9, None):
        add_share_of_limit(sums, share)

    found = score_of("ann/tiles", "torch", sums, 2, 5)

    assert found is not None
    assert (found.compared, found.won, found.cases, found.share_won) == (2, 2, 5, 0.4)
    assert sentence(found) == (
        "score of ann/tiles: 0.500x the time of torch (0.464 to 0.535) over 2 of 5 cases, "
        "faster in 2 of 5 (40 %), 60 % of the limit"
    ).replace(" %", "%")
    assert score_of("ann/tiles", "torch", NOTHING, 0, 5) is None
