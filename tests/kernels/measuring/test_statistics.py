"""Verdicts hold on noise like that of real machines: equal code counts as equal, 2 % are found."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from warpcall_kernels.execution.clock import SWAPPED
from warpcall_kernels.measuring import Precision, compare_runs, median_of_run
from warpcall_kernels.measuring._rounds import Rounds
from warpcall_kernels.measuring._statistics import (
    MARGIN,
    RESAMPLES,
    Floats,
    Verdict,
    _approximate_medians,
    _block_length,
    _resampled_medians,
    compare,
    compare_apart,
    margin_from,
    median_of,
    verdict,
)

pytestmark = pytest.mark.slow

TRIALS = 60
PRECISION = Precision("test", seconds=10, max_rounds=600)
Noise = Callable[[np.random.Generator, int], Floats]


def independent(random: np.random.Generator, n: int) -> Floats:
    return 0.01 * random.standard_normal(n)


def autocorrelated(random: np.random.Generator, n: int) -> Floats:
    shocks, x = random.standard_normal(n), np.zeros(n)
    for i in range(1, n):
        x[i] = 0.9 * x[i - 1] + 0.44 * shocks[i]
    return 0.02 * x + 0.005 * random.standard_normal(n)


def drifting(random: np.random.Generator, n: int) -> Floats:
    walk = 0.002 * np.cumsum(random.standard_normal(n))
    return walk + np.linspace(0, 0.3, n) + 0.005 * random.standard_normal(n)


def heavy_tailed(random: np.random.Generator, n: int) -> Floats:
    outliers = np.where(random.random(n) < 0.05, random.exponential(0.5, n), 0)
    return 0.005 * random.standard_t(2, n) + outliers


def in_bursts(random: np.random.Generator, n: int) -> Floats:
    bad = np.repeat(random.random(n // 50 + 1) < 0.15, 50)[:n]
    return 0.005 * random.standard_normal(n) + bad * np.abs(random.standard_normal(n)) * 0.2


every_noise = pytest.mark.parametrize(
    "noise", [independent, autocorrelated, drifting, heavy_tailed, in_bursts]
)


def calm(random: np.random.Generator, n: int) -> Floats:
    return 0.001 * random.standard_normal(n)


@functools.cache
def measured(noise: Noise, seed: int, placement: float = 0.0) -> Rounds:
    """Rounds of three, of which the second is as fast as the first, until they are enough.

    With every other set of inputs each takes exp(placement) times as long.
    """
    rounds = Rounds(3, PRECISION)
    times_us = np.array([100.0, 100.0, 75.0, 100.0])
    disturbed = noise(np.random.default_rng(seed), 4 * PRECISION.max_rounds)
    taken = 0
    while rounds.counted < PRECISION.max_rounds:
        if not rounds.due():
            if rounds.convergence().converged:
                break
            rounds.postpone_check()
        scheduled = rounds.plan(max(1, min(50, rounds.due())))
        placed = placement * np.array([p.inputs % SWAPPED for p in scheduled])
        now = np.exp(disturbed[taken : taken + len(scheduled)] + placed)
        rounds.take(scheduled, list(times_us[[p.candidate for p in scheduled]] * now), None)
        taken += len(scheduled)
    return rounds


def verdicts(noise: Noise, effect: float, placement: float = 0.0) -> list[Verdict]:
    """What is said of one that takes exp(effect) times as long as the other."""
    found = []
    for rounds in (measured(noise, seed, placement) for seed in range(TRIALS)):
        with slowed(rounds, 1, effect):
            found.append(rounds.relative(1, margin_from(rounds.a_a())).verdict)
    return found


@contextlib.contextmanager
def slowed(rounds: Rounds, candidate: int, effect: float) -> Iterator[None]:
    """As if it had taken exp(effect) times as long."""
    rounds.all(candidate)[:] *= math.exp(effect)
    yield
    rounds.all(candidate)[:] /= math.exp(effect)


@every_noise
def test_what_is_equal_is_distinguished_in_one_of_twenty_at_most(noise: Noise) -> None:
    found = verdicts(noise, 0.0)

    assert found.count("faster") + found.count("slower") <= TRIALS // 20
    assert found.count("same") >= 0.8 * TRIALS


@every_noise
@pytest.mark.parametrize(("effect", "expected"), [(0.02, "slower"), (-0.02, "faster")])
def test_a_true_difference_of_2_percent_is_found(
    noise: Noise, effect: float, expected: Verdict
) -> None:
    assert verdicts(noise, effect).count(expected) >= 0.95 * TRIALS


@pytest.mark.parametrize("noise", [calm, heavy_tailed])
@pytest.mark.parametrize(
    ("effect", "expected"), [(0.0, "same"), (0.02, "slower"), (-0.02, "faster")]
)
def test_where_inputs_lie_does_not_change_what_is_said(
    noise: Noise, effect: float, expected: Verdict
) -> None:
    placement = 0.02  # a median of all rounds would lie anywhere within it, and never settle

    assert verdicts(noise, effect, placement).count(expected) >= 0.9 * TRIALS
    assert all(measured(noise, seed, placement).convergence().converged for seed in range(TRIALS))


def test_runs_are_compared_whatever_their_inputs_lay() -> None:
    ours, theirs = (measured(calm, seed, placement) for seed, placement in ((1, 0.02), (2, -0.02)))

    found = compare_runs(ours.all(0), theirs.all(0))

    # half of each run's rounds differ by 2 %, one up and one down: 1 and -1 % on the average
    assert found.ratio == pytest.approx(math.exp(-0.02), rel=1e-3)
    assert found.half_width < 0.002


@every_noise
@pytest.mark.parametrize("n", [60, 600])
def test_approximate_medians_of_resamples_are_like_those_of_resamples(noise: Noise, n: int) -> None:
    widths, shifts = [], []
    for seed in range(20):
        series = noise(np.random.default_rng(seed), n).reshape(-1, 2)
        series[:, 1] += 0.01
        low, high = np.percentile(_resampled_medians(series, 1), (2.5, 97.5))
        approximate = np.percentile(_approximate_medians(series, 1), (2.5, 97.5))
        widths.append((approximate[1] - approximate[0]) / (high - low))
        shifts.append((approximate.mean() - (low + high) / 2) / (high - low))

    assert 0.9 < np.median(widths) < 1.4  # wider where the noise drifts
    assert abs(np.median(shifts)) < 0.1


@pytest.mark.parametrize("noise", [independent, autocorrelated, heavy_tailed])
def test_the_interval_of_two_runs_holds_the_truth(noise: Noise) -> None:
    random = np.random.default_rng(3)
    runs = [np.exp(noise(random, 200)) for _ in range(200)]

    found = [compare_runs(a, 1.05 * b) for a, b in zip(runs[::2], runs[1::2], strict=True)]

    assert sum(one.low <= 1.05 <= one.high for one in found) >= 0.85 * len(found)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_runs_without_noise_are_compared_exactly(value: float) -> None:
    a = np.full(60, 10.0)

    found = compare_runs(a, math.exp(value) * a)

    assert (found.ratio, found.low, found.high) == pytest.approx((math.exp(value),) * 3)


@pytest.mark.parametrize("noise", [autocorrelated, drifting])
def test_what_lasts_is_divided_out_by_pairs(noise: Noise) -> None:
    rounds = measured(noise, 1)
    a, b = rounds.counting(0), rounds.counting(1)

    assert compare(a, b).half_width < 0.5 * compare_apart(a, b).half_width


def test_an_interval_holds_the_truth() -> None:
    random = np.random.default_rng(5)
    series = [np.exp(autocorrelated(random, 400)) for _ in range(100)]

    found = [median_of(s) for s in series]

    assert sum(one.low <= 1 <= one.high for one in found) >= 0.85 * len(found)


def test_a_median_lies_in_its_interval_also_if_two_sets_of_inputs_differ() -> None:
    """All samples in one series have a median anywhere between the two sets, and there are so
    many that neighbouring ones are reduced to their medians first.
    """
    random = np.random.default_rng(6)
    sets = np.arange(6001) % 2
    samples = np.where(sets, 17.86, 17.96) + 0.01 * random.standard_normal(6001)

    found = median_of(samples, sets)

    assert found.value == pytest.approx(math.sqrt(17.86 * 17.96), abs=0.002)
    assert found.low <= found.value <= found.high
    assert found.high - found.low < 0.005


def test_the_median_of_a_run_is_that_with_an_interval() -> None:
    rounds = measured(drifting, 1, 0.01)
    samples = rounds.all(1)[: len(rounds)].copy()
    found = rounds.median(1)

    assert found is not None
    assert median_of_run(samples) == found.value
    assert median_of_run(samples) != pytest.approx(np.median(samples), rel=1e-4)
    assert math.isnan(median_of_run([math.nan, math.nan]))


@pytest.mark.parametrize("n", [6, 7, 500, 501])
def test_a_resampled_median_is_that_of_blocks_of_the_series_as_a_circle(n: int) -> None:
    """Also of values that occur several times."""
    series = np.random.default_rng(8).normal(size=(n, 2)).round(1)
    length = _block_length(series)
    begins = np.random.default_rng(3).integers(0, n, (RESAMPLES, -(-n // length), 1))
    drawn = (begins + np.arange(length)).reshape(RESAMPLES, -1)[:, :n] % n

    found = _resampled_medians(series, 3)

    assert np.array_equal(found, np.median(series[drawn], axis=1))


def test_the_ratio_is_that_of_the_medians() -> None:
    random = np.random.default_rng(7)
    sets = np.arange(4000) % 2
    a = np.where(sets, 17.8, 18.2) + 0.02 * random.standard_normal(4000)
    b = np.where(sets, 19.9, 19.1) + 0.02 * random.standard_normal(4000)

    ratio = compare(a, b, sets=sets).ratio

    assert median_of(b, sets).value / median_of(a, sets).value == pytest.approx(ratio, rel=1e-4)


@pytest.mark.parametrize(("samples", "median"), [([], None), ([3.0], 3.0), ([math.nan, 2.0], 2.0)])
def test_a_few_samples_have_a_median_without_bounds(
    samples: list[float], median: float | None
) -> None:
    found = median_of(samples, np.arange(len(samples)) % 2)

    assert math.isnan(found.value) if median is None else found.value == pytest.approx(median)
    assert (found.low, found.high) == (0.0, math.inf)


def test_a_ratio_is_of_medians_of_pairs() -> None:
    a = np.array([1.0, 2.0, 4.0, 8.0, math.nan, 16.0, 32.0, 64.0])

    found = compare(a, 1.5 * a)

    assert found.ratio == pytest.approx(1.5)
    assert (found.low, found.high) == pytest.approx((1.5, 1.5))
    assert (found.n, found.verdict) == (7, "slower")


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_few_pairs_tell_nothing(n: int) -> None:
    found = compare([1.0] * n, [2.0] * n)

    assert (found.n, found.verdict) == (n, "inconclusive")
    assert math.isinf(found.half_width)


@pytest.mark.parametrize(
    ("low", "high", "margin", "expected"),
    [
        (0.011, 0.02, 0.01, "slower"),
        (-0.02, -0.011, 0.01, "faster"),
        (-0.009, 0.009, 0.01, "same"),
        (0.005, 0.02, 0.01, "inconclusive"),
        (-0.02, 0.02, 0.01, "inconclusive"),
        (0.011, 0.02, 0.015, "inconclusive"),  # a noisier machine
        (-0.05, 0.05, 0.1, "inconclusive"),  # so noisy that it cannot say "same"
        (0.5, 0.6, 0.1, "slower"),
    ],
)
def test_a_verdict_needs_the_whole_interval(
    low: float, high: float, margin: float, expected: str
) -> None:
    assert verdict(low, high, margin) == expected


def test_the_margin_grows_with_what_the_same_code_differs_by() -> None:
    rng = np.random.default_rng(1)
    calm, rough = (np.exp(s * rng.standard_normal(200)) for s in (1e-4, 0.2))

    assert margin_from(compare(calm, calm)) == MARGIN
    noisy = compare(rough, np.roll(rough, 1))
    assert margin_from(noisy) == pytest.approx(2 * noisy.half_width)
    assert margin_from(None) == MARGIN


def test_a_round_times_everyone_once_and_next_in_the_opposite_order() -> None:
    rounds = Rounds(3, PRECISION)

    scheduled = rounds.plan(8)

    order = [[p.candidate for p in scheduled if p.round == n] for n in range(8)]
    assert all(sorted(c for c in one if c != rounds.twin) == [0, 1, 2] for one in order)
    assert [n for n, one in enumerate(order) if rounds.twin in one] == [3, 7]
    for even, odd in zip(order[::2], order[1::2], strict=True):
        assert even == [c for c in reversed(odd) if c != rounds.twin]
    sets = [{p.inputs % 2 for p in scheduled if p.candidate == c} for c in range(4)]
    assert sets == [{0, 1}] * 4


def test_a_masked_round_is_kept_and_does_not_count() -> None:
    rounds = Rounds(2, PRECISION)
    calm, hot = rounds.plan(2), None
    rounds.take(calm, [1.0] * len(calm), None)
    hot = rounds.plan(1)

    rounds.take(hot, [9.0] * len(hot), "thermal slowdown")

    assert rounds.masked == {2: "thermal slowdown"}
    assert (len(rounds), rounds.counted) == (3, 2)
    assert list(rounds.all(0)) == [1.0, 1.0, 9.0]
    assert list(rounds.counting(0)) == [1.0, 1.0]


def test_rounds_without_a_twin_compare_the_first_implementation_with_itself_in_none() -> None:
    rounds = Rounds(2, PRECISION)
    scheduled = rounds.plan(3)  # the first twin is in the fourth round
    rounds.take(scheduled, [10.0] * len(scheduled), None)

    assert rounds.a_a().n == 0
    assert rounds.relative(1, 0.0).n > 0
