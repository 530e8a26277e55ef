"""Finds where a series of measurements changed its level."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 2  # points on each side of a step
LEAST = 0.01  # of the difference of two levels, as a log ratio
SURE = 5.0  # times the standard error that the difference must be


@dataclass(frozen=True, slots=True)
class Level:
    """Points `begin` to `end` (exclusive) with the same level."""

    begin: int
    end: int
    value: float


def levels(values: Sequence[float]) -> list[Level]:
    """The levels of a series of positive values, in order.

    A series is divided where the means of the logarithms on both sides differ most, as often as
    the difference is at least LEAST and SURE times its standard error (binary segmentation).
    """
    logs = [math.log(value) for value in values]
    if not logs:
        return []
    noise = _noise(logs)
    found: list[Level] = []
    waiting = [(0, len(logs))]
    while waiting:
        begin, end = waiting.pop()
        at = _best_step(logs[begin:end], noise)
        if at is None:
            found.append(Level(begin, end, math.exp(statistics.median(logs[begin:end]))))
        else:
            waiting += [(begin, begin + at), (begin + at, end)]
    return sorted(found, key=lambda level: level.begin)


def _noise(logs: Sequence[float]) -> float:
    """The standard deviation of a point, from the differences of neighbours, which steps hardly
    change."""
    differences = [abs(b - a) for a, b in itertools.pairwise(logs)]
    return statistics.median(differences) / 0.954 if differences else 0.0


def _best_step(logs: Sequence[float], noise: float) -> int | None:
    best, at = 0.0, None
    for split in range(FEWEST, len(logs) - FEWEST + 1):
        left, right = logs[:split], logs[split:]
        difference = abs(statistics.fmean(right) - statistics.fmean(left))
        error = noise * math.sqrt(1 / len(left) + 1 / len(right))
        if difference >= LEAST and difference > SURE * error:
            sure = difference / max(error, 1e-9)
            if sure > best:
                best, at = sure, split
    return at
