"""Intervals of the ratio of two implementations, and how those of several jobs are combined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BETWEEN_JOBS = 0.002
"""By how much the log ratios of two implementations differ between jobs, as a standard deviation,
beside what the intervals of the jobs tell."""
_Z = 1.96  # half the width of a 95 % interval, in standard deviations


@dataclass(frozen=True, slots=True)
class Interval:
    """A log ratio and its 95 % interval."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, ratio: float | None, low: float | None, high: float | None) -> Interval | None:
        """The interval of a ratio; None if it has no bounds."""
        if ratio is None or low is None or high is None or low <= 0 or not math.isfinite(high):
            return None
        return cls(math.log(ratio), math.log(low), math.log(high))

    @property
    def variance(self) -> float:
        """Variance of the log ratio, with what jobs differ by."""
        return ((self.high - self.low) / (2 * _Z)) ** 2 + BETWEEN_JOBS**2


def combined(intervals: Sequence[Interval]) -> Interval:
    """The weighted mean of log ratios of jobs, and its interval. See `judge`."""
    weights = [1 / one.variance for one in intervals]
    total = sum(weights)
    mean = sum(w * one.middle for w, one in zip(weights, intervals, strict=True)) / total

    def half_width(side: int) -> float:
        away = [max(0.0, side * (one.middle - mean)) for one in intervals]
        squares = sum(w * distance**2 for w, distance in zip(weights, away, strict=True))
        # Twice those of one side are as many as those of both sides.
        excess = 2 * squares / max(1, len(intervals) - 1)
        return _Z * math.sqrt(max(1.0, excess) / total)

    return Interval(mean, mean - half_width(-1), mean + half_width(1))
