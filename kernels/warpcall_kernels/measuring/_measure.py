"""One case, from its inputs to its result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from warpcall_kernels.measuring._check import Checker, draw
from warpcall_kernels.measuring._clock import LONG_FACTOR, clock
from warpcall_kernels.measuring._contestants import Contestant, Told, failing
from warpcall_kernels.measuring._context import (
    not_outside,
    on_device,
    outside,
    parse_device,
    same_arithmetic,
)
from warpcall_kernels.measuring._implementations import LIMIT, find
from warpcall_kernels.measuring._memory import Sets, copied, copy_source
from warpcall_kernels.measuring._observe import observer
from warpcall_kernels.measuring._precision import Precision
from warpcall_kernels.measuring._result import CaseResult, Masked, Ratio
from warpcall_kernels.measuring._rounds import Play, Rounds
from warpcall_kernels.measuring._spec import JobCase
from warpcall_kernels.measuring._statistics import margin_from
from warpcall_kernels.op.errors import InvalidInput

Lease = Callable[[], AbstractContextManager[None]]
Progress = Callable[[dict[str, Any]], None]

BLOCK_US = 200_000  # of timed work that is queued at a time: a lease is held for no longer
ROUNDS_AT_ONCE = 64
TELL_EVERY_S = 0.25
FEWEST_ROUNDS = 2  # whatever they take
WARM_AGREE = 0.01
UNSTABLE = 0.2  # of the rounds masked
EXTRA_BLOCKS = 5  # of calls in a row, for the hot time and the energy


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
            "implementations",
            f"implementations must be different names, at least one, got {list(implementations)}",
        )
    found = {name: find(case.op.name, name) for name in implementations if name != LIMIT}
    on = parse_device(device)
    with on_device(on), same_arithmetic(), torch.no_grad():
        measurement = _Measurement(case, on, precision, seed, lease, progress)
        for name in implementations if LIMIT in implementations else (*implementations, LIMIT):
            contestant = Contestant(name)
            measurement.contestants.append(contestant)
            if name != LIMIT:
                with failing(contestant):
                    contestant.function = found[name].build(case.op, case.params)
        with not_outside():
            return measurement.run(tuple(implementations))


class _Measurement:
    def __init__(
        self,
        case: JobCase,
        device: torch.device,
        precision: Precision,
        seed: int,
        lease: Lease,
        progress: Progress,
    ) -> None:
        self.contestants: list[Contestant] = []
        self._begin = time.monotonic()
        self._case = case
        self._device = device
        self._precision = precision
        self._seed = seed
        self._lease = lease
        self._progress = progress
        self._half_width: float | None = None  # when last looked at
        self._told_at = 0.0
        self._nbytes = case.op.bytes_moved(**case.metas, **case.params)
        self._clock = clock(device)
        self._observer = observer(device)

    def run(self, asked: Sequence[str]) -> CaseResult:
        """All steps; who fails at one of them takes no part in the next."""
        rounds = Rounds(0, self._precision)
        self._tell("preparing")
        with self._failing_all():
            self._check()
            self._prepare()
            if any(c.name in asked for c in self._in_play()):
                rounds = Rounds(len(self._in_play()), self._precision, self._seed)
                self._warm_up()
                self._take_rounds(rounds)
                if self._precision.extras:
                    self._take_extras()
        return self._result(asked, rounds)

    def _in_play(self) -> list[Contestant]:
        return [c for c in self.contestants if c.in_play]

    def _check(self) -> None:
        """Each implementation against the reference, with values that were never seen."""
        for check in Checker(self._case, self._device).draws():
            for c in self.contestants:
                if c.function is not None and c.status == "ok":
                    self._tell("correctness", implementation=c.name)
                    with failing(c):
                        c.peak_bytes = check(c.function)
                    self._stop_if_lost(c)
        self._free()

    def _prepare(self) -> None:
        """Get ready to time who is right; if one of them is short, all are timed as short ones."""
        first = draw(self._case.inputs, self._seed, self._device)
        self._nbytes = self._case.op.bytes_moved(**first, **self._case.params)
        shared = Sets(lambda: copied(first))
        for c in self.contestants:
            if c.status != "ok":
                continue
            self._tell("preparing", implementation=c.name)
            with failing(c):
                if c.function is None:
                    c.sets = Sets(lambda: {"x": copy_source(self._nbytes, self._device)})
                    c.timed = self._clock.ready(lambda inputs: inputs["x"].clone(), c.sets)
                else:
                    c.sets = shared
                    c.timed = self._clock.ready(_by_name(c.function), shared)
                with self._leased():
                    self._clock.estimate(c.timed)
            self._stop_if_lost(c)
        short_us = self._clock.short_us
        rough_us = [c.ready.rough_us for c in self._in_play() if c.name != LIMIT]
        if min(rough_us, default=0) >= short_us:
            return
        for c in self._in_play():
            if c.ready.rough_us <= LONG_FACTOR * short_us:
                with failing(c):
                    self._clock.shorten(c.ready, c.sets)
                    with self._leased():
                        self._clock.estimate(c.ready)
                self._stop_if_lost(c)

    def _warm_up(self) -> None:
        """Until three windows agree on every median, or it takes too long."""
        self._tell("warmup")
        playing = self._in_play()
        end, medians = time.monotonic() + self._precision.warm_seconds, []
        while time.monotonic() < end:
            window = Rounds(len(playing), self._precision)
            window_end = time.monotonic() + self._precision.warm_window_s
            while time.monotonic() < window_end:
                for block in self._blocks(window.plan(1)):
                    self._block(window, block)
            medians.append([float(np.median(window.all(i))) for i in range(len(playing))])
            last = np.array(medians[-3:])
            if len(last) == 3 and bool(np.all(last.max(0) / last.min(0) - 1 <= WARM_AGREE)):
                return

    def _take_rounds(self, rounds: Rounds) -> None:
        playing = self._in_play()
        end = time.monotonic() + self._precision.seconds * len(playing)
        fitting = max(1, int(BLOCK_US / sum(self._clock.wall_us(c.ready) for c in playing)))
        while rounds.counted < self._precision.max_rounds and (
            time.monotonic() < end or len(rounds) <= FEWEST_ROUNDS
        ):
            if not rounds.due():
                if self._enough(rounds):
                    return
                rounds.looked()
            self._tell_rounds(rounds)
            left = self._precision.max_rounds - rounds.counted
            count = min(fitting, ROUNDS_AT_ONCE, left, max(1, rounds.due()))
            for block in self._blocks(rounds.plan(count)):
                self._block(rounds, block)
                if time.monotonic() > end and len(rounds) > FEWEST_ROUNDS:
                    return

    def _tell_rounds(self, rounds: Rounds) -> None:
        now = time.monotonic()
        if now >= self._told_at + TELL_EVERY_S:
            self._told_at = now
            self._tell("rounds", rounds=rounds.counted, half_width=self._half_width)

    def _enough(self, rounds: Rounds) -> bool:
        look = rounds.look()
        self._half_width = look.half_width if np.isfinite(look.half_width) else None
        spent_us = (
            c.ready.repeats * np.nansum(rounds.all(i)) for i, c in enumerate(self._in_play())
        )
        return look.converged and float(min(spent_us)) >= 1e6 * self._precision.min_seconds

    def _blocks(self, plays: Sequence[Play]) -> Iterator[list[Play]]:
        """Cut plays into blocks that hold the device for no longer than allowed."""
        playing = self._in_play()
        block: list[Play] = []
        held_us = 0.0
        for play in plays:
            us = self._clock.wall_us(playing[play.contestant % len(playing)].ready)
            if block and held_us + us > BLOCK_US:
                yield block
                block, held_us = [], 0.0
            block.append(play)
            held_us += us
        yield block

    def _block(self, rounds: Rounds, plays: Sequence[Play]) -> None:
        playing = self._in_play()
        timed = [playing[play.contestant % len(playing)].ready for play in plays]  # twin: the first
        work = [(t, play.inputs % len(t.sets)) for t, play in zip(timed, plays, strict=True)]
        with self._leased():
            samples_us = self._clock.block(work)
        rounds.take(plays, samples_us, self._observer.look())

    def _take_extras(self) -> None:
        """What a call takes when its inputs may lie in the cache, and how much energy."""
        for c in self._in_play():
            self._tell("extras", implementation=c.name)
            beside = Contestant(c.name)  # a failure here takes nothing from what was measured
            with failing(beside):
                self._take_extra(c)
            self._stop_if_lost(beside)

    def _take_extra(self, c: Contestant) -> None:
        run, hot_us, used_mj = self._clock.in_a_row(c.ready, BLOCK_US), [], []
        for _ in range(EXTRA_BLOCKS):
            with self._leased():
                before = self._observer.energy_mj()
                hot_us.append(run())
                after = self._observer.energy_mj()
            if before is not None and after is not None:
                used_mj.append((after - before) / run.calls)
        c.hot_us = float(np.median(hot_us))
        c.energy_mj = float(np.mean(used_mj)) if used_mj else None

    @contextlib.contextmanager
    def _failing_all(self) -> Iterator[None]:
        """What fails beside an implementation, such as the reference, leaves all without a result."""
        everyone = Contestant("all")
        with failing(everyone):
            yield
        if everyone.status != "ok":
            for c in self.contestants:
                if c.status == "ok":
                    c.status, c.error, c.timed = everyone.status, everyone.error, None

    def _stop_if_lost(self, c: Contestant) -> None:
        """After an error that sticks this process can use the device no more."""
        if c.status == "cuda_error":
            raise RuntimeError(f"CUDA error: not measured, {c.name} broke the device")
        if c.status != "ok":
            self._free()

    def _free(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _tell(self, phase: str, **more: Any) -> None:
        with outside():
            self._progress({"phase": phase, **more})

    @contextlib.contextmanager
    def _leased(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            with outside():
                stack.enter_context(self._lease())
            yield
            with outside():
                stack.close()

    def _result(self, asked: Sequence[str], rounds: Rounds) -> CaseResult:
        a_a = rounds.a_a() if len(rounds) else None
        told = Told(self._in_play(), rounds, self._device, self._clock, self._nbytes, asked[0], a_a)
        results = {c.name: told.of(c) for c in self.contestants}
        tags = self._observer.tags()
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
            bytes_moved=self._nbytes,
            output_bytes=sum(m.nbytes for m in self._case.outputs.values()),
            implementations=tuple(results[name] for name in asked),
            limit=results[LIMIT],
            rounds=len(rounds),
            masked=tuple(Masked(n, reason) for n, reason in sorted(rounds.masked.items())),
            converged=len(rounds) > 0 and rounds.look().converged,
            margin=margin_from(a_a),
            a_a=None if a_a is None or not a_a.n else Ratio.of(a_a),
            device_lost=any(c.status == "cuda_error" for c in self.contestants),
            seconds=time.monotonic() - self._begin,
            tags=tags,
        )


def _by_name(function: Callable[..., Any]) -> Callable[[Mapping[str, Tensor]], Any]:
    return lambda inputs: function(**inputs)
