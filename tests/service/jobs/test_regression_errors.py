"""How often a check of equal code says "slower", and how often one finds 3 %, on synthetic jobs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.service.jobs.test_regression import BASE, CASE, HEAD, job, measurement
from warpcall.jobs.results import Results
from warpcall.regressions import ALLOWED, JOBS, Regression, judge

CHECKS = 1000
LONGER = math.sqrt(5)  # the third job has five times the rounds


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the log ratio of a job.

    Args:
        job: of its samples; a job tells it with an error of up to a fifth.
        between: of what differs between processes, which a job does not tell.
        place: what the first place is worth, as a log ratio.
        stray: share of jobs that something disturbs by some percent, unnoticed by the job.
    """

    job: float
    between: float = 0.0
    place: float = 0.0
    stray: float = 0.0


QUIET = Noise(0.002)
USUAL = Noise(0.004, between=0.002)
SHARP = Noise(0.0005, between=0.002)
BUSY = Noise(0.012, between=0.003)
PLACES = Noise(0.003, between=0.001, place=0.004)
STRAYS = Noise(0.002, between=0.002, stray=0.1)


def of_interval(id_: str, middle: float, half: float, *, head_first: bool = False) -> Results:
    """A job with a log ratio of `head` to `base`; with `head` first, it has the inverse."""
    found = job(id_, {CASE: (math.exp(middle - half), math.exp(middle + half))})
    if head_first:
        bounds = {"ratio_low": math.exp(-middle - half), "ratio_high": math.exp(half - middle)}
        rows = [
            measurement(CASE, HEAD, 10.0),
            measurement(CASE, BASE, 10.0, ratio=math.exp(-middle), **bounds),
        ]
        found.measurements[:] = rows
    return found


def checked(random: np.random.Generator, ratio: float, noise: Noise) -> Regression:
    """A check as the SDK makes it: further jobs while it is undecided, the second one swapped."""
    jobs: list[Results] = []
    for number in range(JOBS):
        own = noise.job / (LONGER if number == JOBS - 1 else 1)
        swapped = number % 2 == 1
        middle = math.log(ratio) + (-noise.place if swapped else noise.place)
        middle += random.normal(0, own) + random.normal(0, noise.between)
        if random.random() < noise.stray:
            middle += random.normal(0, 0.03)
        half = 1.96 * own * random.uniform(0.8, 1.2)
        jobs.append(of_interval(str(number), middle, half, head_first=swapped))
        found = judge(jobs, "permute", BASE, HEAD)
        if found.outcome != "undecided":
            break
    return found


def shares(ratio: float, noise: Noise) -> dict[str, float]:
    random = np.random.default_rng(21)
    outcomes = Counter(checked(random, ratio, noise).outcome for _ in range(CHECKS))
    return {one: outcomes[one] / CHECKS for one in ("passed", "slower", "undecided")}


@pytest.mark.parametrize("noise", [QUIET, USUAL, SHARP, BUSY, PLACES, STRAYS])
def test_equal_code_is_slower_in_at_most_one_of_fifty_checks(noise: Noise) -> None:
    assert shares(1.0, noise)["slower"] <= 0.02


@pytest.mark.parametrize("noise", [QUIET, USUAL, SHARP, PLACES])
def test_three_percent_are_found_in_nineteen_of_twenty_checks(noise: Noise) -> None:
    found = shares(1.03, noise)

    assert found["slower"] >= 0.95
    assert found["passed"] <= 0.002


@pytest.mark.parametrize("noise", [QUIET, USUAL])
def test_most_checks_of_equal_code_are_decided(noise: Noise) -> None:
    assert shares(1.0, noise)["passed"] >= 0.95


@pytest.mark.parametrize("noise", [QUIET, USUAL, SHARP, BUSY])
def test_what_takes_as_long_as_is_allowed_is_rarely_slower(noise: Noise) -> None:
    # One of twenty, and one percent for the error of a count of 1000.
    assert shares(1 + ALLOWED, noise)["slower"] <= 0.06


def test_a_job_with_head_first_says_the_same() -> None:
    one, other = (
        judge([of_interval("a", 0.03, 0.01, head_first=first)], "permute", BASE, HEAD).rows[0]
        for first in (False, True)
    )

    for row in (one, other):
        bounds = [math.log(value or 1) for value in (row.ratio, row.ratio_low, row.ratio_high)]
        assert bounds == pytest.approx([0.03, 0.0193, 0.0407], abs=1e-4)


@pytest.mark.parametrize(
    ("intervals", "outcome", "low", "high"),
    [
        ([(0.03, 0.004)], "undecided", 0.0244, 0.0356),
        ([(0.03, 0.004), (0.03, 0.004)], "slower", 0.026, 0.034),  # narrower than each
        ([(0.08, 0.01), (0.012, 0.01)], "undecided", -0.0206, 0.1126),  # they disagree
        ([(0.0, 0.004), (0.0, 0.1)], "passed", -0.0056, 0.0056),  # the second tells nothing
    ],
)
def test_the_interval_of_a_row_is_that_of_all_jobs(
    intervals: Sequence[tuple[float, float]], outcome: str, low: float, high: float
) -> None:
    jobs = [of_interval(str(n), *one) for n, one in enumerate(intervals)]
    (row,) = judge(jobs, "permute", BASE, HEAD).rows

    assert row.outcome == outcome
    assert row.ratio_low is not None
    assert row.ratio_high is not None
    assert math.log(row.ratio_low) == pytest.approx(low, abs=5e-4)
    assert math.log(row.ratio_high) == pytest.approx(high, abs=5e-4)
