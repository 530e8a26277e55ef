"""Decides which candidates of a race go on, by a sequential test with an error bound.

A race finds the fastest of several candidates with little device time. All that race are timed in
the same rounds. A candidate leaves once it is surely slower than the leader, which is the one with
the least median. At most AT_ONCE race at the same time: when one leaves, the next one enters. One
whose turn is over makes room, too, and waits behind the others.

An observation of two candidates is the mean of the log ratios of their times in two neighbouring
rounds, which time them in opposite orders and with exchanged sets of inputs. So drift, and what
disturbs a whole round, divides out. If neighbouring observations are correlated, the medians of
blocks of 3, 9 or 27 of them take their place.

The bound: with a probability of at least 1 - ERROR, all intervals that a race ever computes hold
the medians of its log ratios, however often it looks and whenever it ends. Then nobody has left for
being slower who was the fastest, and the leader at the end takes at most exp(MARGIN) times as long
as the fastest. An interval is where two tests agree. Both count how many observations exceed x:

- If the median is at most x, each observation exceeds x with a probability of at most q = 1/2.
- If the median is at most x - f, it does so with a probability of at most q = RARE, where f is FAR
  times what nine of ten observations of the race deviate from their median, and at least LEAST_FAR.
  So those that are much slower leave after four or five observations.

In both, whatever the earlier observations were, the mixture

    E(n, s) = 1 / (1 - q) * integral over p from q to 1 of (p / q)^s * ((1 - p) / (1 - q))^(n - s)

is a supermartingale, where s of n observations exceed x. The probability that it ever exceeds 1 / a
is at most a (Ville 1939; Robbins 1970, Annals of Mathematical Statistics 41; as confidence
sequences of quantiles Howard and Ramdas 2022, Bernoulli 28). This needs no moments, and not that
the noise stays the same. ERROR is divided among all ordered pairs of candidates and all tests. What
the bound assumes is that log ratios have one median throughout, that observations at the length
that is chosen are independent of earlier ones, and what the second test says of f.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from warpcall_kernels.measuring._rounds import Rounds
from warpcall_kernels.measuring._statistics import MARGIN, Floats, half_width

ERROR = 0.02  # the most that any interval of a race is wrong
AT_ONCE = 8  # candidates that race at the same time, each with a process of its own
LENGTHS = (1, 3, 9, 27)  # of blocks; odd, so that a median of independent values has their median
FEWEST_BLOCKS = 8  # whose correlation says anything
SHARES = (1 / 4, 1 / 8, 1 / 16, 1 / 16)  # of the error, for each of these lengths
SHARE_FAR = 1 / 2  # of the error, for the test of those that are much slower
RARE = 0.05  # probability of an observation that is far off
FAR = 4.0  # times the deviation of nine of ten observations
LEAST_FAR = 0.1  # log ratio
UNCORRELATED = 0.05  # correlation of neighbours that counts as none, beside its standard error
TURN = 24  # rounds for which a candidate races before it makes room for one that waits
GROWTH = 1.05  # of the number of rounds between two looks

Why = Literal["slower", "same"]


@dataclass(frozen=True, slots=True)
class Interval:
    """The ratio of the times of two candidates: above 1 if the first one takes longer.

    `low` to `high` holds it with the error bound of the race; without enough observations it is 0
    to infinity.
    """

    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval of the log ratio."""
        return half_width(self.low, self.high)

    def times(self, other: Interval) -> Interval:
        """The ratio a / c, if this one is a / b and the other one b / c."""
        return Interval(self.ratio * other.ratio, self.low * other.low, self.high * other.high)

    def is_within(self, margin: float) -> bool:
        """Whether it surely is a log ratio of at most `margin`, in either direction."""
        return self.low >= math.exp(-margin) and self.high <= math.exp(margin)


UNKNOWN = Interval(math.nan, 0.0, math.inf)
EQUAL = Interval(1.0, 1.0, 1.0)  # a candidate beside itself


@dataclass(frozen=True, slots=True)
class Left:
    """How a candidate left: after how many rounds, why, and its interval to the leader of then.

    "slower" is surely slower than the leader. "same" is within the margin of it, and made room for
    one that waited; it enters again if another one leads at the end. Both enter again if the leader
    fails.
    """

    round: int
    why: Why
    leader: int
    interval: Interval


