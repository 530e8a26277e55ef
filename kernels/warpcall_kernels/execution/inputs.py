"""Memory of calls: where the inputs of a case lie, fresh values for them, poisoned outputs.

A process that calls an implementation has sets of buffers for its inputs. Before each timed call they
get new values. These are cut out of a pool of random values, at a random place that no implementation
knows before, so that writing them costs no more than a copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels._transpose.strides import reach
from warpcall_kernels.execution.spec import CODES, DTYPES
from warpcall_kernels.op.cases import Sample
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.launch import VECTOR_BYTES

GUARD_BYTES = 4096  # on each side of a tensor
SENTINEL = 0xA5  # no float of such bytes is a likely result
COPY_UNIT = 4096  # bytes; 67 MB and 48 bytes take 51 us on an H200, 67 MB 34
PLACES = 1 << 16  # in the pool, from which the values of an input may begin


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """How an input lies in a buffer of its own, between two guard bands.

    Attributes:
        shape, strides: of the input; strides are in elements.
        begin: its first element in the buffer.
        span: elements from its first to its last one.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int
    span: int

    @property
    def count(self) -> int:
        """Elements of the buffer."""
        return self.begin + self.span + GUARD_BYTES // self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self.count * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """The layout as plain data for json.dumps."""
        return {**dataclasses.asdict(self), "dtype": CODES[self.dtype]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BufferLayout:
        """The layout of the data that `to_json` returned."""
        return cls(
            DTYPES[data["dtype"]],
            tuple(data["shape"]),
            tuple(data["strides"]),
            data["begin"],
            data["span"],
        )


def layout_of(sample: Sample | Tensor) -> BufferLayout:
    """The layout of an input with the strides and the alignment of a sample, or of a tensor."""
    like = sample.meta() if isinstance(sample, Sample) else sample
    itemsize = like.element_size()
    address = like.data_ptr() if not like.is_meta else like.storage_offset() * itemsize
    shift = address % VECTOR_BYTES // itemsize
    span = reach(like.shape, like.stride()) if like.numel() else 0
    begin = GUARD_BYTES // itemsize + shift
    return BufferLayout(like.dtype, tuple(like.shape), like.stride(), begin, span)


class Buffer:
    """The memory of one input.

    Attributes:
        bytes: all of it, with the guard bands.
        tensor: the input.
    """

    def __init__(self, layout: BufferLayout, device: torch.device) -> None:
        self._layout = layout
        elements = torch.empty(layout.count, dtype=layout.dtype, device=device)
        self.bytes = elements.view(torch.uint8)
        self.bytes.fill_(SENTINEL)
        self._values = elements[layout.begin : layout.begin + layout.span]
        self._values.view(torch.uint8).zero_()  # a call that only warms up may read them
        self.tensor = elements.as_strided(layout.shape, layout.strides, layout.begin)

    def write(self, values: Tensor) -> None:
        """Write the values of the input; the guard bands stay as they are."""
        self._values.copy_(values)

    def has_only(self, values: Tensor) -> bool:
        """Whether the buffer has these values, and its guard bands are as they were."""
        return is_image(self.bytes, self._layout, values)


def is_image(found: Tensor, layout: BufferLayout, values: Tensor) -> bool:
    """Whether the bytes of a buffer are those of the values between guard bands."""
    begin = layout.begin * layout.dtype.itemsize
    end = begin + layout.span * layout.dtype.itemsize
    same = torch.equal(found[begin:end], values.view(torch.uint8))
    return same and all(bool((g == SENTINEL).all()) for g in (found[:begin], found[end:]))


@dataclass(frozen=True)
class Values:
    """The values of all inputs of a call.

    Attributes:
        flat: for each input its elements in the order of memory, contiguous.
        tensors: the same memory with shapes and strides of the inputs.
    """

    flat: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]


class Pool:
    """Random values of a case, which differ at each of its places.

    Args:
        layouts: of the inputs.
        flat: for each input the values of all places, PLACES - 1 more than it has.
    """

    def __init__(self, layouts: Mapping[str, BufferLayout], flat: Mapping[str, Tensor]) -> None:
        self.layouts = layouts
        self.flat = flat

    @classmethod
    def draw(cls, inputs: Mapping[str, Sample], seed: int, device: torch.device) -> Pool:
        """Draw a pool from a seed."""
        generator = torch.Generator(device).manual_seed(seed)
        layouts = {name: layout_of(sample) for name, sample in inputs.items()}
        return cls(
            layouts,
            {
                name: dataclasses.replace(
                    sample, shape=(pool_size(layouts[name]),), layout="contiguous"
                ).draw(generator, device)
                for name, sample in inputs.items()
            },
        )

    def at(self, place: int) -> Values:
        """The values of all inputs at a place."""
        flat, tensors = {}, {}
        for name, pool in self.flat.items():
            layout = self.layouts[name]
            flat[name] = pool[place : place + layout.span]
            tensors[name] = pool.as_strided(layout.shape, layout.strides, place)
        return Values(flat, tensors)


def pool_size(layout: BufferLayout) -> int:
    """Elements of the pool of an input."""
    return layout.span + PLACES


def values_of(tensors: Mapping[str, Tensor]) -> Values:
    """The values of tensors as they lie in memory."""
    flat = {
        name: t.as_strided((reach(t.shape, t.stride()) if t.numel() else 0,), (1,))
        for name, t in tensors.items()
    }
    return Values(flat, tensors)


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
