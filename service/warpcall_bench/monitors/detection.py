"""Finds a step in a series of times: a two-sided CUSUM of the logarithms.

The method is the cumulative sum of E. S. Page, "Continuous inspection schemes" (Biometrika 41,
1954), in its two-sided form with a reference value and a decision interval, as D. C. Montgomery's
"Introduction to Statistical Quality Control" has it. Two changes make it fit for times of kernels:

- Level and noise are not known in advance. The level is the median of the runs before the present
  excursion, the noise follows from their mean absolute deviation without the
  largest ones, and runs at earlier levels still tell the noise.
- One run adds at most MOST_ADDED of the decision interval. A single outlier, however large, is
  therefore no step: at least two runs must agree.
"""

from __future__ import annotations

import math
import statistics
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

RUNS = 200  # the latest runs that are searched
BASELINE = 8  # runs that a level needs before a step away from it can be found
REFERENCE = 2.0  # times the noise: what a run may deviate from the level without being counted
INTERVAL = 3.0  # times the noise: the sum of what was counted that makes a step
MOST_ADDED = 0.8  # of the decision interval
TRIMMED = 20  # of so many deviations one, the largest, does not count for the noise
FEW = 3.0  # the noise counts as larger by this over the number of runs, which may agree by chance
NORMAL = 1.2533  # the standard deviation of a normal distribution over its mean absolute deviation


@dataclass(frozen=True, slots=True)
class FoundStep:
    """A step in a series.

    Attributes:
        at: position of the first run at the new level.
        before, after: the levels, in the unit of the values.
        noise: standard deviation of a run at one level, as a log ratio.
    """

    at: int
    before: float
    after: float
    noise: float

    @property
    def ratio(self) -> float:
        """The new level over the old one."""
        return self.after / self.before


@dataclass(frozen=True, slots=True)
class Limits:
    """The present level of a series, and what a run must exceed to count towards a step.

    Attributes:
        level, low, high: in the unit of the values.
        noise: standard deviation of a run at one level, as a log ratio.
    """

    level: float
    low: float
    high: float
    noise: float


def find_step(
    values: Sequence[float], least: float, earlier: Sequence[Sequence[float]] = ()
) -> FoundStep | None:
    """The first step in a series of positive values, the oldest first; None if there is none.

    A step of `least` is found within two or three runs if the noise is small. A step of half of
    `least` or less is never found. If the noise is large, larger steps are needed: the limits are
    then REFERENCE and INTERVAL times the noise.

    Args:
        values: one for each run since the last step that was found.
        least: the smallest step that matters, as a share of the level: 0.03 is 3 %.
        earlier: the values at earlier levels, which tell only the noise.
    """
    logs = [math.log(value) for value in values]
    deviations = _deviations(earlier)
    smallest = math.log1p(least) / 2
    ordered: list[float] = sorted(logs[:BASELINE])
    up = down = 0.0
    begin = BASELINE  # of the present excursion
    level, noise = _level(ordered, deviations)
    for position in range(BASELINE, len(logs)):
        if up == down == 0:
            for value in logs[begin:position]:
                insort(ordered, value)
            begin = position
            level, noise = _level(ordered, deviations)
        reference = max(smallest, REFERENCE * noise)
        interval = max(smallest, INTERVAL * noise)
        most = MOST_ADDED * interval
        difference = logs[position] - level
        up = max(0.0, up + min(difference - reference, most))
        down = max(0.0, down + min(-difference - reference, most))
        if max(up, down) > interval:
            at = _first(logs[: position + 1], begin, level)
            after = statistics.median(logs[at:])
            return FoundStep(at, math.exp(level), math.exp(after), noise)
    return None


def limits_of(
    values: Sequence[float], least: float, earlier: Sequence[Sequence[float]] = ()
) -> Limits | None:
    """What is expected of the next run; None if the level has too few runs.

    The arguments are those of `find_step`.
    """
    if len(values) < BASELINE:
        return None
    level, noise = _level(sorted(math.log(value) for value in values), _deviations(earlier))
    reference = max(math.log1p(least) / 2, REFERENCE * noise)
    return Limits(math.exp(level), math.exp(level - reference), math.exp(level + reference), noise)


def _deviations(earlier: Sequence[Sequence[float]]) -> list[float]:
    """How far the runs at earlier levels were from these."""
    found: list[float] = []
    for values in earlier:
        known = [math.log(value) for value in values]
        if len(known) >= BASELINE:
            middle = statistics.median(known)
            found += [abs(value - middle) for value in known]
    return found


def _level(ordered: Sequence[float], deviations: Sequence[float]) -> tuple[float, float]:
    """The median of the runs at the level, and the noise of a run."""
    if len(ordered) < 2:
        return 0.0, 0.0
    middle = statistics.median(ordered)
    far = sorted([*(abs(value - middle) for value in ordered), *deviations])
    kept = far[: len(far) - len(far) // TRIMMED]
    few = 1 + FEW / len(ordered)
    return middle, NORMAL * few * statistics.fmean(kept)


def _first(logs: Sequence[float], begin: int, level: float) -> int:
    """The first run of the new level: where a level before it and one after it fit best.

    Args:
        begin: of the excursion. At least its last two runs are at the new level.
    """

    def misfit(at: int) -> float:
        after = statistics.fmean(logs[at:])
        before = sum((value - level) ** 2 for value in logs[begin:at])
        return before + sum((value - after) ** 2 for value in logs[at:])

    return min(range(begin, len(logs) - 1), key=misfit)
