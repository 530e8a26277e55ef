"""Simulate races: how often the winner is right, and how much device time they take.

    .venv/bin/python -m bench.races --races 1000

Nothing is timed and no process is started: the samples of each candidate are its true time and
noise like that of real machines. A race is of 8 to 64 candidates. The times of most lie between
that of the best and three times as much; some are close to the best. In each fourth race, several
are exactly as fast as the best.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from warpcall_kernels.execution.clock import SWAPPED
from warpcall_kernels.measuring import MARGIN, Precision
from warpcall_kernels.measuring._race import AT_ONCE, Race
from warpcall_kernels.measuring._rounds import Rounds
from warpcall_kernels.measuring._statistics import Floats

MOST_ROUNDS = 8_000  # of a race, as many as its time limit allows
FEWEST, MOST = 8, 64  # candidates
ROUNDS_AT_ONCE = 8
HALF_WIDTH = 0.005  # of the interval of each log ratio, if all are measured fully
CLOSE = 0.03  # log ratio to the best of those that are close to it
SLOWEST = math.log(3)
EQUAL_EVERY = 4  # races, in one of which several are the best
PLACEMENT = 0.01  # of a set of inputs, the same throughout for each candidate

Noise = Callable[[np.random.Generator, int, int], Floats]


def independent(random: np.random.Generator, rounds: int, candidates: int) -> Floats:
    """What is left on a calm GPU."""
    return 0.005 * random.standard_normal((rounds, candidates))


def drifting(random: np.random.Generator, rounds: int, candidates: int) -> Floats:
    """The clock of the device changes, slowly and by chance, for all candidates."""
    walk = 0.002 * np.cumsum(random.standard_normal(rounds))
    drift = walk + np.linspace(0, 0.3, rounds)
    return drift[:, None] + independent(random, rounds, candidates)


def in_bursts(random: np.random.Generator, rounds: int, candidates: int) -> Floats:
    """Others use the device for 50 rounds, in each seventh such span of time."""
    bad = np.repeat(random.random(rounds // 50 + 1) < 0.15, 50)[:rounds, None]
    disturbed = bad * np.abs(random.standard_normal((rounds, candidates))) * 0.2
    return disturbed + independent(random, rounds, candidates)


def in_steps(random: np.random.Generator, rounds: int, candidates: int) -> Floats:
    """The device changes between two clocks, and not all candidates equally."""
    steps = np.repeat(random.random(rounds // 100 + 1) < 0.3, 100)[:rounds, None]
    heights = 0.1 + 0.002 * random.standard_normal(candidates)
    return steps * heights + independent(random, rounds, candidates)


def heavy_tailed(random: np.random.Generator, rounds: int, candidates: int) -> Floats:
    """A machine with other work: no variance, and one sample of twenty takes much longer."""
    shape = (rounds, candidates)
    outliers = np.where(random.random(shape) < 0.05, random.exponential(0.5, shape), 0)
    return 0.005 * random.standard_t(2, shape) + outliers


def correlated(random: np.random.Generator, rounds: int, candidates: int) -> Floats:
    """What disturbs a candidate lasts for some rounds."""
    shocks = random.standard_normal((rounds, candidates))
    lasting = np.zeros(candidates)
    found = np.empty((rounds, candidates))
    for i in range(rounds):
        lasting = 0.7 * lasting + 0.7 * shocks[i]
        found[i] = lasting
    return 0.005 * found + 0.003 * random.standard_normal((rounds, candidates))


NOISES: tuple[Noise, ...] = (
    independent,
    drifting,
    in_bursts,
    in_steps,
    heavy_tailed,
    correlated,
)


@dataclass(frozen=True)
class Result:
    """One race.

    Attributes:
        equal: how many are exactly as fast as the best, which is one of them.
        decided: whether it ended before its time limit.
        excess: log ratio of the leader at the end to the best.
        same: how many are the same as the leader, with it, by its intervals at the end.
        best_left: whether the best left for being slower.
        rounds: that it took.
        device: its device time, in calls of the best.
        unshortened: the same for the race if nobody had left until its end.
        full: the same for measuring all until the interval of each to the leader, by the bound of the
            race, is as narrow as a full measurement demands; 0 if that was not simulated.
    """

    noise: str
    candidates: int
    equal: int
    decided: bool
    excess: float
    same: int
    best_left: bool
    rounds: int
    device: float
    unshortened: float
    full: float = 0.0


def simulate(seed: int, *, at_once: int = AT_ONCE, fully: bool = False) -> Result:
    """Simulate the race of this number.

    Args:
        at_once: candidates that race at the same time.
        fully: also simulate measuring all of its candidates fully.
    """
    race, rounds, field, decided = _run(seed, at_once, eliminates=True)
    leader = race.leader()
    took = np.array([race.rounds_of(c) for c in range(len(field))])
    us = np.exp(field)
    others = [n for c, n in enumerate(took) if c != leader]
    found = race.standings()
    best = [c for c in range(len(field)) if field[c] == 0]
    full = 0.0
    if fully:
        _, measured, _, _ = _run(seed, MOST, eliminates=False)
        full = float(us.sum() * len(measured))
    return Result(
        NOISES[seed % len(NOISES)].__name__,
        len(field),
        len(best),
        decided,
        float(field[leader]),
        sum(one.is_within(MARGIN) for one in found.values()),
        all(c in race.left and race.left[c].why == "slower" for c in best),
        len(rounds),
        float(us @ took),
        float(us.sum() * max(others)),
        full,
    )


def _run(seed: int, at_once: int, *, eliminates: bool) -> tuple[Race, Rounds, Floats, bool]:
    """A race, its rounds, the log of the time of each candidate over the best, and whether it ended
    before its time limit.

    Args:
        eliminates: otherwise all are measured until their intervals are narrow enough.
    """
    random = np.random.default_rng(seed)
    count = int(random.integers(FEWEST, MOST + 1))
    noise = NOISES[seed % len(NOISES)]
    alone = seed // len(NOISES) % EQUAL_EVERY
    equal = 1 if alone else int(random.integers(2, 5))
    close = min(count - equal, int(random.integers(1, 4)))
    field = np.zeros(count)
    field[equal : equal + close] = random.uniform(0, CLOSE, close)
    field[equal + close :] = random.uniform(CLOSE, SLOWEST, count - equal - close)
    random.shuffle(field)
    placement = PLACEMENT * random.standard_normal((SWAPPED, count))
    placement -= placement.mean(axis=0)
    rounds = Rounds(count, Precision("race", 0), seed, scheduled=())
    race = Race(rounds, range(count), at_once=at_once)
    disturbed = _blocks(noise, random, count)
    while len(rounds) < MOST_ROUNDS:
        while race.may_enter():
            race.enter()
        first, noisy = len(rounds), next(disturbed)
        wanted = min(ROUNDS_AT_ONCE, max(2, race.due()))
        scheduled = [one for one in rounds.plan(wanted) if one.candidate != rounds.twin]
        numbers, which, sets = np.array([(p.round, p.candidate, p.inputs) for p in scheduled]).T
        logs = field[which] + noisy[numbers - first, which] + placement[sets % SWAPPED, which]
        rounds.take(scheduled, [*map(float, 100 * np.exp(logs))], None)
        if not race.due():
            if eliminates:
                race.look()
                if race.is_decided():
                    return race, rounds, field, True
            elif race.look_at_all(HALF_WIDTH):
                return race, rounds, field, True
    return race, rounds, field, False


def _blocks(noise: Noise, random: np.random.Generator, count: int) -> Iterator[Floats]:
    """The noise of ROUNDS_AT_ONCE rounds after the other, which is drawn for many at once."""
    while True:
        drawn = noise(random, 250 * ROUNDS_AT_ONCE, count)
        yield from drawn.reshape(250, ROUNDS_AT_ONCE, count)


def summary(results: list[Result]) -> dict[str, float]:
    """Shares of races, and of device time beside measuring fully, and beside never leaving."""
    n, device = len(results), sum(r.device for r in results)
    full = [r for r in results if r.full]
    tied = [r for r in results if r.equal > 1]
    return {
        "races": n,
        "decided": sum(r.decided for r in results) / n,
        "within_1_percent": sum(r.excess <= MARGIN for r in results) / n,
        "best_left": sum(r.best_left for r in results) / n,
        "equal_ones_called_same": sum(r.decided and r.same >= r.equal for r in tied)
        / max(1, len(tied)),
        "races_with_equal_ones": len(tied),
        "of_full": sum(r.device for r in full) / max(1, sum(r.full for r in full)),
        "of_unshortened": device / sum(r.unshortened for r in results),
        "median_rounds": median(r.rounds for r in results),
    }


def main() -> None:
    """Simulate races and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first race")
    parser.add_argument("--full", type=int, default=5, help="measure all fully in each such race")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="candidates that race at once")
    args = parser.parse_args()
    results = []
    for seed in range(args.seed, args.seed + args.races):
        results.append(
            simulate(seed, at_once=args.at_once, fully=seed // len(NOISES) % args.full == 0)
        )
    groups = {"all": results}
    groups |= {one.__name__: [r for r in results if r.noise == one.__name__] for one in NOISES}
    groups |= {
        f"{low} to {high}": [r for r in results if low <= r.candidates <= high]
        for low, high in ((8, 16), (17, 32), (33, 64))
    }
    for name, found in groups.items():
        if found:
            shown = {k: round(v, 3) for k, v in summary(found).items()}
            sys.stdout.write(f"{name}: {json.dumps(shown)}\n")


if __name__ == "__main__":
    main()
