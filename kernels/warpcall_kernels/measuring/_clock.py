"""How long a call takes a device: CUDA events on a GPU, perf_counter on a CPU.

One sample: overwrite the last-level cache, event, call, event; the CPU is kept ahead by a wait on the
device, so that no launch gap is timed. An empty pair of events already reads some 6 us on an H200, so
where a case is short its calls are captured instead, many over rotated inputs that together exceed
the cache, in one CUDA graph whose replay is divided by their number.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.measuring._memory import Sets

Inputs = Mapping[str, Tensor]
Call = Callable[[Inputs], Any]

LONG_FACTOR = 10  # beside a short call, one that takes so many times as long is timed alone
FLUSH_FACTOR = 2  # times the cache that is written before a sample
ROTATE_FACTOR = 3  # times the cache that the rotated inputs fill
MAX_ROTATED = 64  # calls in one sample
SWAPPED = 2  # sets of inputs of calls that are not short
WAIT_US = 100  # on the device: the CPU has queued the sample before it ends
CYCLES_PER_US = 2000  # of the device, at most
TRIALS = 5
MOST_QUEUED = 1000  # calls, or graphs
LONG_US = 20_000  # a call that takes longer is not slower for coming first
ROW_CALLS = 20  # at least, in one graph
MAX_CPU_CACHE = 32 << 20  # bytes taken for the last-level cache of a CPU, which servers share


@dataclass
class Timed:
    """A call that is ready to be timed.

    Args:
        call: of a set of inputs.
        sets: of inputs, with the same values at other addresses.
        method: how it is timed, in words.
        rough_us: what it took when it was got ready.
        host_us: what it takes the CPU to queue it.
        repeats: calls in a sample.
        replay: the calls of a sample as one CUDA graph; None calls it `repeats` times.
    """

    call: Call
    sets: Sequence[Inputs]
    method: str
    rough_us: float
    host_us: float
    repeats: int = 1
    replay: Callable[[], None] | None = None
    tags: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return max(1, sum(t.numel() * t.element_size() for t in self.sets[0].values()))


@dataclass(frozen=True)
class Row:
    """Calls in a row: `run` makes them and gives the time of one in us."""

    run: Callable[[], float]
    calls: int

    def __call__(self) -> float:
        return self.run()


class Clock:
    """What a device is timed with; see `CudaClock` and `CpuClock`."""

    name: str
    cache_bytes: int
    device: torch.device
    overhead_us: float  # of a sample, beside the calls
    short_us: float  # below this, a sample is many calls

    def __init__(self) -> None:
        size = FLUSH_FACTOR * self.cache_bytes
        self._flush = torch.empty(size, dtype=torch.uint8, device=self.device)

    def ready(self, call: Call, sets: Sets) -> Timed:
        """Call it some times, after which it can be estimated."""
        inputs = sets.first(SWAPPED)
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
        """See what it takes, roughly."""
        times = TRIALS if timed.rough_us < LONG_US else 1
        timed.rough_us = statistics.median(self.block([(timed, 0)] * times))

    def median_us(self, call: Call, make: Callable[[], Inputs], rounds: int) -> float:
        """Of one call alone; `make` makes a set of inputs."""
        sets = Sets(make)
        timed = self.ready(call, sets)
        self.estimate(timed)
        if timed.rough_us < self.short_us:
            self.shorten(timed, sets)
        return statistics.median(
            self.block([(timed, i % len(timed.sets))])[0] for i in range(rounds)
        )

    def shorten(self, timed: Timed, sets: Sets) -> None:
        """Have many calls in a sample, as its case is short."""
        wanted = -(-ROTATE_FACTOR * self.cache_bytes // timed.nbytes)
        timed.repeats = min(MAX_ROTATED, max(8, wanted))
        if wanted > timed.repeats:
            timed.tags += ("cache warm",)  # so small that they do not fill it
        timed.sets = sets.first(timed.repeats)
        self._join(timed)

    def wall_us(self, timed: Timed) -> float:
        """What a sample takes in all."""
        return self.overhead_us + max(timed.rough_us, timed.host_us) * timed.repeats

    def block(self, plays: Sequence[tuple[Timed, int]]) -> list[float]:
        """Time of a call in us, for each of these in turn; an int chooses the set of inputs."""
        raise NotImplementedError

    def in_a_row(self, timed: Timed, most_us: float) -> Row:
        """Calls one after the other, with the same inputs, for so long at most."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""

    @property
    def _plain_method(self) -> str:
        raise NotImplementedError

    def _join(self, timed: Timed) -> None:
        raise NotImplementedError

    def rotated(self, timed: Timed, which: int) -> list[Inputs]:
        """The sets of the calls of a sample, beginning with that one."""
        n = len(timed.sets)
        return [timed.sets[(which + i) % n] for i in range(timed.repeats)]