class Race:
    """A race among columns of rounds.

    Args:
        rounds: of which each entrant has a column. No entrant may be scheduled in it yet.
        entrants: numbers of the columns, in the order in which they enter.
        at_once: the most that race at the same time.
        margin: log ratios within it count as no difference.

    Attributes:
        racing: those that are timed now.
        waiting: those that have not entered yet, the next one first.
        left: how each other one left. Those that failed are in none of the three.
    """

    def __init__(
        self,
        rounds: Rounds,
        entrants: Sequence[int],
        *,
        at_once: int = AT_ONCE,
        margin: float = MARGIN,
    ) -> None:
        self.racing: list[int] = []
        self.waiting = list(entrants)
        self.left: dict[int, Left] = {}
        self._rounds = rounds
        self._at_once = at_once
        self._margin = margin
        self._error = ERROR / max(1, len(entrants) * (len(entrants) - 1))
        self._look_at = 0
        self._turn_ends: dict[int, int] = {}  # the round after which each makes room for others
        self._entries = dict.fromkeys(entrants, 0)
        self._pairs = np.zeros((0, rounds.candidates))

    def may_enter(self) -> bool:
        """Whether there is room for the next one that waits."""
        return bool(self.waiting) and len(self.racing) < self._at_once

    def enter(self) -> int:
        """Let the next one race, and return its number."""
        entrant = self.waiting.pop(0)
        self.racing.append(entrant)
        self._rounds.enter(entrant)
        self._turn_ends[entrant] = len(self._rounds) + TURN * 2 ** self._entries[entrant]
        self._entries[entrant] += 1
        return entrant

    def fail(self, candidate: int) -> None:
        """Take out a candidate that has failed, whether it races or waits.

        Nothing is known by its times. So those that left because of it wait again, unless they are
        surely slower than the leader of now.
        """
        if candidate in self.racing:
            self._stop(candidate)
        else:
            self.waiting.remove(candidate)
        self._recall([c for c, left in self.left.items() if left.leader == candidate])

    def _stop(self, candidate: int) -> None:
        self.racing.remove(candidate)
        self._rounds.leave(candidate)

    def due(self) -> int:
        """Rounds until the next look."""
        return max(0, self._look_at - len(self._rounds))

    def look(self) -> list[int]:
        """Let those leave that may, and return them."""
        gone = self.leaving()
        self.let_leave(gone)
        if not gone:
            self.step_aside()
        return [*gone]

    def let_leave(self, gone: Mapping[int, Left]) -> None:
        """Let those leave that `leaving` has found."""
        self.left |= gone
        for candidate in gone:
            self._stop(candidate)
        if not self.waiting:
            self._recall([c for c, left in self.left.items() if left.why == "same"])

    def leaving(self) -> dict[int, Left]:
        """Who may leave now, and how. Looking takes time, so the distance between two looks grows."""
        self._postpone()
        if len(self.racing) < 2:
            return {}
        leader = self.leader()
        gone = {}
        for candidate, found in self.intervals(leader, self.racing).items():
            why: Why | None = None
            if candidate != leader and found.low > 1:
                why = "slower"
            elif candidate != leader and self.waiting and found.is_within(self._margin):
                why = "same"
            if why is not None:
                gone[candidate] = Left(len(self._rounds), why, leader, found)
        return gone

    def ratios(self) -> dict[int, float]:
        """The time of each that races over that of the leader, where they have rounds in common."""
        pairs, leader = self._observations(), self.leader()
        found = {c: math.exp(_median(pairs[:, c] - pairs[:, leader])) for c in self.racing}
        return {c: ratio for c, ratio in found.items() if math.isfinite(ratio)}

    def step_aside(self) -> int | None:
        """Let the slowest whose turn is over wait again, behind the others; returns it if there is one.

        Otherwise several that are almost the same would keep a much faster one waiting. Each further
        turn of a candidate is twice as long.
        """
        if not self.waiting or len(self.racing) < self._at_once:
            return None
        found = self.intervals(self.leader(), self.racing)
        over = [c for c in self.racing if self._turn_ends[c] <= len(self._rounds)]
        over = [c for c in over if found[c] is not EQUAL]
        if not over:
            return None
        slowest = max(over, key=lambda c: found[c].ratio)
        self._stop(slowest)
        self.waiting.append(slowest)
        return slowest

    def _recall(self, candidates: Sequence[int]) -> None:
        """Let those of them wait again that may be faster than the leader of now, and whose ratio to
        it is not known well enough."""
        found = self.standings() if candidates and self.racing else {}
        for candidate in candidates:
            one = found.get(candidate, UNKNOWN)
            if one.low <= 1 and not one.is_within(self._margin):
                del self.left[candidate]
                self.waiting.append(candidate)

    def look_at_all(self, half_width: float) -> bool:
        """Whether the interval of each log ratio to the leader is at most so wide. Nobody leaves."""
        self._postpone()
        found = self.intervals(self.leader(), self.racing).values()
        return all(one.half_width <= half_width for one in found)

    def is_decided(self) -> bool:
        """Whether one is left, or all that are left are the same. None waits then."""
        if self.waiting or not self.racing:
            return not self.waiting
        leader = self.leader()
        found = self.intervals(leader, self.racing)
        return all(one.is_within(self._margin) for one in found.values())

    def _postpone(self) -> None:
        """Set the time of the next look."""
        now = len(self._rounds)
        self._look_at = max(now + 2, math.ceil(now * GROWTH))
        self._look_at += self._look_at % 2

    def leader(self) -> int:
        """The one of those that race with the least median beside each other one.

        Two candidates are compared by the rounds that both have. So one that has entered late is
        compared with the first one of the list by the rounds since then.
        """
        pairs = self._observations()
        first = self.racing[0]
        beside = {c: _median(pairs[:, c] - pairs[:, first]) for c in self.racing}
        known = {c: one for c, one in beside.items() if math.isfinite(one)}
        return min(known, key=lambda c: known[c]) if known else first

    def intervals(self, leader: int, candidates: Iterable[int]) -> dict[int, Interval]:
        """The ratio of each candidate to the leader, by the rounds that both have."""
        pairs = self._observations()
        series = {c: _finite(pairs[:, c] - pairs[:, leader]) for c in candidates if c != leader}
        known = [one for one in series.values() if len(one)]
        which, far = _uncorrelated(known), _far(known)
        found = {c: _interval(one, which, far, self._error) for c, one in series.items()}
        return {c: found.get(c, EQUAL) for c in candidates}

    def standings(self) -> dict[int, Interval]:
        """The ratio to the leader of each that has raced and not failed, that of the leader first.

        One that left before the leader entered is compared by way of the leader of then.
        """
        leader = self.leader()
        aside = [c for c in self.waiting if self.rounds_of(c)]
        others = [c for c in (*self.racing, *aside) if c != leader]
        found = {leader: EQUAL, **self.intervals(leader, others)}
        for candidate, left in reversed(self.left.items()):  # its leader left later, or races
            direct = self.intervals(leader, [candidate])[candidate]
            by_way = left.interval.times(found.get(left.leader, UNKNOWN))
            low, high = max(direct.low, by_way.low), min(direct.high, by_way.high)
            ratio = direct.ratio if math.isfinite(direct.ratio) else by_way.ratio
            found[candidate] = Interval(ratio, low, high)
        return found

    def rounds_of(self, candidate: int) -> int:
        """Number of the rounds in which it was timed."""
        return int(np.isfinite(self._rounds.all(candidate)).sum())

    def _observations(self) -> Floats:
        """[pairs of rounds, candidates]: means of the logs of both times, NaN if one is missing."""
        count = len(self._rounds) // 2
        if len(self._pairs) != count:
            self._pairs = self._rounds.mean_logs_of_pairs()
        return self._pairs


