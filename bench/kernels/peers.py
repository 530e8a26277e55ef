"""Times of other implementations that were recorded earlier, and our times by the same clock.

Most peers were timed by `triton.testing.do_bench`, whose reading of a short call contains the events
and the launch. A CUDA graph of our calls contains neither, so that the two cannot be compared. The
peers of the cases with GRAPH in their names were timed by graphs, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton.testing

from warpcall_kernels import Op
from warpcall_kernels.execution.check import draw
from warpcall_kernels.op.cases import Case

GRAPH = "(graph)"
WARMUP_MS, TIMED_MS = 10, 40  # of do_bench, each with the time of clearing the cache


class Peer(NamedTuple):
    """The fastest recorded implementation of a case, its time, and the clock: do_bench or graph."""

    name: str
    ms: float
    clock: str


class Peers:
    """The recorded times of one kind of GPU.

    Args:
        ops: the records by op and by case.
    """

    def __init__(self, ops: Mapping[str, Mapping[str, Any]]) -> None:
        self._ops = ops

    @classmethod
    def read(cls, file: str | None, gpu: str) -> Peers:
        """The times of a file; none without a file, or if they are of another kind of GPU."""
        if not file:
            return cls({})
        recorded: dict[str, Any] = json.loads(Path(file).read_text())
        return cls(recorded["ops"] if gpu in recorded["machine"] else {})

    def best(self, op: str, case: str) -> Peer | None:
        """The fastest peer; None if none was recorded."""
        times = self._ops.get(op, {}).get(case, {}).get("peers_ms", {})
        clock = "graph" if GRAPH in case else "do_bench"
        found = (Peer(name, ms, clock) for name, ms in times.items())
        return min(found, key=lambda peer: peer.ms, default=None)


def by_do_bench(op: Op, case: Case) -> float:
    """The median time in ms of a call on a GPU, by the peers' clock."""
    inputs = draw(case.inputs, case.seed, torch.device("cuda"))  # on a CPU it takes up to 8 s
    params = op.check_params(case.params)
    call: Callable[[], Any] = lambda: op.function(**inputs, **params)
    found = triton.testing.do_bench(call, warmup=WARMUP_MS, rep=TIMED_MS, return_mode="median")
    return float(found)
