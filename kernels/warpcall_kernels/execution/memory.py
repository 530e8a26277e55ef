"""Memory of calls: sets of inputs at several addresses, poisoned outputs, the copy's source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from warpcall_kernels.execution.inputs import SENTINEL
from warpcall_kernels.op.declaration import Meta

COPY_UNIT = 4096  # bytes; 67 MB and 48 bytes take 51 us on an H200, 67 MB 34


def poison(outputs: Iterable[Meta], device: torch.device) -> None:
    """Fill the memory that outputs of these sizes will get with bytes that are no result.

    Torch's allocator gives memory that was just freed to the next request of the same size.
    Otherwise an implementation that writes nothing could return the result of the call before.
    """
    taken = [
        torch.full((max(1, meta.nbytes),), SENTINEL, dtype=torch.uint8, device=device)
        for meta in outputs
    ]
    del taken


class Sets:
    """Sets of inputs, made when they are needed, and shared by several candidates."""

    def __init__(self, make: Callable[[], Mapping[str, Tensor]]) -> None:
        self._make = make
        self._made: list[Mapping[str, Tensor]] = []

    def first(self, count: int) -> list[Mapping[str, Tensor]]:
        """The first `count` sets."""
        while len(self._made) < count:
            self._made.append(self._make())
        return self._made[:count]


def copy_source(nbytes: int, device: torch.device) -> Tensor:
    """The source of the limit's copy: half of the bytes, since a copy reads and writes each.

    The size is a multiple of 4 KiB, since copies of odd sizes are slow. The values come from a
    separate generator: torch's own raises an error after a capture that failed.
    """
    size = max(1, -(-nbytes // 2 // COPY_UNIT)) * COPY_UNIT
    generator = torch.Generator(device).manual_seed(0)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device=device, generator=generator)