def full_rounds(interval: Interval, rounds: int, wanted: float, least: int) -> int:
    """About how many rounds make an interval of the race as narrow as one that is measured fully.

    Args:
        interval: of a candidate that was compared for `rounds` rounds.
        wanted: half the width that the interval of the log ratio must have.
        least: the fewest rounds of a full measurement.
    """
    now = interval.half_width
    if not math.isfinite(now):
        return max(rounds, least)
    return max(least, math.ceil(rounds * (now / wanted) ** 2))


def _interval(series: Floats, which: int, far: float, error: float) -> Interval:
    """The interval of the median of a series.

    Args:
        which: of the LENGTHS of blocks.
        far: what observations exceed their median by with a probability of at most RARE.
        error: the probability that it is wrong at any time.
    """
    if not len(series):
        return UNKNOWN
    blocks = _medians_of_blocks(series, LENGTHS[which])
    low, high = _bounds(blocks, 0.5, error * SHARES[which] / 2)
    far_low, far_high = _bounds(series, RARE, error * SHARE_FAR / 2)
    return Interval(
        math.exp(_median(series)),
        math.exp(max(low, far_low - far)),
        math.exp(min(high, far_high + far)),
    )


def _bounds(values: Floats, rare: float, error: float) -> tuple[float, float]:
    """What too many of the values exceed, and what too many are below of."""
    n = len(values)
    least = _decisive(n, rare, error)
    if least is None:
        return -math.inf, math.inf
    ordered = np.sort(values)
    return float(ordered[n - least]), float(ordered[least - 1])