class CudaClock(Clock):
    """Device time by CUDA events, on the current stream of one GPU, which must be the current one."""

    name = "cuda events"
    short_us = 50  # then the events themselves are more than a tenth of the reading
    _plain_method = "events"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        properties = torch.cuda.get_device_properties(device)
        self.cache_bytes = properties.L2_cache_size
        self.overhead_us = WAIT_US + 50 + FLUSH_FACTOR * self.cache_bytes / 3e6  # at 3 TB/s
        super().__init__()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def block(self, plays: Sequence[tuple[Timed, int]]) -> list[float]:
        first, which = plays[0]
        if first.rough_us < LONG_US:
            self._play(first, which)  # not timed: the first call after a pause is slow
        pairs = []
        for timed, which in plays:
            begin, end = _event(), _event()
            torch.cuda._sleep(self._wait_cycles(timed))  # type: ignore[no-untyped-call]  # torch's gap
            if timed.replay is None:
                self._flush.zero_()
            begin.record()
            self._play(timed, which)
            end.record()
            pairs.append((begin, end))
        self.synchronize()
        return [
            1000 * begin.elapsed_time(end) / timed.repeats
            for (begin, end), (timed, _) in zip(pairs, plays, strict=True)
        ]

    def in_a_row(self, timed: Timed, most_us: float) -> Row:
        calls, replays, inputs = 1, max(1, int(most_us / max(timed.rough_us, 1))), timed.sets[0]
        once: Callable[[], Any] = lambda: timed.call(inputs)
        if timed.replay is not None:
            calls, replays = ROW_CALLS, max(1, replays // ROW_CALLS)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
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

    def _play(self, timed: Timed, which: int) -> None:
        if timed.replay is not None:
            timed.replay()
        else:
            for inputs in self.rotated(timed, which):
                timed.call(inputs)

    def _wait_cycles(self, timed: Timed) -> int:
        queued_us = 10 if timed.replay is not None else timed.host_us * timed.repeats
        return math.ceil(CYCLES_PER_US * max(WAIT_US, min(1.5 * queued_us, 20_000)))

    def _join(self, timed: Timed) -> None:
        graph = torch.cuda.CUDAGraph()
        kept = []  # outputs stay alive, so that each call writes its own memory
        try:
            # The outer one: a capture that fails does not give the stream back.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
                for inputs in timed.sets:
                    kept.append(timed.call(inputs))
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # it waits for the device, or allocates otherwise than through torch
            self.synchronize()
            timed.method, timed.tags = f"loop of {timed.repeats}", (*timed.tags, "not captured")
            return

        def replay(outputs: Any = kept) -> None:
            graph.replay()

        timed.replay, timed.method = replay, f"graph of {timed.repeats}"
        replay()


class CpuClock(Clock):
    """Wall time by perf_counter of calls that have returned when they are done."""

    name = "perf_counter"
    short_us = 20  # then flushing the cache takes a thousand times as long
    _plain_method = "perf_counter"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.cache_bytes = _cpu_cache_bytes()
        self.overhead_us = FLUSH_FACTOR * self.cache_bytes / 5e3  # at 5 GB/s
        super().__init__()

    def block(self, plays: Sequence[tuple[Timed, int]]) -> list[float]:
        samples = []
        for timed, which in plays:
            sets = self.rotated(timed, which)
            self._flush.zero_()
            begin = time.perf_counter_ns()
            for inputs in sets:
                timed.call(inputs)
            samples.append((time.perf_counter_ns() - begin) / 1000 / timed.repeats)
        return samples

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


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's gap


def _cpu_cache_bytes() -> int:
    try:
        size = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        size = 0
    return min(size if size > 0 else MAX_CPU_CACHE, MAX_CPU_CACHE)
