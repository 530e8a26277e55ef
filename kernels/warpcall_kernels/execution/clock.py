"""Clocks: device times by CUDA events on a GPU, and by perf_counter on a CPU.

One sample is: overwrite the last-level cache, record an event, call, record an event. Before it, a
wait on the device lets the CPU queue all of this, so that no gap between launches is timed. A pair of
events without a call reads about 6 us on an H200. Short calls are therefore captured in one CUDA
graph, many calls with rotated inputs that together exceed the cache, and the time of a replay is
divided by their number.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from warpcall_kernels.execution.inputs import Sets
from warpcall_kernels.execution.spec import SETS_BYTES
from warpcall_kernels.execution.timed import (
    Call,
    HowTimed,
    Inputs,
    Row,
    Tight,
    Timed,
    run_calls,
)
from warpcall_kernels.op.launch import end_failed_capture

LONG_FACTOR = 10  # calls this many times as long as a short one are not captured with it
FLUSH_FACTOR = 2  # bytes written before a sample, as a multiple of the cache
ROTATE_FACTOR = 3  # bytes of the rotated inputs, as a multiple of the cache
MAX_ROTATED = 64  # calls in one sample
SWAPPED = 2  # sets of inputs for calls that are not short, at least
# On a GPU there are more. The same call took up to 1.2 % longer in another process of an H200, where
# its tensors had other addresses; with many addresses such differences average out.
MOST_SETS = 16  # at most SETS_BYTES together, if there are more than SWAPPED
WAIT_US = 100  # of waiting on the device, in which the CPU queues the sample
CYCLES_PER_US = 2000  # of the device; an upper bound
FILL_US = 30  # in which the CPU queues the copy of new values into one input
TRIALS = 5
MOST_QUEUED = 1000  # calls, or graphs
LONG_US = 20_000  # for longer calls, the first one is not noticeably slower
ROW_CALLS = 20  # calls captured in one graph, for consecutive calls
MAX_CPU_CACHE = 32 << 20  # assumed size of a CPU's last-level cache, if it is larger or unknown
KEPT = 4  # calls of a block whose outputs are kept until they are compared


class Clock:
    """Base class of the clocks; see `CudaClock` and `CpuClock`."""

    name: str
    cache_bytes: int
    device: torch.device
    overhead_us: float  # of a sample, without its calls
    short_us: float  # calls below this time are timed many at once

    def __init__(self) -> None:
        size = FLUSH_FACTOR * self.cache_bytes
        self._flush = torch.empty(size, dtype=torch.uint8, device=self.device)

    def ready(self, call: Call, sets: Sets) -> Timed:
        """Run a call some times, so that it is compiled and `estimate` can follow."""
        inputs = sets.first(self._set_count(sets.first(1)[0]))
        queued_us: list[float] = []
        took_us: list[float] = []
        while len(took_us) < TRIALS and sum(took_us) < TRIALS * LONG_US:
            begin = time.perf_counter_ns()
            call(inputs[0])
            queued_us.append((time.perf_counter_ns() - begin) / 1000)
            self.synchronize()
            took_us.append((time.perf_counter_ns() - begin) / 1000)
        host_us = statistics.median(queued_us)
        return Timed(call, inputs, self._plain_method, statistics.median(took_us), host_us)

    def estimate(self, timed: Timed) -> None:
        """Measure the rough time of a call."""
        times = TRIALS if timed.rough_us < LONG_US else 1
        timed.rough_us = statistics.median(self.block([(timed, 0)] * times))

    def median_us(self, call: Call, make: Callable[[], Inputs], rounds: int) -> float:
        """The median time in us of one call measured alone. `make` makes a set of inputs."""
        sets = Sets(make)
        timed = self.ready(call, sets)
        self.estimate(timed)
        if timed.rough_us < self.short_us:
            self.shorten(timed, sets)
        return statistics.median(
            self.block([(timed, i % len(timed.sets))])[0] for i in range(rounds)
        )

    def shorten(self, timed: Timed, sets: Sets) -> None:
        """Use many calls in each sample, because the case is short."""
        timed.repeats = self.calls_of_sample(timed.nbytes)
        if timed.repeats * timed.nbytes < ROTATE_FACTOR * self.cache_bytes:
            timed.tags += ("cache warm",)  # so small that they do not fill it
        timed.sets = sets.first(timed.repeats)
        self._join(timed)

    def calls_of_sample(self, nbytes: int) -> int:
        """The number of short calls in one sample, whose inputs have so many bytes each."""
        wanted = -(-ROTATE_FACTOR * self.cache_bytes // max(1, nbytes))
        return min(MAX_ROTATED, max(8, wanted))

    def wall_us(self, timed: HowTimed) -> float:
        """Wall time of one sample in us."""
        return self.overhead_us + max(timed.rough_us, timed.host_us) * timed.repeats

    def block(self, work: Sequence[tuple[Timed, int]], places: Sequence[int] = ()) -> list[float]:
        """Take samples in order, and return the time of a call in us for each.

        Args:
            work: what to call, and the number of the set of inputs for each sample.
            places: of the values in the pool, for each sample; none if inputs keep their values.
        """
        raise NotImplementedError

    def in_a_row(self, timed: Timed, most_us: float) -> Row:
        """Consecutive calls with the same inputs, for at most `most_us`."""
        raise NotImplementedError

    def tightly(self, timed: Timed, calls: int) -> Tight:
        """So many calls without pauses, whose time another process can measure."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""

    @property
    def _plain_method(self) -> str:
        raise NotImplementedError

    def _set_count(self, inputs: Inputs) -> int:
        """The number of sets of inputs for calls that are not short; even."""
        return SWAPPED

    def _join(self, timed: Timed) -> None:
        raise NotImplementedError

    def flush_us(self) -> float:
        """The time in us in which a GPU's cache is overwritten; 0 on a CPU."""
        return 0.0

    def flush(self) -> None:
        """Overwrite the cache."""
        self._flush.zero_()

    def sample_us(self, timed: Timed, which: int, place: int | None) -> float:
        """Take one sample on a CPU, with inputs and cache as they are."""
        raise NotImplementedError


