"""Blocks of timed calls: each holds the lease, and outputs of some of its calls are compared after it."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from warpcall_kernels.execution.check import Expected
from warpcall_kernels.execution.clock import LONG_US, TRIALS, Clock
from warpcall_kernels.execution.context import outside
from warpcall_kernels.execution.executor import Executor
from warpcall_kernels.execution.inputs import PLACES, Pool, Values
from warpcall_kernels.execution.outputs import Wrong
from warpcall_kernels.execution.remote import RemoteExecutor
from warpcall_kernels.execution.spec import JobCase
from warpcall_kernels.execution.timed import Row
from warpcall_kernels.measuring._candidates import Candidate, failing
from warpcall_kernels.measuring._observe import Observer
from warpcall_kernels.measuring._rounds import Rounds, ScheduledSample

Lease = Callable[[], AbstractContextManager[float | None]]

BLOCK_US = 200_000  # of timed work queued at a time, unless the lease allows less
CHECK_SHARE = 0.25  # of the time of rounds, for comparing outputs of timed calls
CHECK_S = 0.02  # for those of one implementation after one block
ANSWERS = 7  # to requests for nothing, whose median an answer takes
QUIET = 1.3  # times as long as alone may work of ours take while uploads stand still
QUIET_EVERY = 8  # blocks, on average, between two checks of that
PAUSE_S = 1.0  # calls let a block wait for less, so another job ran if it waited for longer
FEWEST_CHECKS = 4  # compared outputs of each implementation, however long that takes


class Dropped(Exception):
    """An implementation failed during the rounds, which begin anew without it."""


class Blocks:
    """Takes blocks of timed calls of one case.

    Args:
        pool: of the values of the inputs.
        lease: as for `measure`.

    Attributes:
        columns: the candidates that have a column in the rounds.
        observer: of the device.
        block_us: timed work that the last lease allowed.
        check_s: seconds that outputs of timed calls have been compared for.
    """

    def __init__(self, case: JobCase, pool: Pool, clock: Clock, lease: Lease) -> None:
        self._case = case
        self._pool = pool
        self._clock = clock
        self._device = clock.device
        self._lease = lease
        self._random = random.SystemRandom()
        self.columns: list[Candidate] = []
        self.observer = Observer()
        self.block_us: float = BLOCK_US
        self.check_s = 0.0
        self._paused_s = 0.0
        self._quiet_us = clock.flush_us()  # of work of our own, while nothing else runs

    @contextlib.contextmanager
    def leased(self) -> Iterator[float]:
        """Hold the lease; yields the microseconds of timed work that a block may have."""
        with contextlib.ExitStack() as stack:
            asked = time.monotonic()
            with outside():
                block_s = stack.enter_context(self._lease())
            if (waited_s := time.monotonic() - asked) > PAUSE_S:
                self._paused_s += waited_s
            self.block_us = BLOCK_US if block_s is None else min(BLOCK_US, block_s * 1e6)
            yield self.block_us
            with outside():
                stack.close()

    def now(self) -> float:
        """Seconds by a clock that stands still while the measurement waits for another job."""
        return time.monotonic() - self._paused_s

    def estimate(self, c: Candidate) -> None:
        """Measure the rough time of a call, each sample in a block of its own."""
        found: list[float] = []
        for _ in range(TRIALS if c.ready.rough_us < LONG_US else 1):
            with self.leased():
                found += self._samples_us([(c, 0, self._new_place())])
        c.ready.rough_us = float(np.median(found))

    def take(
        self, rounds: Rounds, samples: Sequence[ScheduledSample], begin: float
    ) -> Iterator[None]:
        """Take scheduled samples in blocks, each as long as its lease allows; yield after each."""
        while samples:
            with self.leased() as block_us:
                count = self._fitting(samples, block_us)
                block, samples = samples[:count], samples[count:]
                samples_us = self._take_block(block)
                if self._random.random() < 1 / QUIET_EVERY:
                    self._check_quiet()
            self._check_block([*{id(c): c for c in map(self._candidate_of, block)}.values()], begin)
            rounds.take(block, samples_us, self.observer.disturbance())
            yield

    def _check_quiet(self) -> None:
        """Check that no upload uses a GPU while its calls are over, which would slow the others.

        All processes of uploads stand still between their blocks, but a kernel may run on. Then it
        shares the device with work of ours, which takes longer. Nothing tells whose kernel it is.

        Raises:
            Dropped: it does. All uploads of this measurement have failed then.
        """
        remotes = [
            c for c in self.columns if c.remote is not None and c.status == "ok" and not c.has_left
        ]
        if self._device.type != "cuda" or not remotes:
            return
        if min(self._clock.flush_us() for _ in range(TRIALS)) <= QUIET * self._quiet_us:
            return
        for c in remotes:
            assert c.remote is not None
            c.remote.end()
            c.status = "invalid"
            c.error = "work of this upload, or of another one in the job, ran on beside other calls"
        raise Dropped

    def take_tight(self, c: Candidate) -> None:
        """Let another process make calls while our clock runs, and compare their outputs.

        Raises:
            Dropped: it failed.
        """
        assert c.remote is not None
        with failing(c):
            for _ in range(ANSWERS):  # each with other values, from which it could compute
                self._write_new(c.remote)
                with self.leased():
                    c.remote.time_answer()
            written = self._write_new(c.remote)
            with self.leased():
                results = c.remote.take_tight()
            self._check_timed(c, [(written[which], outputs) for which, outputs in results])
        if c.status != "ok":
            raise Dropped

    def _write_new(self, remote: RemoteExecutor) -> list[Values]:
        """Write new values into all sets of inputs of another process, while it stands still."""
        remote.stop()
        written = [self._pool.at(self._new_place()) for _ in range(remote.sets)]
        for which, values in enumerate(written):
            remote.write(which, values)
        return written

    def row_of(self, c: Candidate, most_us: float) -> Row:
        if c.remote is not None:
            return Row(c.remote.run_row, c.remote.prepare_row(most_us))
        assert c.here is not None
        return self._clock.in_a_row(c.here, most_us)

    def stop_if_lost(self, c: Candidate) -> None:
        """Raise if an error has made the device unusable for this process; else free its memory."""
        if c.status == "cuda_error" and c.remote is None:
            raise RuntimeError(f"CUDA error: not measured, {c.name} broke the device")
        if c.status != "ok":
            self.free()

    def free(self) -> None:
        """Give cached memory back."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _samples_us(self, work: Sequence[tuple[Candidate, int, int]]) -> list[float]:
        """Take samples of one process in order, each with a set of inputs and a place in the pool."""
        remote, places = work[0][0].remote, [place for _, _, place in work]
        if remote is not None:
            return remote.take([which for _, which, _ in work], places)
        timed = [(c.here, which) for c, which, _ in work]
        for t, _ in timed:
            if t is not None:
                t.kept.clear()  # so that only outputs of this block are compared
        try:
            block = [(t, which % len(t.sets)) for t, which in timed if t is not None]
            return self._clock.block(block, places)
        except BaseException as error:
            for c, _, _ in work:
                if isinstance(c.executor, Executor) and c.executor.raised is error:
                    with failing(c):
                        raise
                    return [float("nan")] * len(work)
            raise

    def _take_block(self, block: Sequence[ScheduledSample]) -> list[float]:
        """Take the samples of a block. Those of one process follow each other.

        On a GPU a change of the process costs a tenth of a millisecond, so that it takes all its
        samples of the block at once. On a CPU the order is the one that was drawn.
        """
        batches: list[tuple[object, list[int]]] = []
        for place, sample in enumerate(block):
            process = self._candidate_of(sample).remote
            known = batches[-1:] if self._device.type == "cpu" else batches
            places = next((found for key, found in known if key is process), None)
            if places is None:
                batches.append((process, places := []))
            places.append(place)
        samples_us = [float("nan")] * len(block)
        for _, places in batches:
            work = [
                (self._candidate_of(block[i]), block[i].inputs, self._new_place()) for i in places
            ]
            c = work[0][0]
            if c.status != "ok":  # it failed in this block
                continue
            with failing(c) if c.remote is not None else contextlib.nullcontext():
                for i, time_us in zip(places, self._samples_us(work), strict=True):
                    samples_us[i] = time_us
            if c.remote is not None:
                c.remote.stop()
        return samples_us

    def _fitting(self, samples: Sequence[ScheduledSample], block_us: float) -> int:
        """How many of the next samples take at most `block_us` together, and at least one."""
        held_us = 0.0
        for count, sample in enumerate(samples):
            held_us += self._clock.wall_us(self._candidate_of(sample).ready)
            if count and held_us > block_us:
                return count
        return len(samples)

    def _check_block(self, took_part: Sequence[Candidate], begin: float) -> None:
        """Compare outputs of timed calls of a block, as many as the time allows.

        Raises:
            Dropped: one of them is wrong, or an implementation has failed in the block.
        """
        for c in self._random.sample(took_part, len(took_part)):
            spent_s = self.now() - begin
            if c.executor is None or c.status != "ok":
                continue
            if c.checked >= FEWEST_CHECKS and self.check_s > CHECK_SHARE * spent_s:
                continue
            with failing(c):
                results = c.executor.results()
                if c.remote is not None:
                    c.remote.stop()
                self._check_timed(c, [(self._pool.at(place), out) for place, out in results])
            self.stop_if_lost(c)
        for c in took_part:
            if c.status != "ok":
                raise Dropped

    def _check_timed(self, c: Candidate, results: Sequence[tuple[Values, Any]]) -> None:
        """Compare outputs of timed calls in random order, as many as the time allows."""
        begin = time.monotonic()
        for values, outputs in self._random.sample(results, len(results)):
            Expected(self._case, values, self._device).check(outputs, "a timed call")
            c.checked += 1
            if c.checked >= FEWEST_CHECKS and time.monotonic() > begin + CHECK_S:
                break
        check_inputs(c)
        self.check_s += time.monotonic() - begin

    def _new_place(self) -> int:
        """A place in the pool that nobody can know."""
        return self._random.randrange(PLACES)

    def _candidate_of(self, sample: ScheduledSample) -> Candidate:
        return self.columns[sample.candidate % len(self.columns)]  # twin: the first


def check_inputs(c: Candidate) -> None:
    """Raise Wrong if a call has changed its inputs, or the memory next to them."""
    assert c.executor is not None
    if (name := c.executor.changed()) is not None:
        raise Wrong(f"the call wrote to {name}, or next to it")
