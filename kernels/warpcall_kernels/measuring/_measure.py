"""Measures one case: checks results, prepares, warms up, takes rounds."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from warpcall_kernels.execution.clock import clock
from warpcall_kernels.execution.context import (
    not_outside,
    on_device,
    outside,
    parse_device,
    same_arithmetic,
)
from warpcall_kernels.execution.executor import BufferSets, Executor
from warpcall_kernels.execution.implementations import KERNELS, LIMIT, Implementation, find_for
from warpcall_kernels.execution.inputs import Pool
from warpcall_kernels.execution.process import Deadlines
from warpcall_kernels.execution.remote import RemoteExecutor
from warpcall_kernels.execution.spec import JobCase
from warpcall_kernels.execution.timed import Row
from warpcall_kernels.measuring._blocks import BLOCK_US, Blocks, Dropped, Lease
from warpcall_kernels.measuring._candidates import PLAIN_TORCH, Candidate, ResultBuilder, failing
from warpcall_kernels.measuring._observe import Reading, observer
from warpcall_kernels.measuring._precision import Precision
from warpcall_kernels.measuring._preparation import check_results, prepare
from warpcall_kernels.measuring._result import CaseResult, Masked, Ratio, Readings
from warpcall_kernels.measuring._rounds import Rounds
from warpcall_kernels.measuring._statistics import margin_from
from warpcall_kernels.op.errors import InvalidInput

Progress = Callable[[dict[str, Any]], None]
OnPrinted = Callable[[str, str], None]

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
TIGHT_AFTER_S = 0.2  # of rounds, before the first block that our clock alone measures
FEWEST_TIGHT, MOST_TIGHT = 2, 8  # of these after the rounds; more than the fewest if these are slow
DEADLINES = Deadlines()


def measure(
    case: JobCase,
    implementations: Sequence[str],
    device: torch.device | str,
    precision: Precision,
    *,
    seed: int = 0,
    lease: Lease = contextlib.nullcontext,
    progress: Progress = lambda event: None,
    printed: OnPrinted = lambda name, text: None,
    deadlines: Deadlines = DEADLINES,
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
        printed: called at the end with each implementation that has printed something in a process
            of its own, and the text: until its first call returned, and the end if it failed.
        deadlines: of calls of uploaded code.

    Returns:
        The result. An error of an implementation is part of it.

    Raises:
        InvalidInput: there is no such implementation or device.
    """
    return measured(
        Measurement,
        *(case, implementations, device, precision, seed),
        *(lease, progress, printed, deadlines),
    )


def measured(
    kind: type[Measurement],
    case: JobCase,
    implementations: Sequence[str],
    device: torch.device | str,
    precision: Precision,
    seed: int,
    lease: Lease,
    progress: Progress,
    printed: OnPrinted,
    deadlines: Deadlines,
) -> CaseResult:
    """Measure a case; arguments and errors as for `measure`.

    Args:
        kind: how candidates are measured.
    """
    if not implementations or len(set(implementations)) != len(implementations):
        raise InvalidInput(
            "implementations",
            f"implementations must be different names, at least one, got {list(implementations)}",
        )
    found = {name: find_for(case, name) for name in implementations if name != LIMIT}
    on = parse_device(device)
    with on_device(on), same_arithmetic(), torch.no_grad():
        remotes = sum(one.process is not None for one in found.values())
        share = 0.9 / (1 + min(remotes, kind.most_at_once))
        measurement = kind(case, on, precision, seed, lease, progress, share)
        try:
            for name in implementations if LIMIT in implementations else (*implementations, LIMIT):
                measurement.add(name, found.get(name), deadlines)
            with not_outside():
                result = measurement.run(tuple(implementations))
            for c in measurement.candidates:
                if text := c.take_printed():
                    printed(c.name, text)
            return result
        finally:
            measurement.close()


