"""Rounds: in which order candidates are timed, their samples, and whether there are enough.

A round times each candidate once, and the next round in the opposite order (A B B A). Each sample
uses another set of inputs. So neither drift nor an address favours a candidate. The order is drawn
at random for every two rounds, since on a CPU a call is 2 % slower after other code than after its
own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpcall_kernels.execution.clock import SWAPPED
from warpcall_kernels.measuring._precision import Precision
from warpcall_kernels.measuring._statistics import (
    MARGIN,
    Comparison,
    Floats,
    Median,
    compare,
    compare_apart,
    margin_from,
    median_of,
    median_value_of,
)

Number = TypeVar("Number", int, NDArray[np.int_])
TWIN_EVERY = 4  # in each such round the first candidate is timed twice
GROWTH = 1.4  # of the number of rounds between two checks for convergence
A_A_HALF_WIDTH = 0.005  # of the first candidate compared with itself; the margin is twice this


@dataclass(frozen=True, slots=True)
class ScheduledSample:
    """One sample to take: the numbers of its round, its candidate and its set of inputs."""

    round: int
    candidate: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Convergence:
    """Half the width of the widest interval of all ratios, and whether that is narrow enough."""

    half_width: float
    converged: bool


class Rounds:
    """The samples of all candidates. One more column, the last, is the first candidate's twin.

    Args:
        candidates: number of columns without the twin.
        scheduled: those that are timed from the first round on; None means all.
    """

    def __init__(
        self,
        candidates: int,
        precision: Precision,
        seed: int = 0,
        scheduled: Sequence[int] | None = None,
    ) -> None:
        self.candidates = candidates
        self._scheduled = [*(range(candidates) if scheduled is None else scheduled)]
        self.twin = candidates
        self._precision = precision
        self._samples = np.full((0, candidates + 1), np.nan)
        self.masked: dict[int, str] = {}
        self._check_at = precision.min_rounds
        self._random = np.random.default_rng(seed)
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def counted(self) -> int:
        """Number of rounds that are not masked."""
        return len(self) - len(self.masked)

    def plan(self, count: int) -> list[ScheduledSample]:
        """The samples of the next `count` rounds, in order."""
        scheduled = []
        for number in range(len(self), len(self) + count):
            if number % 2 == 0 or not self._order:
                self._order = [int(c) for c in self._random.permutation(self._scheduled)]
            else:
                self._order.reverse()
            order = list(self._order)
            if number % TWIN_EVERY == TWIN_EVERY - 1 and 0 in order:
                order.insert(int(self._random.integers(len(order) + 1)), self.twin)
            scheduled += [ScheduledSample(number, c, _first_set(number) + c) for c in order]
        return scheduled

    def enter(self, candidate: int) -> None:
        """Time a further candidate from the next round on."""
        self._scheduled.append(candidate)
        self._order = []

    def leave(self, candidate: int) -> None:
        """Do not time a candidate any more. Its samples stay."""
        self._scheduled.remove(candidate)
        self._order = []

    def take(
        self, scheduled: Sequence[ScheduledSample], samples_us: Sequence[float], reason: str | None
    ) -> None:
        """Store measured samples. With a reason, their rounds are masked."""
        last = max(sample.round for sample in scheduled)
        missing = last + 1 - len(self)
        if missing > 0:
            rows = np.full((missing, self.candidates + 1), np.nan)
            self._samples = np.concatenate([self._samples, rows])
        for sample, time_us in zip(scheduled, samples_us, strict=True):
            self._samples[sample.round, sample.candidate] = time_us
            if reason is not None:
                self.masked.setdefault(sample.round, reason)

    def all(self, candidate: int) -> Floats:
        """The samples of a candidate by round, NaN where there is none."""
        column: Floats = self._samples[:, candidate]
        return column

    def mean_logs_of_pairs(self) -> Floats:
        """[rounds / 2, candidates]: means of the logs of two neighbouring samples of each.

        They are NaN where a sample is missing, or masked. The two have the two sets of inputs.
        """
        valid = self._samples[: len(self) // 2 * 2, : self.candidates].copy()
        valid[[number for number in self.masked if number < len(valid)]] = np.nan
        valid[~(valid > 0)] = np.nan
        means: Floats = np.log(valid).reshape(-1, 2, self.candidates).mean(axis=1)
        return means

    def counting(self, candidate: int) -> Floats:
        """The samples of a candidate without those of masked rounds."""
        column: Floats = self._samples[self._counting(), candidate]
        return column

    def median(self, candidate: int) -> Median | None:
        """The median of the samples that count; None if there are none."""
        counting = self._counting()
        found = median_of(self._samples[counting, candidate], _sets(counting))
        return None if math.isnan(found.value) else found

    def relative(self, candidate: int, margin: float) -> Comparison:
        """The comparison of a candidate with the first one."""
        counting = self._counting()
        samples = self._samples[counting]
        return compare(samples[:, 0], samples[:, candidate], sets=_sets(counting), margin=margin)

    def a_a(self) -> Comparison:
        """The comparison of the first candidate with itself."""
        found = self.relative(self.twin, 0.0)
        return self.relative(self.twin, margin_from(found))

    def convergence(self) -> Convergence:
        """The convergence of all ratios so far."""
        widths = [self.relative(c, 0.0).half_width for c in range(1, self.candidates)]
        widest = max(widths, default=0.0)
        enough = (
            self.counted >= self._precision.min_rounds
            and widest <= self._precision.half_width
            and self.relative(self.twin, 0.0).half_width <= A_A_HALF_WIDTH
        )
        return Convergence(widest, enough)

    def _counting(self) -> NDArray[np.int_]:
        """The numbers of rounds that are not masked."""
        return np.setdiff1d(np.arange(len(self)), list(self.masked))

    def due(self) -> int:
        """Rounds until the next check for convergence. Checks take time, so their distance grows."""
        return max(0, self._check_at - self.counted)

    def postpone_check(self) -> None:
        """Set the time of the next check, after one without convergence."""
        self._check_at = max(self._check_at + 8, math.ceil(self._check_at * GROWTH))


def _first_set(number: Number) -> Number:
    """The first set of inputs of a round. It alternates, also among the rounds with a twin."""
    return number + number // TWIN_EVERY


def _sets(numbers: NDArray[np.int_]) -> NDArray[np.int_]:
    """The sets of inputs of rounds; those of another candidate differ by a constant."""
    return _first_set(numbers) % SWAPPED


def median_of_run(samples: ArrayLike) -> float:
    """The median of the samples of one run, as its result has it; NaN if there are none.

    Args:
        samples: times in us by round, NaN where there is none.
    """
    return median_value_of(samples, _sets(np.arange(np.size(samples))))


def compare_runs(
    samples_a: ArrayLike,
    samples_b: ArrayLike,
    *,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    margin: float = MARGIN,
) -> Comparison:
    """Compare the samples of two runs.

    Args:
        samples_a, samples_b: times in us by round, NaN where there is none.
        limits: times of the copy in the same rounds of both runs. If they are given, the times are
            compared relative to them.
        margin: log ratios within it count as no difference.
    """
    sets = (_sets(np.arange(np.size(samples_a))), _sets(np.arange(np.size(samples_b))))
    return compare_apart(samples_a, samples_b, sets=sets, limits=limits, margin=margin)
