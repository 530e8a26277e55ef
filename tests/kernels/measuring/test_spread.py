"""The margin for two runs, from the spread between earlier runs of the same code."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernels.measuring.test_statistics import Noise, every_noise
from warpcall_kernels.measuring import MARGIN, between_runs, compare_runs
from warpcall_kernels.measuring._statistics import Floats

Random = np.random.Generator


@pytest.mark.parametrize("repeats", [1, 2, 3, 4, 5, 8, 12, 25, 40])
def test_of_differences_by_chance_one_in_fifty_is_beyond_the_margin(repeats: int) -> None:
    random = np.random.default_rng(repeats)
    beyond = 0
    for _ in range(4000):
        *earlier, a, b = random.normal(0, 0.02, repeats + 3)
        margin = between_runs([earlier], repeats)
        assert margin is not None
        beyond += abs(a - b) > margin

    assert 0.01 < beyond / 4000 < 0.03


def two_modes(random: Random, n: int) -> Floats:
    return random.normal(0, 0.02, n) + 1.5 * (random.random(n) < 0.25)


def heavy_tails(random: Random, n: int) -> Floats:
    drawn: Floats = 0.02 * random.standard_t(2, n)
    return drawn


@pytest.mark.parametrize("draw", [two_modes, heavy_tails])
def test_the_margin_holds_for_runs_that_are_not_normal(
    draw: Callable[[Random, int], Floats],
) -> None:
    random = np.random.default_rng(5)
    beyond = 0
    for _ in range(2000):
        *earlier, a, b = draw(random, 22)
        beyond += abs(a - b) > (between_runs([earlier], 19) or 0)

    assert beyond / 2000 < 0.05


def test_cases_of_different_spread_share_a_margin_that_holds_for_all_of_them() -> None:
    random = np.random.default_rng(6)
    beyond = 0
    for _ in range(500):
        scales = random.lognormal(-4, 0.7, 41)
        groups = [random.normal(0, scale, 6).tolist() for scale in scales[:40]]
        margin = between_runs(groups, 30)
        a, b = random.normal(0, scales[40], 2)
        beyond += abs(a - b) > (margin or 0)

    assert beyond / 500 < 0.05


def test_a_group_of_many_runs_does_not_hide_the_spread_of_others() -> None:
    quiet, loud = [0.0, 0.001] * 15, [[0.0, 0.1]] * 5

    margin = between_runs([quiet, *loud], 30)

    assert margin == pytest.approx(0.1 * 1.11)


@pytest.mark.parametrize(("groups", "repeats"), [([], 0), ([[0.5]], 0), ([[0.5], [0.7]], 0)])
def test_without_a_repeat_there_is_no_margin(groups: list[list[float]], repeats: int) -> None:
    assert between_runs(groups, repeats) is None


def test_what_slows_a_whole_run_down_divides_out() -> None:
    random = np.random.default_rng(7)
    drift = np.repeat(random.lognormal(0, 0.1, 20), 10)
    ours, copy = (us * drift * random.lognormal(0, 0.01, 200) for us in (30.0, 20.0))

    found = compare_runs(ours, 1.4 * ours, limits=(copy, 1.4 * copy))
    slower = compare_runs(ours, 1.4 * 1.05 * ours, limits=(copy, 1.4 * copy))

    assert found.ratio == pytest.approx(1)
    assert found.verdict == "same"
    assert slower.ratio == pytest.approx(1.05)
    assert slower.verdict == "slower"


@pytest.mark.slow
@every_noise
def test_of_two_runs_a_true_5_percent_is_found_and_nothing_else(noise: Noise) -> None:
    """Runs differ by 0.5 %. Nine tenths of a disturbance hit the copy in the same round, too."""
    random = np.random.default_rng(8)
    rounds, trials = 400, 100

    def run(factor: float) -> tuple[Floats, Floats]:
        shared = noise(random, rounds)
        own = [np.exp(0.1 * noise(random, rounds)) for _ in range(2)]
        offset = math.exp(random.normal(0, 0.005))
        return factor * offset * np.exp(shared) * own[0], np.exp(shared) * own[1]

    verdicts: dict[float, list[str]] = {1.0: [], 1.05: []}
    for factor, found in verdicts.items():
        for _ in range(trials):
            earlier = [math.log(np.median(a) / np.median(b)) for a, b in (run(1) for _ in range(9))]
            margin = max(MARGIN, between_runs([earlier], 8) or math.inf)
            (a, a_limit), (b, b_limit) = run(1), run(factor)
            compared = compare_runs(a, b, limits=(a_limit, b_limit), margin=margin)
            found.append(compared.verdict)

    equal, true = verdicts[1.0], verdicts[1.05]
    assert sum(one in ("slower", "faster") for one in equal) <= 0.05 * trials
    assert true.count("faster") == 0
    assert true.count("slower") >= 0.8 * trials
