"""Steps in synthetic series of times: a real one is found once and soon, noise is none."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.service.monitors.series import (
    Draw,
    busy,
    following_each_other,
    heavy_tails,
    noisy,
    quiet,
    searched,
    times,
    very_noisy,
)
from warpcall_bench.monitors.detection import BASELINE, find_step

pytestmark = pytest.mark.slow

SEEDS = range(15)
RUNS = 60
AT = 40


@pytest.mark.parametrize("step", [1.05, 1 / 1.05])
@pytest.mark.parametrize("draw", [quiet, busy])
def test_a_step_of_5_percent_is_found_once_within_two_runs(draw: Draw, step: float) -> None:
    for seed in SEEDS:
        found = searched(times(draw, seed, RUNS, AT, step))

        assert len(found) == 1, seed
        runs, one = found[0]
        assert runs <= AT + 2, seed
        assert one.at == AT, seed
        assert one.ratio == pytest.approx(step, abs=0.02)


def test_with_a_noise_of_1_percent_most_such_steps_are_found_within_two_runs() -> None:
    found = [searched(times(noisy, seed, RUNS, AT, 1.05)) for seed in SEEDS]

    assert [len(one) for one in found] == [1] * len(SEEDS)
    needed = [one[0][0] - AT for one in found]
    assert max(needed) <= 4
    assert sum(runs <= 2 for runs in needed) >= 0.8 * len(SEEDS)


@pytest.mark.parametrize("draw", [quiet, busy, noisy, heavy_tails, very_noisy])
def test_in_200_runs_without_a_step_at_most_one_is_found(draw: Draw) -> None:
    counts = Counter(len(searched(times(draw, seed, 200))) for seed in SEEDS)

    assert set(counts) <= {0, 1}, counts


def test_where_each_run_is_like_the_one_before_few_steps_are_found_that_are_none() -> None:
    counts = Counter(len(searched(times(following_each_other, seed, 200))) for seed in SEEDS)

    assert max(counts) <= 2
    assert counts[2] <= 0.1 * len(SEEDS)


@pytest.mark.parametrize("draw", [quiet, noisy, heavy_tails, following_each_other])
def test_a_step_is_found_in_each_longer_series(draw: Draw) -> None:
    """A server searches after each run, and `searched` only as often as it must."""
    values = times(draw, 3, 100, AT, 1.1)
    first = searched(values)[0][0]

    found = [find_step(values[:runs], 0.03) is not None for runs in range(len(values) + 1)]

    assert found == [False] * first + [True] * (len(values) + 1 - first)


def test_a_single_outlier_is_no_step_however_large_it_is() -> None:
    values = times(quiet, 0, RUNS)
    values[AT] *= 100

    assert searched(values) == []


def test_a_step_and_its_end_are_two_steps() -> None:
    values = times(quiet, 0, 90, 30, 1.05)
    values[60:] = times(quiet, 1, 30)

    assert [one.at for _, one in searched(values)] == [30, 60]


def test_half_of_the_least_step_is_never_found_and_the_least_one_soon() -> None:
    for seed in SEEDS:
        assert searched(times(quiet, seed, 200, AT, 1.012)) == []
        (found,) = searched(times(quiet, seed, RUNS, AT, 1.03))
        assert found[0] <= AT + 3


def test_slow_changes_are_found_with_the_run_from_which_on_they_are_beyond_the_limit() -> None:
    values = [100.0] * 20 + [102.0] * 10

    (found,) = searched(values)

    assert found[1].at == 20
    assert (found[1].before, found[1].after) == pytest.approx((100, 102))


def test_series_that_are_too_short_have_no_step() -> None:
    assert find_step([], 0.03) is None
    assert find_step([100.0], 0.03) is None
    assert find_step([*[100.0] * (BASELINE - 1), 200.0, 200.0], 0.03) is None
    assert find_step([*[100.0] * BASELINE, 200.0], 0.03) is None
    assert find_step([*[100.0] * BASELINE, 200.0, 200.0], 0.03) is not None