class Measurement:
    """The measurement of one case, in which all candidates take part in each round.

    Attributes:
        most_at_once: candidates that have a process of their own at the same time.
    """

    most_at_once = 1 << 30

    def __init__(
        self,
        case: JobCase,
        device: torch.device,
        precision: Precision,
        seed: int,
        lease: Lease,
        progress: Progress,
        share: float,
    ) -> None:
        self.candidates: list[Candidate] = []
        self._begin = time.monotonic()
        self._case = case
        self._device = device
        self._precision = precision
        self._seed = seed
        self._progress = progress
        self._half_width: float | None = None  # at the last check for convergence
        self._reported_at = 0.0
        self._readings: list[tuple[int, Reading]] = []  # each with the last round before it
        self._read_at = 0.0
        self._nbytes = case.bytes_moved
        self._clock = clock(device)
        self._place = secrets.randbits(48), share
        self._pool = Pool.draw(case.inputs, seed, device)
        self._blocks = Blocks(case, self._pool, self._clock, lease)
        self._sets = BufferSets(self._pool.layouts, device)  # of implementations in this process

    def add(self, name: str, found: Implementation | None, deadlines: Deadlines) -> None:
        """Add an implementation, or the limit; an error becomes its result."""
        tags = () if found is None else found.tags
        if name == KERNELS and self._device.type == "cpu":
            tags += (PLAIN_TORCH,)
        candidate = Candidate(name, tags=tags)
        self.candidates.append(candidate)
        if found is not None:
            self._build(candidate, found, deadlines)

    def _build(self, candidate: Candidate, found: Implementation, deadlines: Deadlines) -> None:
        """Give a candidate its executor; an error becomes its result."""
        case, pool, metas = self._case, self._pool, self._case.outputs
        with failing(candidate):
            if found.process is None:
                function = found.build(case.op, case.params)
                candidate.executor = Executor(function, self._sets, metas, self._clock, pool)
            else:
                process, role = found.process
                candidate.process = process
                candidate.executor = RemoteExecutor(
                    process, role, case.params, pool, metas, self._clock, deadlines, *self._place
                )

    def close(self) -> None:
        """Let other processes wait, and give up memory."""
        for c in self.candidates:
            if c.remote is not None:
                c.remote.stop()
            if c.executor is not None:
                c.executor.close()

    def run(self, asked: Sequence[str]) -> CaseResult:
        """All steps in order. A candidate that fails in one step is left out of the next."""
        rounds = Rounds(0, self._precision)
        self._report("preparing")
        with self._failing_all():
            check_results(self._case, self.candidates, self._blocks, self._device, self._report)
            if self._precision.timed:
                self._nbytes = prepare(
                    self._case, self.candidates, self._blocks, self._clock, self._pool, self._report
                )
                # Now that all processes use the device, others are strangers.
                self._blocks.observer = observer(self._device)
                rounds = self._measured(asked)
        return self._result(asked, rounds)

    def _measured(self, asked: Sequence[str]) -> Rounds:
        """Warm up and take rounds, again if an implementation fails meanwhile."""
        rounds = Rounds(0, self._precision)
        while any(c.name in asked for c in self._timed_candidates()):
            self._blocks.columns = self._timed_candidates()
            rounds = Rounds(len(self._blocks.columns), self._precision, self._seed)
            self._readings.clear()
            try:
                self._warm_up()
                self._take_rounds(rounds)
                self._confirm(rounds)
                if self._precision.extras:
                    self._take_extras()
            except Dropped:
                rounds = Rounds(0, self._precision)
                continue
            break
        return rounds

    def _timed_candidates(self) -> list[Candidate]:
        return [c for c in self.candidates if c.is_timed]

    def _running(self) -> list[Candidate]:
        """Those that are timed, and can still be called."""
        return self._timed_candidates()

    def _builder(self, first: str, rounds: Rounds) -> ResultBuilder:
        """What makes results of the samples so far."""
        return ResultBuilder(
            self._columns(),
            rounds,
            self._device,
            self._clock,
            self._nbytes,
            first,
            rounds.a_a() if len(rounds) else None,
            timed=self._precision.timed,
        )

    def _columns(self) -> list[Candidate]:
        """The candidate of each column of the rounds."""
        return self._timed_candidates()

    def _confirm(self, rounds: Rounds) -> None:
        """Hold what other processes say of their times against our clock."""
        for number, c in enumerate(self._timed_candidates()):
            self._confirm_one(number, c, rounds)

    def _confirm_one(self, number: int, c: Candidate, rounds: Rounds) -> None:
        """Hold what the process of one candidate says of its times against our clock.

        Args:
            number: of its column in the rounds.

        Raises:
            Dropped: it failed.
        """
        if c.remote is None or (found := rounds.median(number)) is None:
            return
        for block in range(MOST_TIGHT if self._device.type == "cuda" else 0):
            if block >= FEWEST_TIGHT and not c.remote.doubt(found.value):
                break  # what others do takes time of a block, too, but not of each
            self._blocks.take_tight(c)
        with failing(c):
            c.doubt = c.remote.doubt(found.value)
            c.is_confirmed = c.remote.is_confirmed(found.value)
        if c.status != "ok":
            raise Dropped

    def _warm_up(self) -> None:
        """Run until the medians of three windows agree, or the time for the warm-up is over."""
        self._report("warmup")
        end, medians = self._blocks.now() + self._precision.warm_seconds, []
        while self._blocks.now() < end:
            numbers, begin = [*range(len(self._blocks.columns))], end - self._precision.warm_seconds
            medians.append(self._warm_window(numbers, begin))
            last = np.array(medians[-3:])
            if len(last) == 3 and bool(np.all(last.max(0) / last.min(0) - 1 <= WARM_AGREE)):
                return

    def _warm_window(self, numbers: Sequence[int], begin: float) -> list[float]:
        """Run the candidates of these columns for one window, and return the median of each.

        Args:
            begin: since when outputs have been compared.
        """
        window = Rounds(len(self._blocks.columns), self._precision, scheduled=numbers)
        window_end = self._blocks.now() + self._precision.warm_window_s
        while self._blocks.now() < window_end:
            for _ in self._blocks.take(window, window.plan(1), begin):
                pass
        return [float(np.median(window.all(number))) for number in numbers]

    def _take_rounds(self, rounds: Rounds) -> None:
        candidates = self._timed_candidates()
        begin = self._blocks.now()
        tight_at = begin + TIGHT_AFTER_S
        self._blocks.check_s = 0.0
        end = begin + self._precision.seconds * len(candidates)
        fitting = max(1, int(BLOCK_US / sum(self._clock.wall_us(c.ready) for c in candidates)))
        while (
            rounds.counted < self._precision.max_rounds
            and len(rounds.masked) < MAX_MASKED
            and (self._blocks.now() < end or len(rounds) <= FEWEST_ROUNDS)
        ):
            if not rounds.due():
                if self._enough(rounds):
                    return
                rounds.postpone_check()
            self._report_rounds(rounds)
            left = self._precision.max_rounds - rounds.counted
            count = min(fitting, ROUNDS_AT_ONCE, left, max(1, rounds.due()))
            if self._device.type == "cuda" and self._blocks.now() > tight_at:
                tight_at += 2 * (tight_at - begin)
                for c in candidates:
                    if c.remote is not None:
                        self._blocks.take_tight(c)
            for _ in self._blocks.take(rounds, rounds.plan(count), begin):
                self._read(len(rounds) - 1)
                if self._blocks.now() > end and len(rounds) > FEWEST_ROUNDS:
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

    def _read(self, number: int) -> None:
        """Read clock, power and temperature after a round, if it is time; no lease is held."""
        now = time.monotonic()
        last = self._readings[-1][0] if self._readings else -1
        if now < self._read_at + READ_EVERY_S or len(self._readings) >= MAX_READINGS:
            return
        if number == last:  # blocks of a long round end within it
            return
        self._read_at = now
        reading = self._blocks.observer.reading()
        if reading is not None:
            self._readings.append((number, reading))

    def _take_extras(self) -> None:
        """Measure the time of a call with inputs that may be in the cache, and its energy."""
        for c in self._running():
            self._report("extras", implementation=c.name)
            beside = Candidate(
                c.name
            )  # so that a failure here does not change the candidate's result
            with failing(beside):
                self._take_extra(c)
            self._blocks.stop_if_lost(beside)

    def _take_extra(self, c: Candidate) -> None:
        """Rows are as long as blocks may be. Only long ones tell the energy: its counter is slow."""
        rows: dict[float, Row] = {}  # by their time
        hot_us, used_mj, spent_us = [], [], 0.0
        while spent_us < EXTRA_US:
            row_us = BLOCK_US if self._blocks.block_us >= CALM_US else self._blocks.block_us
            if row_us not in rows:
                rows[row_us] = self._blocks.row_of(c, row_us)
            run = rows[row_us]
            with self._blocks.leased():
                before = self._blocks.observer.energy_mj() if row_us == BLOCK_US else None
                hot_us.append(run())
                after = self._blocks.observer.energy_mj() if row_us == BLOCK_US else None
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

    def _report(self, phase: str, **more: Any) -> None:
        with outside():
            self._progress({"phase": phase, **more})

    def _result(self, asked: Sequence[str], rounds: Rounds) -> CaseResult:
        a_a = rounds.a_a() if len(rounds) else None
        builder = self._builder(asked[0], rounds)
        results = {c.name: builder.result_of(c) for c in self.candidates}
        tags = self._blocks.observer.tags()
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
            device_lost=any(c.status == "cuda_error" and not c.remote for c in self.candidates),
            seconds=self._blocks.now() - self._begin,
            tags=tags,
            readings=Readings.of(self._readings),
            compile_s=sum(c.take_compile_s() for c in self.candidates),
            setup_s=sum(c.take_setup_s() for c in self.candidates),
        )
