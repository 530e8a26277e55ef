"""The implementations of one case while they are measured, and the result of each."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from warpcall_kernels.execution.answers import Facts
from warpcall_kernels.execution.clock import Clock
from warpcall_kernels.execution.context import Outside
from warpcall_kernels.execution.executor import Executor
from warpcall_kernels.execution.failures import Status, class_of, first_line, traceback_of
from warpcall_kernels.execution.implementations import LIMIT
from warpcall_kernels.execution.inputs import Sets
from warpcall_kernels.execution.outputs import Wrong
from warpcall_kernels.execution.printed import printed_by
from warpcall_kernels.execution.process import RemoteFailed, RemoteProcess
from warpcall_kernels.execution.remote import RemoteExecutor
from warpcall_kernels.execution.timed import Timed
from warpcall_kernels.measuring._observe import theoretical_gb_per_s
from warpcall_kernels.measuring._result import ImplementationResult, Ratio
from warpcall_kernels.measuring._rounds import Rounds
from warpcall_kernels.measuring._statistics import (
    Comparison,
    margin_from,
    percentiles,
)

SUSPECT = 1.03  # times as fast as the best copy
# Tags of implementations whose times nothing can be concluded from.
PLAIN_TORCH = "plain torch"  # our launchers call torch instead of a kernel
INCONCLUSIVE = frozenset({"interpreted", PLAIN_TORCH})


@dataclass
class Candidate:
    """One implementation that is measured. The limit is one, too, and has no executor.

    Attributes:
        process: in which it runs; None for this one.
        called_s: seconds of its calls whose results were checked before it is timed.
        checked: timed calls whose outputs were compared.
        doubt: why its times cannot be right; None if our clock agrees with them.
        is_confirmed: whether our clock could tell that.
        is_shortened: whether each of its samples is of many calls.
        has_left: whether it has left a race, and is not called any more.
    """

    name: str
    executor: Executor | RemoteExecutor | None = None
    process: RemoteProcess | None = None
    timed: Timed | None = None  # of the limit
    sets: Sets = field(default_factory=lambda: Sets(dict))  # of the limit
    status: Status = "ok"
    error: str | None = None
    traceback: str | None = None
    peak_bytes: int | None = None
    called_s: list[float] = field(default_factory=list)
    hot_us: float | None = None
    energy_mj: float | None = None
    tags: tuple[str, ...] = ()
    checked: int = 0
    doubt: str | None = None
    is_confirmed: bool = True
    is_shortened: bool = False
    has_left: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether its results are right and it is ready to be timed."""
        return self.status == "ok" and self._ready is not None

    @property
    def ready(self) -> Timed | Facts:
        """How its calls are timed, of a candidate that `is_timed`."""
        assert self._ready is not None
        return self._ready

    @property
    def remote(self) -> RemoteExecutor | None:
        """Its executor, if it runs in another process."""
        return self.executor if isinstance(self.executor, RemoteExecutor) else None

    def take_compile_s(self) -> float:
        """Seconds for which it was imported and compiled. Call it once.

        The first call in a case compiles what it launches. So its time without that of the second
        call counts, and all of it if there was none.
        """
        import_s = 0.0 if self.process is None else self.process.take_import_s()
        first, second = [*self.called_s, 0.0, 0.0][:2]
        return import_s + max(0.0, first - second)

    def take_setup_s(self) -> float:
        """Seconds of its setup in this case. Call it once."""
        return 0.0 if self.process is None else self.process.take_setup_s()

    def take_printed(self) -> str:
        """What it has printed in this case, if it runs in another process. Call it once."""
        if self.process is None:
            return ""
        first = None if self.remote is None else self.remote.printed
        return printed_by(first, self.process.take_printed(), failed=self.status != "ok")

    @property
    def is_verified(self) -> bool:
        """Whether no code of its author for the host meets the clock."""
        return self.process is not None and self.process.is_verified

    @property
    def here(self) -> Timed | None:
        """How its calls are timed in this process."""
        return self.executor.timed if isinstance(self.executor, Executor) else self.timed

    @property
    def _ready(self) -> Timed | Facts | None:
        return self.here if self.remote is None else self.remote.facts

    @property
    def concludes(self) -> bool:
        """Whether its times may be compared with those of others."""
        tags = (*self.tags, *self.ready.tags)
        known = self.is_confirmed and not self.doubt
        return self.status == "ok" and known and not INCONCLUSIVE.intersection(tags)


