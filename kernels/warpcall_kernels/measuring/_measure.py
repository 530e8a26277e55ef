"""One case, from its inputs to its result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from warpcall_kernels._errors import InvalidInput
from warpcall_kernels.measuring import _clock
from warpcall_kernels.measuring._check import Checker, Function, Wrong, draw
from warpcall_kernels.measuring._clock import Clock, Timed
from warpcall_kernels.measuring._implementations import LIMIT, find
from warpcall_kernels.measuring._memory import copied, copy_source, shared
from warpcall_kernels.measuring._observe import observer
from warpcall_kernels.measuring._precision import Precision
from warpcall_kernels.measuring._result import (
    CaseResult,
    ImplementationResult,
    Masked,
    Ratio,
    Status,
)
from warpcall_kernels.measuring._rounds import Play, Rounds
from warpcall_kernels.measuring._spec import JobCase
from warpcall_kernels.measuring._statistics import margin_from, median_interval, percentiles

Lease = Callable[[], AbstractContextManager[None]]
Progress = Callable[[dict[str, Any]], None]

BLOCK_US = 200_000  # timed work that is queued at a time; a lease is held for no longer
ROUNDS_AT_ONCE = 64
WARM_AGREE = 0.01
UNSTABLE = 0.2  # of the rounds masked


def measure(
    case: JobCase,
    implementations: Sequence[str],
    device: torch.device | str,
    precision: Precision,
    *,
    seed: int = 0,
    lease: Lease = contextlib.nullcontext,
    progress: Progress = lambda event: None,
) -> CaseResult:
    """Time some implementations of a case against each other, those that are right.

    Args:
        case: what is computed.
        implementations: names; the others are compared with the first.
        device: "cpu", or a GPU of this process.
        precision: one of `PRECISIONS`.
        seed: of the values that are timed; those of the checks nobody knows.
        lease: entered around every timed block, of at most some 250 ms unless one call takes longer.
        progress: is given an event, as JSON, whenever there is something new.

    Returns:
        The result; what went wrong with an implementation is in it.

    Raises:
        InvalidInput: an implementation that there is not, or a device.
    """
    if not implementations or len(set(implementations)) != len(implementations):
        raise InvalidInput(
            "implementations", f"implementations must differ and not be none, got {implementations}"
        )
    functions = {
        name: find(case.op.name, name).build(case.op, case.params)
        for name in implementations
        if name != LIMIT
    }
    with _on(_device(device)) as on, _same_arithmetic(), torch.no_grad():
        return _Measurement(
            case, list(implementations), functions, on, precision, seed, lease, progress
        ).run()


@dataclass
class _Contestant:
    """An implementation on its way to a result."""

    name: str
    status: Status = "ok"
    error: str | None = None
    timed: Timed | None = None
    peak_bytes: int | None = None


class _Measurement:
    def __init__(
        self,
        case: JobCase,
        names: list[str],
        functions: Mapping[str, Function],
        device: torch.device,
        precision: Precision,
        seed: int,
        lease: Lease,
        progress: Progress,
    ) -> None:
        self._begin = time.monotonic()
        self._case = case
        self._device = device
        self._precision = precision
        self._seed = seed
        self._lease = lease
        self._progress = progress
        self._functions = functions
        self._contestants = [_Contestant(name) for name in names]
        if LIMIT not in names:
            self._contestants.append(_Contestant(LIMIT))
        self._asked = names
        self._lost = False
        self._clock: Clock

    def run(self) -> CaseResult:
        """All steps; whoever fails at one of them takes no part in the next."""
        self._tell("preparing")
        self._check()
        self._clock = _clock.clock(self._device)
        first = draw(self._case.inputs, self._seed, self._device)
        nbytes = self._case.op.bytes_moved(**first, **self._case.params)
        self._prepare(first, nbytes)
        ready = [c for c in self._contestants if c.timed is not None and c.status == "ok"]
        watcher = observer(self._device)
        rounds = Rounds(len(ready), self._precision)
        if any(c.name in self._asked for c in ready) and not self._lost:
            self._warm_up(ready)
            self._take_rounds(ready, rounds, watcher)
        return self._result(ready, rounds, nbytes, watcher.tags())

    def _check(self) -> None:
        checker = Checker(self._case, self._device)
        for c in self._contestants:
            if c.name != LIMIT and not self._lost:
                self._tell("correctness", implementation=c.name)
                with self._failing(c):
                    c.peak_bytes = checker.check(self._functions[c.name])
        del checker
        self._free()

    def _prepare(self, first: Mapping[str, Tensor], nbytes: int) -> None:
        """Get ready to time whoever is right; if one of them is short, all are timed as short ones."""
        draws: dict[str, Callable[[], Mapping[str, Tensor]]] = {}
        sets: list[Mapping[str, Tensor]] = []
        for c in self._contestants:
            if c.status != "ok" or self._lost:
                continue
            self._tell("preparing", implementation=c.name)
            if c.name == LIMIT:
                call: _clock.Call = lambda inputs: inputs["x"].clone()
                draws[c.name] = lambda: {"x": copy_source(nbytes, self._device)}
            else:
                function = self._functions[c.name]
                call = lambda inputs, function=function: function(**inputs)  # type: ignore[misc]
                draws[c.name] = shared(sets, lambda: copied(first))
            with self._failing(c), self._lease():
                c.timed = self._clock.ready(call, draws[c.name])
        ready = [c for c in self._contestants if c.timed is not None and c.status == "ok"]
        if min((c.timed.rough_us for c in ready if c.timed), default=1e9) >= _clock.SHORT_US:
            return
        for c in ready:
            assert c.timed is not None
            if c.timed.rough_us <= _clock.GRAPH_UP_TO_US:
                if c.name != LIMIT:  # the sets it has are the first of all that are shared
                    draws[c.name] = shared(sets, lambda: copied(first), len(c.timed.sets))
                with self._failing(c), self._lease():
                    self._clock.shorten(c.timed, draws[c.name])

    def _warm_up(self, ready: Sequence[_Contestant]) -> None:
        """Until three windows agree on every median, or it takes too long."""
        self._tell("warmup")
        begin, medians = time.monotonic(), []
        while time.monotonic() < begin + self._precision.warm_seconds:
            window = Rounds(len(ready), self._precision)
            end = time.monotonic() + self._precision.warm_window_s
            while time.monotonic() < end:
                self._block(ready, window, window.plan(1))
            columns = (window.all(i) for i in range(len(ready)))
            medians.append(np.array([np.nanmedian(column) for column in columns]))
            if len(medians) >= 3:
                last = np.array(medians[-3:])
                if np.all(last.max(0) / last.min(0) - 1 <= WARM_AGREE):
                    return

    def _take_rounds(self, ready: Sequence[_Contestant], rounds: Rounds, watcher: Any) -> None:
        seconds = self._precision.seconds * len(ready)
        end = time.monotonic() + seconds
        round_us = sum(self._clock.wall_us(c.timed) for c in ready if c.timed)
        while rounds.counted < self._precision.max_rounds and time.monotonic() < end:
            if not rounds.due():
                if self._enough(rounds):
                    return
                rounds.looked()
            fitting = max(1, int(BLOCK_US / round_us))
            plays = rounds.plan(min(fitting, ROUNDS_AT_ONCE, max(1, rounds.due())))
            for block in self._blocks(ready, plays):
                self._block(ready, rounds, block, watcher)
                if time.monotonic() > end:
                    return

    def _enough(self, rounds: Rounds) -> bool:
        self._tell("rounds", rounds=rounds.counted, half_width=_finite(rounds.half_width()))
        return rounds.converged() and rounds.spent_us() >= 1e6 * self._precision.min_seconds

    def _blocks(self, ready: Sequence[_Contestant], plays: Sequence[Play]) -> Iterator[list[Play]]:
        """Cut plays into blocks that hold the device for no longer than allowed."""
        block: list[Play] = []
        wall_us = 0.0
        for play in plays:
            timed = ready[play.contestant % len(ready)].timed
            assert timed is not None
            us = self._clock.wall_us(timed)
            if block and wall_us + us > BLOCK_US:
                yield block
                block, wall_us = [], 0.0
            block.append(play)
            wall_us += us
        yield block

    def _block(
        self,
        ready: Sequence[_Contestant],
        rounds: Rounds,
        plays: Sequence[Play],
        watcher: Any = None,
    ) -> None:
        work = []
        for play in plays:
            timed = ready[play.contestant % len(ready)].timed  # the twin is the first
            assert timed is not None
            work.append((timed, play.inputs % len(timed.sets)))
        with self._lease():
            samples_us = self._clock.block(work)
        rounds.take(plays, samples_us, None if watcher is None else watcher.look())

    @contextlib.contextmanager
    def _failing(self, contestant: _Contestant) -> Iterator[None]:
        """Note what goes wrong with one implementation, and go on with the others."""
        try:
            yield
        except Wrong as error:
            contestant.status, contestant.error = "wrong_result", str(error)
        except torch.cuda.OutOfMemoryError as error:
            contestant.status, contestant.error = "oom", _first_line(error)
        except Exception as error:  # noqa: BLE001  # what others wrote may raise anything
            contestant.status, contestant.error = _class_of(error), _first_line(error)
            self._lost = contestant.status == "cuda_error"
        if contestant.status != "ok" and not self._lost:
            self._free()

    def _free(self) -> None:
        if self._device.type == "cuda" and not self._lost:
            torch.cuda.empty_cache()

    def _tell(self, phase: str, **more: Any) -> None:
        self._progress({"phase": phase, **more})

    def _result(
        self, ready: Sequence[_Contestant], rounds: Rounds, nbytes: int, tags: tuple[str, ...]
    ) -> CaseResult:
        a_a = rounds.a_a() if len(rounds) else None
        margin = margin_from(a_a)
        limit_us = _median_of(ready, rounds, LIMIT)
        told = {
            c.name: self._told(c, ready, rounds, nbytes, margin, limit_us)
            for c in self._contestants
        }
        if len(rounds.masked) > UNSTABLE * max(1, len(rounds)):
            tags += ("unstable",)
        return CaseResult(
            key=self._case.key,
            op=self._case.op.name,
            spec=self._case.spec,
            device=str(self._device),
            clock=self._clock.name,
            precision=self._precision.name,
            seed=self._seed,
            bytes_moved=nbytes,
            output_bytes=sum(m.nbytes for m in self._case.outputs.values()),
            implementations=tuple(told[name] for name in self._asked),
            limit=told[LIMIT],
            rounds=len(rounds),
            masked=tuple(Masked(n, reason) for n, reason in sorted(rounds.masked.items())),
            converged=len(rounds) > 0 and rounds.converged(),
            margin=margin,
            a_a=None if a_a is None or not a_a.n else Ratio.of(a_a),
            device_lost=self._lost,
            seconds=time.monotonic() - self._begin,
            tags=tags,
        )

    def _told(
        self,
        c: _Contestant,
        ready: Sequence[_Contestant],
        rounds: Rounds,
        nbytes: int,
        margin: float,
        limit_us: float | None,
    ) -> ImplementationResult:
        if c.status == "ok" and self._lost:
            return ImplementationResult(c.name, "cuda_error", "not measured: the device was lost")
        if c not in ready or c.timed is None:
            return ImplementationResult(c.name, c.status, c.error)
        number = ready.index(c)
        samples = rounds.counting(number)
        if not np.isfinite(samples).any():
            return ImplementationResult(c.name, c.status, "no time was left for it")
        least, p5, p25, median, p75, p95 = percentiles(samples, (0, 5, 25, 50, 75, 95))
        low, high = median_interval(samples)
        first = ready[0].name == self._asked[0]
        return ImplementationResult(
            c.name,
            c.status,
            c.error,
            method=c.timed.method,
            n=int(np.isfinite(samples).sum()),
            median_us=median,
            p5_us=p5,
            p25_us=p25,
            p75_us=p75,
            p95_us=p95,
            min_us=least,
            ci_low_us=low or None,
            ci_high_us=_finite(high),
            relative=Ratio.of(rounds.relative(number, margin)) if number and first else None,
            gb_per_s=nbytes / median / 1000,
            share_of_limit=None if limit_us is None else limit_us / median,
            peak_bytes=c.peak_bytes,
            samples_us=tuple(None if np.isnan(s) else float(s) for s in rounds.all(number)),
            tags=c.timed.tags,
        )


def _median_of(ready: Sequence[_Contestant], rounds: Rounds, name: str) -> float | None:
    for number, c in enumerate(ready):
        samples = rounds.counting(number)
        if c.name == name and np.isfinite(samples).any():
            return float(np.nanmedian(samples))
    return None


def _class_of(error: Exception) -> Status:
    """What kind of failure an exception is."""
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    if any(k.startswith(("torch._dynamo", "torch._inductor", "triton.")) for k in kinds):
        return "compile_error"
    if any(k.endswith("AcceleratorError") for k in kinds) or "CUDA error" in str(error):
        return "cuda_error"
    if isinstance(error, MemoryError) or "allocate memory" in str(error):  # as torch says on a CPU
        return "oom"
    return "wrong_result"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _device(device: torch.device | str) -> torch.device:
    found = torch.device(device)
    if found.type == "cuda":
        return torch.device(
            "cuda", torch.cuda.current_device() if found.index is None else found.index
        )
    if found.type != "cpu":
        raise InvalidInput("device", f"device must be cpu or a CUDA device, got {device}")
    return found


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[torch.device]:
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        yield device


@contextlib.contextmanager
def _same_arithmetic() -> Iterator[None]:
    """fp32 means fp32: by default cuDNN convolves it with 10 bits of mantissa, another result."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
