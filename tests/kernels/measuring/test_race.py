"""Who leaves a race, and when it is decided. `bench.races` simulates more races than this file."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench import races
from warpcall_kernels.measuring import Precision
from warpcall_kernels.measuring._race import (
    EQUAL,
    ERROR,
    TURN,
    UNKNOWN,
    Interval,
    Race,
    _bounds,
    _decisive,
    _uncorrelated,
    full_rounds,
)
from warpcall_kernels.measuring._rounds import Rounds

RACES = 60


@pytest.mark.slow
def test_the_winner_is_right_and_races_take_little_device_time() -> None:
    found = races.summary([races.simulate(seed, fully=seed >= 54) for seed in range(RACES)])

    assert found["decided"] == 1
    assert found["within_1_percent"] >= 0.97
    assert found["best_left"] <= ERROR
    assert found["races_with_equal_ones"] == 18
    assert found["equal_ones_called_same"] == 1
    assert 0 < found["of_full"] < 0.2
    assert 0 < found["of_unshortened"] < 0.2


@pytest.mark.parametrize("rare", [0.5, 0.05])
@pytest.mark.parametrize("n", [1, 4, 5, 22, 23, 200])
def test_the_decisive_count_is_that_of_the_integral(n: int, rare: float) -> None:
    p = np.linspace(rare, 1, 200_001)[:-1] + (1 - rare) / 400_000
    with np.errstate(divide="ignore"):
        evidence = [
            float(np.mean(np.exp(s * np.log(p / rare) + (n - s) * np.log((1 - p) / (1 - rare)))))
            for s in range(n + 1)
        ]

    for error in (0.3, 1e-3, 5e-6):
        enough = [s for s in range(n + 1) if s >= n * rare and evidence[s] >= 1 / error]
        assert _decisive(n, rare, error) == (enough[0] if enough else None)


@pytest.mark.parametrize("rare", [0.5, 0.05])
def test_bounds_of_values_around_a_median_rarely_miss_it_at_any_time(rare: float) -> None:
    random, error, series = np.random.default_rng(0), 0.05, 400
    missed = 0
    for _ in range(series):
        values = random.standard_cauchy(150) + math.tan(math.pi * (rare - 0.5))
        # Each exceeds 0 with a probability of `rare`.
        missed += any(_bounds(values[:n], rare, error)[0] > 0 for n in range(1, 150))

    assert 0 < missed <= error * series


def rounds_of(
    *times_us: float,
    count: int = 40,
    noise: float = 0.002,
    scheduled: tuple[int, ...] | None = None,
) -> tuple[Rounds, np.random.Generator]:
    random = np.random.default_rng(5)
    rounds = Rounds(len(times_us), Precision("race", 0), scheduled=scheduled)
    if count:
        take(rounds, times_us, count, random, noise)
    return rounds, random


def take(
    rounds: Rounds,
    times_us: tuple[float, ...],
    count: int,
    random: np.random.Generator,
    noise: float = 0.002,
) -> None:
    plan = [one for one in rounds.plan(count) if one.candidate != rounds.twin]
    samples = [times_us[one.candidate] * math.exp(random.normal(0, noise)) for one in plan]
    rounds.take(plan, samples, None)


def race_of(*times_us: float, count: int = 40, noise: float = 0.002, at_once: int = 8) -> Race:
    rounds, random = rounds_of(*times_us, count=0, scheduled=())
    race = Race(rounds, range(len(times_us)), at_once=at_once)
    while race.may_enter():
        race.enter()
    take(rounds, times_us, count, random, noise)
    return race


def test_who_is_much_slower_leaves_after_few_rounds_and_others_later() -> None:
    race = race_of(100.0, 200.0, 104.0, count=8)

    assert race.look() == [1]
    assert (race.left[1].why, race.left[1].leader, race.left[1].round) == ("slower", 0, 8)
    assert race.left[1].interval.low < 2 < race.left[1].interval.high
    assert race.racing == [0, 2]
    assert not race.is_decided()

    assert race_of(100.0, 104.0, count=40).look() == [1]


def test_equal_candidates_do_not_leave_and_are_the_same_at_the_end() -> None:
    race = race_of(100.0, 100.1, 99.9, count=120, noise=0.005)

    assert race.look() == []
    assert race.is_decided()
    assert all(one.is_within(0.01) for one in race.standings().values())


def test_nothing_is_decided_by_noise() -> None:
    race = race_of(100.0, 100.5, count=60, noise=0.1)

    assert race.look() == []
    assert not race.is_decided()


def test_who_is_the_same_as_the_leader_makes_room_only_for_those_that_wait() -> None:
    race = race_of(100.0, 100.0, 100.0, count=120, at_once=2)

    (gone,) = race.look()

    assert race.left[gone].why == "same"
    assert race.may_enter()
    assert not race.is_decided()
    race.enter()
    assert not race.may_enter()


def test_who_left_before_the_leader_entered_is_compared_by_way_of_the_leader_of_then() -> None:
    times_us = (100.0, 150.0, 80.0)
    rounds, random = rounds_of(*times_us, count=0, scheduled=())
    race = Race(rounds, range(3), at_once=2)
    race.enter(), race.enter()
    take(rounds, times_us, 20, random)
    assert race.look() == [1]
    race.enter()
    take(rounds, times_us, 20, random)
    assert race.look() == [0]

    found = race.standings()

    assert race.is_decided()
    assert list(found) == [2, 0, 1]
    assert found[2] == EQUAL
    assert found[1].ratio == pytest.approx(150 / 80, rel=0.01)
    assert 1 < found[1].low < 150 / 80 < found[1].high < math.inf


def test_a_failed_one_is_neither_timed_nor_ranked() -> None:
    race = race_of(100.0, 100.0, 130.0)

    race.fail(0)

    assert 0 not in race.standings()
    assert race.look() == [2]
    assert race.is_decided()


def test_those_that_left_because_of_one_that_fails_then_race_again() -> None:
    times_us = (100.0, 130.0, 150.0)
    rounds, random = rounds_of(*times_us, count=0, scheduled=())
    race = Race(rounds, range(3))
    race.enter(), race.enter()
    take(rounds, times_us, 20, random)
    assert race.look() == [1]
    race.enter()
    take(rounds, times_us, 20, random)
    assert race.look() == [2]

    race.fail(0)

    assert race.left == {}
    assert race.waiting == [1, 2]
    assert not race.is_decided()
    race.enter(), race.enter()
    take(rounds, times_us, 20, random)
    assert race.look() == [2]
    assert race.is_decided()
    assert [*race.standings()] == [1, 2]


def test_who_is_surely_slower_than_another_does_not_race_again_if_the_leader_of_then_fails() -> (
    None
):
    race = race_of(100.0, 100.1, 150.0)
    assert race.look() == [2]

    race.fail(0)

    assert (race.racing, race.waiting) == ([1], [])
    assert race.standings()[2].low > 1
    assert race.is_decided()


def test_masked_rounds_and_missing_samples_are_no_observations() -> None:
    rounds, _ = rounds_of(100.0, 110.0, count=10)
    rounds.masked[4] = "a thermal slowdown"
    rounds._samples[7, 1] = np.nan

    pairs = rounds.mean_logs_of_pairs()

    assert pairs.shape == (5, 2)
    assert np.isnan(pairs[2]).all()
    assert np.isfinite(pairs[3, 0])
    assert np.isnan(pairs[3, 1])
    assert np.isfinite(pairs[[0, 1, 4]]).all()


def test_the_two_sets_of_inputs_divide_out_in_a_pair() -> None:
    rounds, _ = rounds_of(100.0, 100.0, count=0)
    plan = [one for one in rounds.plan(40) if one.candidate != rounds.twin]
    rounds.take(plan, [100.0 * (1 + 0.05 * (one.inputs % 2)) for one in plan], None)

    pairs = rounds.mean_logs_of_pairs()

    assert np.allclose(pairs[:, 0], pairs[:, 1])


def test_correlated_observations_are_joined_to_blocks() -> None:
    random = np.random.default_rng(1)
    independent = random.standard_normal(300)
    lasting = np.repeat(random.standard_normal(30), 10)

    assert _uncorrelated([independent]) == 0
    assert _uncorrelated([lasting]) >= 2


def test_a_full_measurement_is_estimated_from_the_width_of_an_interval() -> None:
    assert full_rounds(Interval(1.5, 1.49, 1.51), 100, 0.005, 30) == pytest.approx(178, abs=2)
    assert full_rounds(Interval(1.5, 1.4999, 1.5001), 100, 0.005, 30) == 30
    assert full_rounds(UNKNOWN, 100, 0.005, 30) == 100


def test_those_that_are_almost_the_same_do_not_keep_a_faster_one_waiting() -> None:
    times_us = (100.0, 100.5, 101.0, 30.0)
    rounds, random = rounds_of(*times_us, count=0, scheduled=())
    race = Race(rounds, range(4), at_once=3)
    while race.may_enter():
        race.enter()
    take(rounds, times_us, TURN, random, noise=0.1)

    assert race.look() == []
    assert race.waiting == [3, 2]
    assert race.enter() == 3
    take(rounds, times_us, 20, random, noise=0.1)
    assert race.look() == [0, 1]
    assert race.leader() == 3
    assert race.standings()[2].high > 1  # it has not raced with the leader
    assert race.enter() == 2
    take(rounds, times_us, 20, random, noise=0.1)
    assert race.look() == [2]
    assert race.is_decided()


def test_a_race_of_one_is_decided_at_once() -> None:
    race = race_of(100.0, count=2)

    assert race.look() == []
    assert race.is_decided()
    assert race.leader() == 0
