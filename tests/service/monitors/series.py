"""Times of a kernel over many runs, as tests draw them, and a search of them run by run."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import numpy as np

from warpcall_bench.monitors.detection import FoundStep, find_step

Draw = Callable[[np.random.Generator, int], np.ndarray]
MEDIAN_US = 100.0


def busy(random: np.random.Generator, runs: int) -> np.ndarray:
    return random.normal(0, 0.005, runs)


def noisy(random: np.random.Generator, runs: int) -> np.ndarray:
    return random.normal(0, 0.01, runs)


def quiet(random: np.random.Generator, runs: int) -> np.ndarray:
    return random.normal(0, 0.002, runs)


def heavy_tails(random: np.random.Generator, runs: int) -> np.ndarray:
    drawn: np.ndarray = random.standard_t(3, runs) * (0.01 / 3**0.5)
    return drawn


def following_each_other(random: np.random.Generator, runs: int) -> np.ndarray:
    """Each deviation is like the one before: a machine that is warm stays warm for some runs."""
    drawn = random.normal(0, 0.01 * np.sqrt(1 - 0.5**2), runs)
    for run in range(1, runs):
        drawn[run] += 0.5 * drawn[run - 1]
    return drawn


def very_noisy(random: np.random.Generator, runs: int) -> np.ndarray:
    return random.normal(0, 0.08, runs)


def times(draw: Draw, seed: int, runs: int, at: int = 0, step: float = 1.0) -> list[float]:
    """Times in microseconds; from the run `at` on, they are multiplied by `step`."""
    found = MEDIAN_US * np.exp(draw(np.random.default_rng(seed), runs))
    found[at:] *= step
    return [float(one) for one in found]


def searched(values: Sequence[float], least: float = 0.03) -> list[tuple[int, FoundStep]]:
    """The steps that are found if the series is searched after each run, as a server does.

    Each comes with the number of runs after which it was found. The positions are those in the
    whole series. A step that was found is also found in each longer series, so that a search by halves
    finds the first run after which it is: `test_a_step_is_found_in_each_longer_series` holds that.
    """
    found: list[tuple[int, FoundStep]] = []
    begin, last, earlier = 0, 0, list[list[float]]()
    while find_step(values[begin:], least, earlier) is not None:
        last = bisect.bisect_left(
            range(len(values)),
            True,
            lo=last + 1,
            key=lambda runs: find_step(values[begin:runs], least, earlier) is not None,
        )
        step = find_step(values[begin:last], least, earlier)
        if step is None:  # there are no runs after the last one
            break
        at = begin + step.at
        earlier.append(list(values[begin:at]))
        found.append((last, FoundStep(at, step.before, step.after, step.noise)))
        begin = at
    return found
