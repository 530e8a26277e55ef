"""Random numbers from which the cases of an exploration are made.

A seed gives the same numbers on each machine: Python hashes the text of a seed with SHA-512, and
all numbers follow from `random()`, which is the same in each version of Python.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch

from warpcall_kernels.op.cases import SampleLayout, Values

NOT_CONTIGUOUS = 0.12  # probability that an input has another layout
SPECIAL = 0.1  # probability that an input has NaN and infinities
POWERS_OF_TWO, MULTIPLES_OF_8 = 0.3, 0.2  # probabilities that a size is rounded so

T = TypeVar("T")


class Range(NamedTuple):
    """The compulsory bytes of a case: the least and the most."""

    least: int = 32 << 10
    most: int = 256 << 20


SMALL = Range(256, 64 << 10)  # for kernels that are interpreted


class Draw:
    """Draws what a case is made of.

    Args:
        seed: a text; the same text gives the same numbers.
        within: the bytes of the case. `bytes` is drawn from it log-uniformly.
    """

    def __init__(self, seed: str, within: Range) -> None:
        self._random = random.Random(seed)
        self.bytes = self.log(*within)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, all equally likely."""
        return options[int(self._random.random() * len(options))]

    def weighted(self, options: Mapping[T, float]) -> T:
        """One of the options, as likely as their weights say."""
        left = self._random.random() * sum(options.values())
        for option, weight in options.items():
            left -= weight
            if left < 0:
                return option
        return next(reversed(list(options)))

    def log(self, low: int, high: int) -> int:
        """An integer between both bounds, log-uniformly."""
        at = self._random.random()
        return clamped(round(low ** (1 - at) * high**at), low, high)

    def size(self, low: int, high: int) -> int:
        """As `log`, often rounded to a power of two or a multiple of 8."""
        return clamped(self._rounded(self.log(low, high)), low, high)

    def order(self, count: int) -> tuple[int, ...]:
        """The numbers below `count` in a random order."""
        keys = [self._random.random() for _ in range(count)]
        return tuple(sorted(range(count), key=keys.__getitem__))

    def shape(self, rank: int, elements: int) -> tuple[int, ...]:
        """Sizes whose product is about `elements`. Their logarithms are random parts of its own."""
        if rank == 0:
            return ()
        parts = [-math.log(1 - self._random.random()) + 1e-9 for _ in range(rank)]
        sizes = [max(1, self._rounded(round(elements ** (p / sum(parts))))) for p in parts]
        return fitted(sizes, elements, max(range(rank), key=sizes.__getitem__))

    def layout(self, rank: int) -> SampleLayout:
        """The layout of an input, seldom another one than contiguous."""
        if rank < 1 or not self.chance(NOT_CONTIGUOUS):
            return "contiguous"
        others: tuple[SampleLayout, ...] = ("strided", "offset", "expanded", "transposed")
        return self.choice(others if rank > 1 else others[:3])

    def values(self, dtype: torch.dtype) -> Values:
        """The values of an input, seldom with NaN and infinities."""
        has_infinities = (dtype.is_floating_point and dtype.itemsize > 1) or dtype.is_complex
        return "special" if has_infinities and self.chance(SPECIAL) else "normal"

    def _rounded(self, size: int) -> int:
        kind = self._random.random()
        if size > 1 and kind < POWERS_OF_TWO:
            return 1 << round(math.log2(size))
        if size > 8 and kind < POWERS_OF_TWO + MULTIPLES_OF_8:
            return size // 8 * 8
        return size


def fitted(sizes: Sequence[int], elements: int, dim: int) -> tuple[int, ...]:
    """The same sizes but for one, which makes their product as many elements as possible."""
    others = math.prod(size for d, size in enumerate(sizes) if d != dim)
    return (*sizes[:dim], max(1, elements // others), *sizes[dim + 1 :])


def clamped(value: int, low: int, high: int) -> int:
    """The value, or the bound that it is beyond."""
    return max(low, min(high, value))
