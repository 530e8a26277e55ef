"""Device time of a call with a cold L2, in milliseconds.

One sample: overwrite the L2, event, call, event, with the CPU kept ahead by a wait on the device, so
that no launch gap is timed. An empty pair of events already reads some 6 us on an H200, so a short
call is captured instead, many times over rotated inputs that together exceed the L2, in one CUDA
graph whose replay is divided by their number.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Call = Callable[[Mapping[str, Tensor]], object]

SHORT_MS = 0.06  # below this the events themselves are more than a tenth of the reading
FLUSH_FACTOR = 2  # times the L2 that is written before a sample
ROTATE_FACTOR = 3  # times the L2 that the rotated inputs fill
MAX_ROTATED = 64  # calls in one graph
WAIT_CYCLES = 200_000  # some 0.1 ms on the device: the CPU has queued the sample before it ends
COPY_UNIT = 4096  # bytes; 67 MB and 48 bytes take 51 us on an H200, 67 MB 34
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Times:
    """Samples of one call, in ms."""

    samples_ms: tuple[float, ...]
    method: str

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)

    def percentile_ms(self, percent: int) -> float:
        ranked = sorted(self.samples_ms)
        return ranked[min(len(ranked) - 1, len(ranked) * percent // 100)]


class Stopwatch:
    """Measures calls on the current CUDA device."""

    def __init__(self) -> None:
        self.l2_bytes = torch.cuda.get_device_properties().L2_cache_size
        self._flush = torch.empty(FLUSH_FACTOR * self.l2_bytes, dtype=torch.uint8, device="cuda")

    def time(self, call: Call, draw: Callable[[], dict[str, Tensor]], rounds: int) -> Times:
        """Median-ready samples of `call(inputs)`; `draw` makes a set of inputs to call it with."""
        inputs = draw()
        for _ in range(WARM_UP):
            call(inputs)
        cold = self._with_events(call, inputs, rounds)
        if cold.median_ms >= SHORT_MS:
            return cold
        nbytes = max(1, sum(t.numel() * t.element_size() for t in inputs.values()))
        wanted = min(MAX_ROTATED, max(8, -(-ROTATE_FACTOR * self.l2_bytes // nbytes)))
        return self._in_graph(call, [inputs, *(draw() for _ in range(wanted - 1))], rounds)

    def _with_events(self, call: Call, inputs: Mapping[str, Tensor], rounds: int) -> Times:
        pairs = [(_event(), _event()) for _ in range(rounds)]
        for begin, end in pairs:
            _let_the_cpu_run_ahead()
            self._flush.zero_()
            begin.record()
            call(inputs)
            end.record()
        torch.cuda.synchronize()
        return Times(tuple(b.elapsed_time(e) for b, e in pairs), "events")

    def _in_graph(self, call: Call, sets: Sequence[Mapping[str, Tensor]], rounds: int) -> Times:
        graph = torch.cuda.CUDAGraph()
        kept = []  # outputs stay alive, so that each call writes its own memory
        with torch.cuda.graph(graph):
            for inputs in sets:
                kept.append(call(inputs))
        graph.replay()
        samples = []
        for _ in range(rounds):
            begin, end = _event(), _event()
            _let_the_cpu_run_ahead()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end) / len(sets))
        kept.clear()
        return Times(tuple(samples), f"graph of {len(sets)}")

    def copy_limit(self, nbytes: int, rounds: int) -> Times:
        """The time of a device-to-device copy that moves `nbytes` in all, half read, half written.

        Rounded up to COPY_UNIT: the copies of odd sizes are themselves slow.
        """
        size = max(1, -(-nbytes // 2 // COPY_UNIT)) * COPY_UNIT

        def draw() -> dict[str, Tensor]:
            return {"x": torch.empty(size, dtype=torch.uint8, device="cuda").random_()}

        return self.time(lambda inputs: inputs["x"].clone(), draw, rounds)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's gap


def _let_the_cpu_run_ahead() -> None:
    torch.cuda._sleep(WAIT_CYCLES)  # type: ignore[no-untyped-call]  # torch's gap
