"""Rounds: who is timed when, what was measured, and whether it is enough.

A round times each implementation once, and the next one in the opposite order (A B B A), each time with
another set of inputs, so that neither drift nor an address favours anyone. Which one begins is drawn
anew for every two rounds: on a CPU a call is 2 % slower behind other code than behind its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpcall_kernels.measuring._clock import SWAPPED
from warpcall_kernels.measuring._precision import Precision
from warpcall_kernels.measuring._statistics import (
    Comparison,
    Floats,
    compare,
    compare_apart,
    margin_from,
)

Number = TypeVar("Number", int, NDArray[np.int_])
TWIN_EVERY = 4  # rounds; then the first implementation is timed twice
GROWTH = 1.4  # between two looks at whether it is enough
A_A_HALF_WIDTH = 0.005  # of the first compared with itself: the margin is twice that


@dataclass(frozen=True, slots=True)
class Play:
    """One sample to take: of the contestant of this number, in this round, with this set of inputs."""

    round: int
    contestant: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Look:
    """The widest interval among the ratios, as its half-width; whether all are as narrow as asked for."""

    half_width: float
    converged: bool


class Rounds:
    """The samples of some contestants; the last number, beside theirs, is the twin of the first."""

    def __init__(self, contestants: int, precision: Precision, seed: int = 0) -> None:
        self.contestants = contestants
        self.twin = contestants
        self._precision = precision
        self._samples = np.full((0, contestants + 1), np.nan)
        self.masked: dict[int, str] = {}
        self._look_at = precision.min_rounds
        self._random = np.random.default_rng(seed)
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def counted(self) -> int:
        """Rounds that are not masked."""
        return len(self) - len(self.masked)

    def plan(self, count: int) -> list[Play]:
        """What the next `count` rounds take."""
        plays = []
        for number in range(len(self), len(self) + count):
            if number % 2 == 0 or not self._order:
                self._order = [int(c) for c in self._random.permutation(self.contestants)]
            else:
                self._order.reverse()
            order = list(self._order)
            if number % TWIN_EVERY == TWIN_EVERY - 1:
                order.insert(int(self._random.integers(len(order) + 1)), self.twin)
            plays += [Play(number, c, _turn(number) + c) for c in order]
        return plays

    def take(self, plays: Sequence[Play], samples_us: Sequence[float], reason: str | None) -> None:
        """Note what was measured; with a reason, its rounds do not count."""
        last = max(play.round for play in plays)
        missing = last + 1 - len(self)
        if missing > 0:
            rows = np.full((missing, self.contestants + 1), np.nan)
            self._samples = np.concatenate([self._samples, rows])
        for play, sample in zip(plays, samples_us, strict=True):
            self._samples[play.round, play.contestant] = sample
            if reason is not None:
                self.masked.setdefault(play.round, reason)

    def all(self, contestant: int) -> Floats:
        """One sample a round, NaN where there is none."""
        column: Floats = self._samples[:, contestant]
        return column

    def counting(self, contestant: int) -> Floats:
        """The same without masked rounds."""
        column: Floats = self._samples[self._counting(), contestant]
        return column

    def relative(self, contestant: int, margin: float) -> Comparison:
        """A contestant compared with the first one."""
        counting = self._counting()
        samples = self._samples[counting]
        return compare(samples[:, 0], samples[:, contestant], sets=_sets(counting), margin=margin)

    def a_a(self) -> Comparison:
        """The first one compared with itself."""
        found = self.relative(self.twin, 0.0)
        return self.relative(self.twin, margin_from(found))

    def look(self) -> Look:
        """How sure the ratios are by now."""
        widths = [self.relative(c, 0.0).half_width for c in range(1, self.contestants)]
        widest = max(widths, default=0.0)
        enough = (
            self.counted >= self._precision.min_rounds
            and widest <= self._precision.half_width
            and self.relative(self.twin, 0.0).half_width <= A_A_HALF_WIDTH
        )
        return Look(widest, enough)

    def _counting(self) -> NDArray[np.int_]:
        """Numbers of the rounds that are not masked."""
        return np.setdiff1d(np.arange(len(self)), list(self.masked))

    def due(self) -> int:
        """Rounds until the next look: looking takes time, so it is done at growing distances."""
        return max(0, self._look_at - self.counted)

    def looked(self) -> None:
        """Note that it was not enough."""
        self._look_at = max(self._look_at + 8, math.ceil(self._look_at * GROWTH))


def _turn(number: Number) -> Number:
    """Which set of inputs a round, or each of some, begins with; also among those with a twin it alternates."""
    return number + number // TWIN_EVERY


def _sets(numbers: NDArray[np.int_]) -> NDArray[np.int_]:
    """The sets of inputs of rounds; with another contestant they are others, but change alike."""
    return _turn(numbers) % SWAPPED


def compare_runs(samples_a: ArrayLike, samples_b: ArrayLike) -> Comparison:
    """Compare what was measured in two runs: times in us by round, NaN where there is none."""
    sets = (_sets(np.arange(np.size(samples_a))), _sets(np.arange(np.size(samples_b))))
    return compare_apart(samples_a, samples_b, sets=sets)