@contextlib.contextmanager
def failing(candidate: Candidate) -> Iterator[None]:
    """Record an error of one implementation, so that the others are still measured."""
    try:
        yield
    except Wrong as error:
        candidate.status, candidate.error = "wrong_result", str(error)
    except RemoteFailed as error:
        candidate.status, candidate.error = error.status, error.error
        candidate.traceback = error.traceback
    except (Outside, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # code of others may raise anything
        candidate.status, candidate.error = class_of(error), first_line(error)
        candidate.traceback = traceback_of(error)


class ResultBuilder:
    """Builds the result of each implementation after the last round."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        rounds: Rounds,
        device: torch.device,
        clock: Clock,
        nbytes: int,
        first: str,
        a_a: Comparison | None,
        *,
        timed: bool,
    ) -> None:
        self._timed = timed
        self._candidates = candidates
        self._rounds = rounds
        self._on_gpu = device.type == "cuda"
        self._nbytes = nbytes
        self._first = first
        self._margin = margin_from(a_a)
        limits = [rounds.median(i) for i, c in enumerate(candidates) if c.name == LIMIT]
        self._limit = limits[0] if limits else None
        # Outputs may stay in the cache, so only the rest must have come from memory.
        self._memory_bytes = max(0, nbytes - clock.cache_bytes)
        self._most_gb_per_s = theoretical_gb_per_s(device)

    def result_of(self, c: Candidate) -> ImplementationResult:
        """The result of one candidate."""
        number = self._candidates.index(c) if c in self._candidates else None
        found = None if number is None else self._rounds.median(number)
        if number is None or found is None or c.status != "ok":
            error = c.error or ("there was no round that counts" if self._timed else None)
            return ImplementationResult(
                *(c.name, c.status, error, c.traceback),
                peak_bytes=c.peak_bytes,
                tags=c.tags,
                verified=c.is_verified,
            )
        samples = self._rounds.counting(number)
        least, p5, p25, p75, p95 = percentiles(samples, (0, 5, 25, 75, 95))
        median = found.value
        share = None if self._limit is None else self._limit.value / median
        tags = c.tags + c.ready.tags
        if self._is_suspect(number):
            tags += ("suspect",)
        if not c.is_confirmed:
            tags += ("unconfirmed",)
        impossible = self._why_invalid(c, median)
        return ImplementationResult(
            c.name,
            "invalid" if impossible else c.status,
            impossible or c.error,
            c.traceback,
            method=c.ready.method,
            n=int(np.isfinite(samples).sum()),
            median_us=median,
            p5_us=p5,
            p25_us=p25,
            p75_us=p75,
            p95_us=p95,
            min_us=least,
            ci_low_us=found.low or None,
            ci_high_us=found.high if np.isfinite(found.high) else None,
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
            verified=c.is_verified,
        )

    def _is_suspect(self, number: int) -> bool:
        """Whether it is faster than a copy of as many bytes."""
        found = self._rounds.median(number)
        if not self._on_gpu or self._limit is None or found is None:
            return False
        return self._limit.value / found.value > SUSPECT

    def _why_invalid(self, c: Candidate, median_us: float) -> str | None:
        return c.doubt or too_fast(self._memory_bytes, median_us, self._most_gb_per_s)

    def concludes(self, number: int) -> bool:
        """Whether the times of the candidate of this column are a basis for a verdict."""
        found, c = self._rounds.median(number), self._candidates[number]
        if found is None or self._why_invalid(c, found.value):
            return False
        return c.concludes and not self._is_suspect(number)

    def _relative(self, number: int) -> Ratio | None:
        if number == 0 or self._candidates[0].name != self._first:
            return None
        if not self.concludes(0) or not self.concludes(number):
            return None
        found = self._rounds.relative(number, self._margin)
        # What a process may have hidden of its time must not decide which one is faster.
        faster = self._candidates[number if found.verdict == "faster" else 0]
        if found.verdict in ("faster", "slower") and faster.remote is not None:
            median = self._rounds.median(self._candidates.index(faster))
            assert median is not None
            margin = self._margin + math.log1p(faster.remote.hidden_share(median.value))
            if self._rounds.relative(number, margin).verdict != found.verdict:
                found = replace(found, verdict="inconclusive")
        return Ratio.of(found) if found.n else None


def too_fast(nbytes: int, time_us: float, most_gb_per_s: float | None) -> str | None:
    """Why a time is impossible for moving so many bytes, or None if it is possible."""
    gb_per_s = nbytes / time_us / 1000
    if most_gb_per_s is None or gb_per_s <= most_gb_per_s:
        return None
    return (
        f"{gb_per_s:.0f} GB/s is more than the memory's {most_gb_per_s:.0f} GB/s: "
        "it cannot have read and written what the op says"
    )
