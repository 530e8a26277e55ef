"""One score of an implementation over many cases: its time over that of a baseline, with an interval,
how many cases it won, and which share of the limit it reaches.

The score is the geometric mean of the ratios of the cases in which both have a valid time. Its 95 %
interval follows from the intervals of these ratios by the method of variance estimates recovery
(Zou and Donner, Statistics in Medicine 27, 2008): on each side, the distances of the bounds of
independent estimates from these estimates are added as squares. It says what repeated measurements of
the same cases would show, and nothing of other cases. A case in which the implementation failed has no
ratio, and is not won. So a score says how many cases it covers, and the share of cases that were won is
of all cases.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypedDict

from warpcall.jobs import Score


class Ratio(NamedTuple):
    """A time over another one, and its 95 % interval; a bound is None if it is not known."""

    value: float
    low: float | None = None
    high: float | None = None

    def inverted(self) -> Ratio:
        """The other time over this one."""
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Ratio(1 / self.value, low, high)

    def over(self, other: Ratio) -> Ratio:
        """This ratio over an independent one, such as of another job, to the same time."""
        value = self.value / other.value
        ends = self.low, self.high, other.low, other.high
        if not all(ends):
            return Ratio(value)
        own_low, own_high, other_low, other_high = (math.log(end or 1) for end in ends)
        own, against = math.log(self.value), math.log(other.value)
        below = math.hypot(own - own_low, other_high - against)
        above = math.hypot(own_high - own, against - other_low)
        return Ratio(value, value * math.exp(-below), value * math.exp(above))


class Sums(TypedDict):
    """What a score is computed from, added up case by case.

    Attributes:
        log_sum, ratios: the sum of the logarithms of the known ratios, and how many these are.
        below, above: sums of the squared distances of the lower and the upper bounds from the ratios,
            as logarithms.
        bounded: how many of the ratios have both bounds.
        limit_log_sum, limits: the sum of the logarithms of the known shares of the limit, and how many.
    """

    log_sum: float
    ratios: int
    below: float
    above: float
    bounded: int
    limit_log_sum: float
    limits: int


NOTHING: Sums = {
    "log_sum": 0.0,
    "ratios": 0,
    "below": 0.0,
    "above": 0.0,
    "bounded": 0,
    "limit_log_sum": 0.0,
    "limits": 0,
}


def add_ratio(sums: Sums, ratio: Ratio) -> None:
    """Add the ratio of a case."""
    middle = math.log(ratio.value)
    sums["log_sum"] += middle
    sums["ratios"] += 1
    if ratio.low and ratio.high:
        sums["below"] += (middle - math.log(ratio.low)) ** 2
        sums["above"] += (math.log(ratio.high) - middle) ** 2
        sums["bounded"] += 1


def add_share_of_limit(sums: Sums, share: float | None) -> None:
    """Add the share of the limit that was reached in a case, if it is known."""
    if share:
        sums["limit_log_sum"] += math.log(share)
        sums["limits"] += 1


def score_of(implementation: str, against: str, sums: Sums, won: int, cases: int) -> Score | None:
    """The score of what was added up; None without a ratio.

    Args:
        won: number of cases in which it is faster than the baseline.
        cases: number of all cases, also of those without a ratio.
    """
    compared = sums["ratios"]
    if not compared:
        return None
    middle = sums["log_sum"] / compared
    bounded = sums["bounded"] == compared
    return Score(
        implementation=implementation,
        against=against,
        ratio=math.exp(middle),
        ratio_low=math.exp(middle - math.sqrt(sums["below"]) / compared) if bounded else None,
        ratio_high=math.exp(middle + math.sqrt(sums["above"]) / compared) if bounded else None,
        compared=compared,
        won=won,
        cases=cases,
        share_won=won / cases,
        share_of_limit=math.exp(sums["limit_log_sum"] / sums["limits"]) if sums["limits"] else None,
    )


def sentence(score: Score) -> str:
    """Such as "score of ann/tiles: 0.96x the time of torch (0.95 to 0.97) over 4 of 5 cases, faster in
    1 of 5 (20 %), 62 % of the limit".

    In how many cases it is faster is left out where no interval could have said so.
    """
    ratio = f"{_number(score.ratio)}x"
    ends = score.ratio_low, score.ratio_high
    interval = "" if None in ends else " ({} to {})".format(*(_number(end or 0) for end in ends))
    of = f"of {score.cases} case{'s' * (score.cases != 1)}"
    limit = f", {score.share_of_limit:.0%} of the limit" if score.share_of_limit else ""
    won = f", faster in {score.won} of {score.cases} ({score.share_won:.0%})"
    known = score.won or None not in ends
    return (
        f"score of {score.implementation}: {ratio} the time of {score.against}{interval} over "
        f"{score.compared} {of}{won if known else ''}{limit}"
    )


def _number(ratio: float) -> str:
    return f"{ratio:.3f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}"