def _far(series: Sequence[Floats]) -> float:
    """The log ratio that counts as far off, by the deviations of all series."""
    off = [np.abs(one - np.median(one)) for one in series if len(one) > 1]
    return max(LEAST_FAR, FAR * float(np.quantile(np.concatenate(off), 0.9))) if off else math.inf


@functools.lru_cache(maxsize=65536)
def _decisive(n: int, rare: float, error: float) -> int | None:
    """The least s for which E(n, s) is at least 1 / error, with q = `rare`; None if there is none.

    The integral of p^s * (1 - p)^(n - s) from q to 1 is the one from 0 to 1, which is
    1 / ((n + 1) * C(n, s)), times the probability that at most s of n + 1 tosses succeed.
    """
    s = np.arange(n + 1)
    hit, miss = math.log(rare), math.log1p(-rare)
    tosses = _log_binomials(n + 1)[: n + 1] + s * hit + (n + 1 - s) * miss
    integrals = np.logaddexp.accumulate(tosses) - math.log(n + 1) - _log_binomials(n)
    evidence = integrals - s * hit - (n - s) * miss - miss
    least = math.ceil(n * rare)
    enough = np.flatnonzero(evidence[least:] >= -math.log(error))
    return None if not len(enough) else int(enough[0]) + least


@functools.lru_cache(maxsize=4096)
def _log_binomials(n: int) -> NDArray[np.float64]:
    """The logs of C(n, 0) to C(n, n)."""
    factorials = np.concatenate([[0.0], np.log(np.arange(1, n + 1)).cumsum()])
    logs: NDArray[np.float64] = factorials[n] - factorials - factorials[::-1]
    return logs


def _uncorrelated(series: Sequence[Floats]) -> int:
    """Which length of blocks makes neighbours uncorrelated, on average over all series."""
    for which, length in enumerate(LENGTHS):
        blocks = [_medians_of_blocks(one, length) for one in series]
        known = [one for one in blocks if len(one) >= FEWEST_BLOCKS]
        if not known:
            return which
        found = float(np.mean([*map(_correlation, known)]))
        if found <= UNCORRELATED + 1 / math.sqrt(sum(map(len, known))):
            return which
    return len(LENGTHS) - 1


def _correlation(values: Floats) -> float:
    """The correlation of the ranks of neighbours."""
    n = len(values)
    ranks = np.argsort(np.argsort(values)) - (n - 1) / 2
    return float(ranks[1:] @ ranks[:-1] / (ranks @ ranks)) + 1 / n  # it is too low by 1 / n


def _medians_of_blocks(series: Floats, length: int) -> Floats:
    whole = len(series) // length * length
    medians: Floats = np.median(series[:whole].reshape(-1, length), axis=1)
    return medians


def _finite(values: Floats) -> Floats:
    finite: Floats = values[np.isfinite(values)]
    return finite


def _median(values: Floats) -> float:
    finite = _finite(values)
    return float(np.median(finite)) if len(finite) else math.nan