class CudaClock(Clock):
    """Device times by CUDA events on the current stream of a GPU, which must be the current device."""

    name = "cuda events"
    short_us = 50  # below it, the events themselves are more than a tenth of the reading
    _plain_method = "events"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        properties = torch.cuda.get_device_properties(device)
        self.cache_bytes = properties.L2_cache_size
        self.overhead_us = WAIT_US + 50 + FLUSH_FACTOR * self.cache_bytes / 3e6  # at 3 TB/s
        super().__init__()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def _set_count(self, inputs: Inputs) -> int:
        nbytes = max(1, sum(t.numel() * t.element_size() for t in inputs.values()))
        return min(MOST_SETS, max(SWAPPED, SETS_BYTES // nbytes // SWAPPED * SWAPPED))

    def block(self, work: Sequence[tuple[Timed, int]], places: Sequence[int] = ()) -> list[float]:
        for timed in {id(timed): timed for timed, _ in work}.values() if places else ():
            timed.place = places[0]
            if timed.replay is not None:
                timed.fill_sets(0, timed.place)
        first, which = work[0]
        if first.rough_us < LONG_US:
            self._run_sample(first, which)  # not timed, since the first call after a pause is slow
        pairs = []
        for i, (timed, which) in enumerate(work):
            begin, end = _event(), _event()
            place = places[i] if places else None
            if timed.replay is not None and place is not None:
                timed.fill_sets(0, timed.place)  # what others have written meanwhile
            torch.cuda._sleep(self._wait_cycles(timed))  # type: ignore[no-untyped-call]  # torch's gap
            if timed.replay is None:
                if place is not None:  # a call that does not wait for this reads other values
                    timed.fill_sets(which, place)
                self._flush.zero_()
            begin.record()
            self._run_sample(timed, which, place)
            end.record()
            pairs.append((begin, end))
        self.synchronize()
        return [
            1000 * begin.elapsed_time(end) / timed.repeats
            for (begin, end), (timed, _) in zip(pairs, work, strict=True)
        ]

    def in_a_row(self, timed: Timed, most_us: float) -> Row:
        calls, replays, inputs = 1, max(1, int(most_us / max(timed.rough_us, 1))), timed.sets[0]
        once: Callable[[], Any] = lambda: timed.call(inputs)
        if timed.replay is not None:
            calls, replays = ROW_CALLS, max(1, replays // ROW_CALLS)
            graph = torch.cuda.CUDAGraph()
            with _capturing(graph):
                for _ in range(calls):
                    timed.call(inputs)
            once = graph.replay
        replays = min(replays, MOST_QUEUED)

        def run() -> float:
            begin, end = _event(), _event()
            once()
            torch.cuda._sleep(CYCLES_PER_US * WAIT_US)  # type: ignore[no-untyped-call]  # torch's gap
            begin.record()
            for _ in range(replays):
                once()
            end.record()
            self.synchronize()
            return float(1000 * begin.elapsed_time(end) / (replays * calls))

        return Row(run, replays * calls)

    def tightly(self, timed: Timed, calls: int) -> Tight:
        kept: list[tuple[int, Any]] = []

        def make() -> None:
            for i in range(calls):
                kept.append((i % len(timed.sets), timed.call(timed.sets[i % len(timed.sets)])))

        graph = torch.cuda.CUDAGraph()
        stays = True
        try:
            with _capturing(graph):
                make()
            once: Callable[[], None] = graph.replay
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # as in `_join`
            self.synchronize()
            timed.tags, stays = (*timed.tags, "not captured"), False

            def once() -> None:
                kept.clear()
                make()

        def run() -> None:
            once()
            self.synchronize()

        run()
        return Tight(run, stays, lambda: kept)

    def flush_us(self) -> float:
        pairs = []
        for _ in range(TRIALS):
            begin, end = _event(), _event()
            torch.cuda._sleep(CYCLES_PER_US * WAIT_US)  # type: ignore[no-untyped-call]  # torch's gap
            begin.record()
            for _ in range(TRIALS):
                self._flush.zero_()
            end.record()
            pairs.append((begin, end))
        self.synchronize()
        return float(min(1000 * begin.elapsed_time(end) / TRIALS for begin, end in pairs))

    def _run_sample(self, timed: Timed, which: int, place: int | None = None) -> None:
        if timed.replay is not None:
            timed.replay()
        else:
            run_calls(timed, which, place)

    def _wait_cycles(self, timed: Timed) -> int:
        queued_us: float = 10
        if timed.replay is None:
            filled = timed.repeats * len(timed.sets[0]) if timed.fill is not None else 0
            queued_us = timed.host_us * timed.repeats + FILL_US * filled
        return math.ceil(CYCLES_PER_US * max(WAIT_US, min(1.5 * queued_us, 20_000)))

    def _join(self, timed: Timed) -> None:
        graph = torch.cuda.CUDAGraph()
        kept = []  # outputs are kept, so that each call writes to its own memory
        try:
            with _capturing(graph):
                for inputs in timed.sets:
                    kept.append(timed.call(inputs))
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # the call synchronizes, or allocates memory not through torch
            self.synchronize()
            timed.method, timed.tags = f"loop of {timed.repeats}", (*timed.tags, "not captured")
            return

        timed.replay, timed.captured = graph.replay, kept
        timed.method = f"graph of {timed.repeats}"
        graph.replay()


class CpuClock(Clock):
    """Wall times by perf_counter, of calls that return when they are done."""

    name = "perf_counter"
    short_us = 20  # below it, flushing the cache takes a thousand times as long
    _plain_method = "perf_counter"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.cache_bytes = _cpu_cache_bytes()
        self.overhead_us = FLUSH_FACTOR * self.cache_bytes / 5e3  # at 5 GB/s
        super().__init__()

    def block(self, work: Sequence[tuple[Timed, int]], places: Sequence[int] = ()) -> list[float]:
        samples = []
        for i, (timed, which) in enumerate(work):
            place = places[i] if places else None
            if place is not None:
                timed.fill_sets(which, place)
            self.flush()
            samples.append(self.sample_us(timed, which, place))
        return samples

    def sample_us(self, timed: Timed, which: int, place: int | None) -> float:
        begin = time.perf_counter_ns()
        run_calls(timed, which, place)
        return (time.perf_counter_ns() - begin) / 1000 / timed.repeats

    def in_a_row(self, timed: Timed, most_us: float) -> Row:
        calls, inputs = max(1, int(most_us / max(timed.rough_us, 1))), timed.sets[0]

        def run() -> float:
            timed.call(inputs)
            begin = time.perf_counter_ns()
            for _ in range(calls):
                timed.call(inputs)
            return (time.perf_counter_ns() - begin) / 1000 / calls

        return Row(run, calls)

    def _join(self, timed: Timed) -> None:
        timed.method = f"perf_counter over {timed.repeats}"


def clock(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()


@contextlib.contextmanager
def _capturing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what the body launches. Raises RuntimeError if that is not possible."""
    pool = torch.cuda.graph_pool_handle()
    try:
        # The outer context restores the stream, which a failed capture does not.
        with (
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=pool),
        ):
            yield
    except RuntimeError:
        end_failed_capture(graph, pool)
        raise


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's gap


def _cpu_cache_bytes() -> int:
    try:
        size = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        size = 0
    return min(size if size > 0 else MAX_CPU_CACHE, MAX_CPU_CACHE)
