"""Memory of inputs: equal values and strides at several addresses, between guard bands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from warpcall_kernels._transpose.strides import reach
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.launch import VECTOR_BYTES

GUARD_BYTES = 4096  # on each side of a tensor
COPY_UNIT = 4096  # bytes; 67 MB and 48 bytes take 51 us on an H200, 67 MB 34
SENTINEL = 0xA5  # no float of such bytes is a likely result


class Guarded:
    """A copy of a tensor, with the same strides and alignment, in its own buffer between guard
    bands.
    """

    def __init__(self, like: Tensor) -> None:
        span = reach(like.shape, like.stride()) if like.numel() else 0
        guard = GUARD_BYTES // like.element_size()
        shift = like.data_ptr() % VECTOR_BYTES // like.element_size()
        self._begin, self._span = guard + shift, span
        self._buffer = like.new_empty(guard + shift + span + guard)
        self._bytes = self._buffer.view(torch.uint8)
        self._bytes.fill_(SENTINEL)
        self.tensor = self._buffer.as_strided(like.shape, like.stride(), self._begin)
        self.fill(like)

    def fill(self, like: Tensor) -> None:
        """Copy the values of a tensor with the same strides."""
        if self._span:
            source = like.as_strided((self._span,), (1,))
            self._buffer[self._begin : self._begin + self._span].copy_(source)

    def snapshot(self) -> Tensor:
        """A copy of all bytes, including the guard bands."""
        return self._bytes.clone()

    def is_as(self, snapshot: Tensor) -> bool:
        """Whether no byte has changed."""
        return torch.equal(self._bytes, snapshot)


def guarded(tensors: Mapping[str, Tensor]) -> dict[str, Guarded]:
    """A guarded copy of each tensor."""
    return {name: Guarded(t) for name, t in tensors.items()}


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors, with the same values and strides at other addresses."""
    return {name: Guarded(t).tensor for name, t in tensors.items()}


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
