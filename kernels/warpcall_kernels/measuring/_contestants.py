"""The implementations of one case on their way to a result, and what is told of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from warpcall_kernels.measuring._check import Wrong
from warpcall_kernels.measuring._clock import Clock, Timed
from warpcall_kernels.measuring._context import class_of, first_line
from warpcall_kernels.measuring._implementations import LIMIT, Function
from warpcall_kernels.measuring._memory import Sets
from warpcall_kernels.measuring._observe import theoretical_gb_per_s
from warpcall_kernels.measuring._result import ImplementationResult, Ratio, Status
from warpcall_kernels.measuring._rounds import Rounds
from warpcall_kernels.measuring._statistics import (
    Comparison,
    margin_from,
    median_interval,
    percentiles,
)

SUSPECT = 1.03  # times as fast as the best copy


@dataclass
class Contestant:
    """An implementation; the limit is one, too, without a function."""

    name: str
    function: Function | None = None
    sets: Sets = field(default_factory=lambda: Sets(dict))
    timed: Timed | None = None
    status: Status = "ok"
    error: str | None = None
    peak_bytes: int | None = None
    hot_us: float | None = None
    energy_mj: float | None = None

    @property
    def in_play(self) -> bool:
        """Whether it is right, and ready to be timed."""
        return self.status == "ok" and self.timed is not None

    @property
    def ready(self) -> Timed:
        """What is timed of one in play."""
        assert self.timed is not None
        return self.timed


@contextlib.contextmanager
def failing(contestant: Contestant) -> Iterator[None]:
    """Note what goes wrong with one implementation, so that the others go on."""
    try:
        yield
    except Wrong as error:
        contestant.status, contestant.error = "wrong_result", str(error)
    except Exception as error:  # noqa: BLE001  # what others wrote may raise anything
        contestant.status, contestant.error = class_of(error), first_line(error)


class Told:
    """What is told of each implementation once the rounds are over."""

    def __init__(
        self,
        playing: Sequence[Contestant],
        rounds: Rounds,
        device: torch.device,
        clock: Clock,
        nbytes: int,
        first: str,
        a_a: Comparison | None,
    ) -> None:
        self._playing = playing
        self._rounds = rounds
        self._on_gpu = device.type == "cuda"
        self._nbytes = nbytes
        self._first = first
        self._margin = margin_from(a_a)
        self._limit_us = next(
            (self._median(i) for i, c in enumerate(playing) if c.name == LIMIT), None
        )
        # What is written may stay in the cache.
        self._memory_bytes = max(0, nbytes - clock.cache_bytes)
        self._most_gb_per_s = theoretical_gb_per_s(device)

    def of(self, c: Contestant) -> ImplementationResult:
        """The result of one of them."""
        number = self._playing.index(c) if c in self._playing else None
        median = None if number is None else self._median(number)
        if number is None or median is None:
            error = c.error or "there was no round that counts"
            return ImplementationResult(c.name, c.status, error, peak_bytes=c.peak_bytes)
        samples = self._rounds.counting(number)
        least, p5, p25, p75, p95 = percentiles(samples, (0, 5, 25, 75, 95))
        low, high = median_interval(samples)
        share = None if self._limit_us is None else self._limit_us / median
        tags = c.ready.tags
        if self._on_gpu and share is not None and share > SUSPECT:
            tags += ("suspect",)
        impossible = too_fast(self._memory_bytes, median, self._most_gb_per_s)
        return ImplementationResult(
            c.name,
            "invalid" if impossible else c.status,
            impossible or c.error,
            method=c.ready.method,
            n=int(np.isfinite(samples).sum()),
            median_us=median,
            p5_us=p5,
            p25_us=p25,
            p75_us=p75,
            p95_us=p95,
            min_us=least,
            ci_low_us=low or None,
            ci_high_us=high if np.isfinite(high) else None,
            relative=self._relative(number),
            gb_per_s=self._nbytes / median / 1000,
            share_of_limit=share,
            peak_bytes=c.peak_bytes,
            hot_us=c.hot_us,
            host_us=c.ready.host_us if self._on_gpu else None,
            energy_mj=c.energy_mj,
            samples_us=tuple(
                float(s) if np.isfinite(s) else None for s in self._rounds.all(number)
            ),
            tags=tags,
        )

    def _median(self, number: int) -> float | None:
        samples = self._rounds.counting(number)
        samples = samples[np.isfinite(samples)]
        return float(np.median(samples)) if len(samples) else None

    def _relative(self, number: int) -> Ratio | None:
        if number == 0 or self._playing[0].name != self._first:
            return None
        found = self._rounds.relative(number, self._margin)
        return Ratio.of(found) if found.n else None


def too_fast(nbytes: int, time_us: float, most_gb_per_s: float | None) -> str | None:
    """What physics says against moving so much in so short a time, or None."""
    gb_per_s = nbytes / time_us / 1000
    if most_gb_per_s is None or gb_per_s <= most_gb_per_s:
        return None
    return (
        f"{gb_per_s:.0f} GB/s is more than the memory's {most_gb_per_s:.0f} GB/s: "
        "it cannot have read and written what the op says"
    )
