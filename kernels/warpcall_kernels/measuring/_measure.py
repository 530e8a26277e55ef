"""Measures one case: checks results, prepares, warms up, takes rounds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from warpcall_kernels.measuring._candidates import Candidate, ResultBuilder, failing
from warpcall_kernels.measuring._check import Checker, draw
from warpcall_kernels.measuring._clock import LONG_FACTOR, LONG_US, TRIALS, Row, Timed, clock
from warpcall_kernels.measuring._context import (
    not_outside,
    on_device,
    outside,
    parse_device,
    same_arithmetic,
)
from warpcall_kernels.measuring._implementations import LIMIT, find
from warpcall_kernels.measuring._memory import Sets, copied, copy_source
from warpcall_kernels.measuring._observe import Reading, observer
from warpcall_kernels.measuring._precision import Precision
from warpcall_kernels.measuring._result import CaseResult, Masked, Ratio, Readings
from warpcall_kernels.measuring._rounds import Rounds, ScheduledSample
from warpcall_kernels.measuring._spec import JobCase
from warpcall_kernels.measuring._statistics import margin_from
from warpcall_kernels.op.errors import InvalidInput

Lease = Callable[[], AbstractContextManager[float | None]]
Progress = Callable[[dict[str, Any]], None]

BLOCK_US = 200_000  # of timed work queued at a time, unless the lease allows less
ROUNDS_AT_ONCE = 64
REPORT_EVERY_S = 0.25
MAX_MASKED = 2000  # rounds after which a measurement ends, whatever masks them
FEWEST_ROUNDS = 2  # however long they take
WARM_AGREE = 0.01
UNSTABLE = 0.2  # share of masked rounds that makes a result unstable
READ_EVERY_S = 0.3  # clock, power and temperature; some ms, and never in a timed block
MAX_READINGS = 2000
CALM_US = 20_000  # a lease that allows so much says that nobody waits for the device
EXTRA_US = 1_000_000  # of consecutive calls, for the hot time and the energy


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
    """Measure implementations of a case side by side. Those with wrong results are not timed.

    Args:
        case: the op, its inputs and parameters.
        implementations: different names. The first is the one that the others are compared with.
        device: "cpu", or a GPU of this process.
        precision: one of `PRECISIONS`.
        seed: of the inputs that are timed. The inputs of checks have random seeds.
        lease: entered for each timed block. It says how many seconds of timed work the block may
            have; None means BLOCK_US. A block has at least one sample, however long that takes.
        progress: called with an event, as JSON, when a step begins and during rounds.

    Returns:
        The result. An error of an implementation is part of it.

    Raises:
        InvalidInput: there is no such implementation or device.
    """
    if not implementations or len(set(implementations)) != len(implementations):
        raise InvalidInput(
            "implementations",
            f"implementations must be different names, at least one, got {list(implementations)}",
        )
    found = {name: find(case.op, name) for name in implementations if name != LIMIT}
    on = parse_device(device)
    with on_device(on), same_arithmetic(), torch.no_grad():
        measurement = _Measurement(case, on, precision, seed, lease, progress)
        for name in implementations if LIMIT in implementations else (*implementations, LIMIT):
            candidate = Candidate(name, tags=() if name == LIMIT else found[name].tags)
            measurement.candidates.append(candidate)
            if name != LIMIT:
                with failing(candidate):
                    candidate.function = found[name].build(case.op, case.params)
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
        self.candidates: list[Candidate] = []
        self._begin = time.monotonic()
        self._case = case
        self._device = device
        self._precision = precision
        self._seed = seed
        self._lease = lease
        self._progress = progress
        self._block_us: float = BLOCK_US  # allowed by the last lease
        self._half_width: float | None = None  # at the last check for convergence
        self._reported_at = 0.0
        self._readings: list[tuple[int, Reading]] = []  # each with the last round before it
        self._read_at = 0.0
        self._nbytes = case.bytes_moved
        self._clock = clock(device)
        self._observer = observer(device)

    def run(self, asked: Sequence[str]) -> CaseResult:
        """All steps in order. A candidate that fails in one step is left out of the next."""
        rounds = Rounds(0, self._precision)
        self._report("preparing")
        with self._failing_all():
            self._check()
            self._prepare()
            if any(c.name in asked for c in self._timed_candidates()):
                rounds = Rounds(len(self._timed_candidates()), self._precision, self._seed)
                self._warm_up()
                self._take_rounds(rounds)
                if self._precision.extras:
                    self._take_extras()
        return self._result(asked, rounds)

    def _timed_candidates(self) -> list[Candidate]:
        return [c for c in self.candidates if c.is_timed]

    def _check(self) -> None:
        """Check each implementation against the reference, with random inputs."""
        for check in Checker(self._case, self._device).draws():
            for c in self.candidates:
                if c.function is not None and c.status == "ok":
                    self._report("correctness", implementation=c.name)
                    with failing(c):
                        c.peak_bytes = check(c.function)
                    self._stop_if_lost(c)
            self._report("correctness")  # the next draw and its reference belong to no candidate
        self._free()

    def _prepare(self) -> None:
        """Prepare the timing of candidates. If one of them is short, all are timed as short ones."""
        first = draw(self._case.inputs, self._seed, self._device)
        self._nbytes = self._case.op.bytes_moved(**first, **self._case.params)
        nbytes, device = self._nbytes, self._device  # a reference to self would keep all in memory
        shared = Sets(lambda: copied(first))
        for c in self.candidates:
            if c.status != "ok":
                continue
            self._report("preparing", implementation=c.name)
            with failing(c):
                if c.function is None:
                    c.sets = Sets(lambda: {"x": copy_source(nbytes, device)})
                    c.timed = self._clock.ready(lambda inputs: inputs["x"].clone(), c.sets)
                else:
                    c.sets = shared
                    c.timed = self._clock.ready(_by_name(c.function), shared)
                self._estimate(c.timed)
            self._stop_if_lost(c)
        short_us = self._clock.short_us
        rough_us = [c.ready.rough_us for c in self._timed_candidates() if c.name != LIMIT]
        if min(rough_us, default=0) >= short_us:
            return
        for c in self._timed_candidates():
            if c.ready.rough_us <= LONG_FACTOR * short_us:
                with failing(c):
                    self._clock.shorten(c.ready, c.sets)
                    self._estimate(c.ready)
                self._stop_if_lost(c)

    def _estimate(self, timed: Timed) -> None:
        """Measure the rough time of a call, each sample in a block of its own."""
        found = []
        for _ in range(TRIALS if timed.rough_us < LONG_US else 1):
            with self._leased():
                found += self._clock.block([(timed, 0)])
        timed.rough_us = float(np.median(found))

    def _warm_up(self) -> None:
        """Run until the medians of three windows agree, or the time for the warm-up is over."""
        self._report("warmup")
        candidates = self._timed_candidates()
        end, medians = time.monotonic() + self._precision.warm_seconds, []
        while time.monotonic() < end:
            window = Rounds(len(candidates), self._precision)
            window_end = time.monotonic() + self._precision.warm_window_s
            while time.monotonic() < window_end:
                for _ in self._take(window, window.plan(1)):
                    pass
            medians.append([float(np.median(window.all(i))) for i in range(len(candidates))])
            last = np.array(medians[-3:])
            if len(last) == 3 and bool(np.all(last.max(0) / last.min(0) - 1 <= WARM_AGREE)):
                return

    def _take_rounds(self, rounds: Rounds) -> None:
        candidates = self._timed_candidates()
        end = time.monotonic() + self._precision.seconds * len(candidates)
        fitting = max(1, int(BLOCK_US / sum(self._clock.wall_us(c.ready) for c in candidates)))
        while (
            rounds.counted < self._precision.max_rounds
            and len(rounds.masked) < MAX_MASKED
            and (time.monotonic() < end or len(rounds) <= FEWEST_ROUNDS)
        ):
            if not rounds.due():
                if self._enough(rounds):
                    return
                rounds.postpone_check()
            self._report_rounds(rounds)
            left = self._precision.max_rounds - rounds.counted
            count = min(fitting, ROUNDS_AT_ONCE, left, max(1, rounds.due()))
            for _ in self._take(rounds, rounds.plan(count)):
                self._read(len(rounds) - 1)
                if time.monotonic() > end and len(rounds) > FEWEST_ROUNDS:
                    return

    def _report_rounds(self, rounds: Rounds) -> None:
        now = time.monotonic()
        if now >= self._reported_at + REPORT_EVERY_S:
            self._reported_at = now
            self._report(
                "rounds",
                rounds=rounds.counted,
                half_width=self._half_width,
                medians_us=self._medians_us(rounds),
            )

    def _medians_us(self, rounds: Rounds) -> dict[str, float]:
        """The medians so far, for readers who watch; empty while a candidate has no sample."""
        taken = {c.name: rounds.counting(i) for i, c in enumerate(self._timed_candidates())}
        finite = {name: samples[np.isfinite(samples)] for name, samples in taken.items()}
        if not all(map(len, finite.values())):
            return {}
        return {name: float(np.median(samples)) for name, samples in finite.items()}

    def _enough(self, rounds: Rounds) -> bool:
        convergence = rounds.convergence()
        self._half_width = convergence.half_width if np.isfinite(convergence.half_width) else None
        spent_us = (
            c.ready.repeats * np.nansum(rounds.all(i))
            for i, c in enumerate(self._timed_candidates())
        )
        return convergence.converged and float(min(spent_us)) >= 1e6 * self._precision.min_seconds

    def _take(self, rounds: Rounds, samples: Sequence[ScheduledSample]) -> Iterator[None]:
        """Take scheduled samples in blocks, each as long as its lease allows; yield after each."""
        while samples:
            with self._leased() as block_us:
                count = self._fitting(samples, block_us)
                block, samples = samples[:count], samples[count:]
                timed = [self._timed_of(sample) for sample in block]
                samples_us = self._clock.block(
                    [(t, s.inputs % len(t.sets)) for t, s in zip(timed, block, strict=True)]
                )
            rounds.take(block, samples_us, self._observer.disturbance())
            yield

    def _fitting(self, samples: Sequence[ScheduledSample], block_us: float) -> int:
        """How many of the next samples take at most `block_us` together, and at least one."""
        held_us = 0.0
        for count, sample in enumerate(samples):
            held_us += self._clock.wall_us(self._timed_of(sample))
            if count and held_us > block_us:
                return count
        return len(samples)

    def _timed_of(self, sample: ScheduledSample) -> Timed:
        candidates = self._timed_candidates()
        return candidates[sample.candidate % len(candidates)].ready  # twin: the first

    def _read(self, number: int) -> None:
        """Read clock, power and temperature after a round, if it is time; no lease is held."""
        now = time.monotonic()
        last = self._readings[-1][0] if self._readings else -1
        if now < self._read_at + READ_EVERY_S or len(self._readings) >= MAX_READINGS:
            return
        if number == last:  # blocks of a long round end within it
            return
        self._read_at = now
        reading = self._observer.reading()
        if reading is not None:
            self._readings.append((number, reading))

    def _take_extras(self) -> None:
        """Measure the time of a call with inputs that may be in the cache, and its energy."""
        for c in self._timed_candidates():
            self._report("extras", implementation=c.name)
            beside = Candidate(
                c.name
            )  # so that a failure here does not change the candidate's result
            with failing(beside):
                self._take_extra(c)
            self._stop_if_lost(beside)

    def _take_extra(self, c: Candidate) -> None:
        """Rows are as long as blocks may be. Only long ones tell the energy: its counter is slow."""
        rows: dict[float, Row] = {}  # by their time
        hot_us, used_mj, spent_us = [], [], 0.0
        while spent_us < EXTRA_US:
            row_us = BLOCK_US if self._block_us >= CALM_US else self._block_us
            if row_us not in rows:
                rows[row_us] = self._clock.in_a_row(c.ready, row_us)
            run = rows[row_us]
            with self._leased():
                before = self._observer.energy_mj() if row_us == BLOCK_US else None
                hot_us.append(run())
                after = self._observer.energy_mj() if row_us == BLOCK_US else None
            spent_us += max(row_us, hot_us[-1] * run.calls)
            if before is not None and after is not None:
                used_mj.append((after - before) / run.calls)
        c.hot_us = float(np.median(hot_us))
        c.energy_mj = float(np.mean(used_mj)) if used_mj else None

    @contextlib.contextmanager
    def _failing_all(self) -> Iterator[None]:
        """An error outside of implementations, such as in the reference, fails all candidates."""
        everyone = Candidate("all")
        with failing(everyone):
            yield
        if everyone.status != "ok":
            for c in self.candidates:
                if c.status == "ok":
                    c.status, c.error, c.timed = everyone.status, everyone.error, None
                    # One that broke the device did not raise in the others.
                    c.traceback = None if c.status == "cuda_error" else everyone.traceback

    def _stop_if_lost(self, c: Candidate) -> None:
        """Raise if an error has made the device unusable for this process; else free its memory."""
        if c.status == "cuda_error":
            raise RuntimeError(f"CUDA error: not measured, {c.name} broke the device")
        if c.status != "ok":
            self._free()

    def _free(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _report(self, phase: str, **more: Any) -> None:
        with outside():
            self._progress({"phase": phase, **more})

    @contextlib.contextmanager
    def _leased(self) -> Iterator[float]:
        """Hold the lease; yields the microseconds of timed work that a block may have."""
        with contextlib.ExitStack() as stack:
            with outside():
                block_s = stack.enter_context(self._lease())
            self._block_us = BLOCK_US if block_s is None else min(BLOCK_US, block_s * 1e6)
            yield self._block_us
            with outside():
                stack.close()

    def _result(self, asked: Sequence[str], rounds: Rounds) -> CaseResult:
        a_a = rounds.a_a() if len(rounds) else None
        builder = ResultBuilder(
            self._timed_candidates(), rounds, self._device, self._clock, self._nbytes, asked[0], a_a
        )
        results = {c.name: builder.result_of(c) for c in self.candidates}
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
            converged=len(rounds) > 0 and rounds.convergence().converged,
            margin=margin_from(a_a),
            a_a=None if a_a is None or not a_a.n else Ratio.of(a_a),
            device_lost=any(c.status == "cuda_error" for c in self.candidates),
            seconds=time.monotonic() - self._begin,
            tags=tags,
            readings=Readings.of(self._readings),
        )


def _by_name(function: Callable[..., Any]) -> Callable[[Mapping[str, Tensor]], Any]:
    return lambda inputs: function(**inputs)
