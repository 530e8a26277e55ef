"""Small calls that come again and again, as CUDA graphs: one launch for all that a call does.

A graph has the addresses of a call's inputs and outputs in the arena and those of its temporary
tensors. So it is captured for one plan and one place in the arena. Repeated calls get few places.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

from warpcall_kernels.op.launch import end_failed_capture
from warpcall_service.devices.device import Times
from warpcall_service.devices.tensors import Runnable

# On an H100, 128 graphs of one kernel and a copy took 14 MB of device memory, 512 took 173 and 1,000
# took 737.
MAX_GRAPHS = 256

log = logging.getLogger("warpcall.lane")


class Graphs:
    """Captures calls on one device.

    All graphs take their temporary tensors from one pool. They may, because they run one after the
    other and leave nothing there: outputs are in the arena.
    """

    def __init__(self, device: torch.device) -> None:
        # The default stream cannot be captured.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here
        self._pool = torch.cuda.graph_pool_handle()
        self._live: weakref.WeakSet[GraphedCall] = weakref.WeakSet()

    def capture(
        self, work: Runnable, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> GraphedCall | None:
        """Capture a call whose kernels are loaded. Nothing else may launch kernels meanwhile.

        Args:
            inputs, outputs: the call's tensors in the arena, as tensors of the device.

        Returns:
            The call, or None if it cannot be captured or there are MAX_GRAPHS.
        """
        if len(self._live) >= MAX_GRAPHS:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    results = work.compute(dict(inputs))
                    for name, output in outputs.items():
                        output.copy_(results[name])
                finally:
                    graph.capture_end()
        except RuntimeError:
            end_failed_capture(graph, self._pool)
            log.exception("a call of %s cannot be captured, and runs as before", work.name)
            return None
        call = GraphedCall(graph)
        self._live.add(call)
        return call


class GraphedCall:
    """A captured call. It can be under way once at a time, and is its own `Pending`.

    Attributes:
        is_under_way: whether it was begun and `times` has not returned since.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph
        self._begin, self._end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # as above
            for _ in range(2)
        )
        self.is_under_way = False

    def begin(self, stream: torch.cuda.Stream) -> GraphedCall:
        """Queue the call on the device's current stream, which `stream` must be."""
        self.is_under_way = True
        self._begin.record(stream)
        self._graph.replay()
        self._end.record(stream)
        return self

    def ready(self) -> bool:
        """As `Pending.ready`."""
        return has_passed(self._end)

    def times(self) -> Times:
        """As `Pending.times`. Kernels read the inputs in the arena and write the outputs there."""
        self._end.synchronize()
        self.is_under_way = False
        return 0.0, self._begin.elapsed_time(self._end), 0.0


def has_passed(event: torch.cuda.Event) -> bool:
    """Whether a device has come to an event. A lost device has: whatever waits for it gets the error."""
    try:
        return bool(event.query())  # type: ignore[no-untyped-call]  # as above
    except RuntimeError:
        return True
