"""Dims, sizes and strides: what launchers compute from the layouts of their tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl

from warpcall_kernels.op.launch import VECTOR_BYTES

# Elements that 32-bit offsets reach. The margin is for offsets that a program computes past the
# end.
INT32_REACH = 2**31 - 64

WORDS = {
    1: tl.int8,
    2: tl.int16,
    4: tl.int32,
    8: tl.int64,
}  # the type that elements are moved as, by its bytes


class Dim(NamedTuple):
    """The size of a dim, and the stride of each operand along it, in elements."""

    size: int
    strides: tuple[int, ...]


def merge(sizes: Sequence[int], *strides: Sequence[int]) -> list[Dim]:
    """The same elements in the same order with as few dims as possible.

    Dims of size 1 are dropped. Neighbouring dims become one where one stride serves both of them,
    in every operand.
    """
    merged: list[Dim] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        step = tuple(steps)
        if merged and merged[-1].strides == tuple(s * size for s in step):
            merged[-1] = Dim(merged[-1].size * size, step)
        else:
            merged.append(Dim(size, step))
    return merged


def contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, in elements."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def broadcast_strides(shape: Sequence[int], strides: Sequence[int], rank: int) -> tuple[int, ...]:
    """Strides of a tensor broadcast to `rank` dims: 0 along those that are missing or of size 1."""
    kept = (0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))
    return (0,) * (rank - len(shape)) + tuple(kept)


def reach(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first of a tensor to its last, both included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def needs_int64(spans: Iterable[int]) -> bool:
    """Whether offsets need 64 bits, when operands reach over these numbers of elements."""
    return max(spans) >= INT32_REACH


def alignment(itemsize: int, numbers: Sequence[int]) -> int:
    """The elements, a power of two, that one access may move if it begins at any of `numbers`."""
    return math.gcd(VECTOR_BYTES // itemsize, *numbers)


def division_arguments(
    sizes: tuple[int, ...], strides: tuple[int, ...], side: str = ""
) -> dict[str, Any]:
    """The arguments of `linear_to_offset` for dims of these sizes and strides, prefixed by `side`.

    A quotient is the high word of n * factor, shifted right by l - 1: see `_factor_of`. The factor is
    passed as a signed number. And n % size is n - n // size * size, so that an offset is a sum of
    quotients, each times a step.
    """
    # Only the step of the first dim is used. Its other arguments are 0, so that the kernel is not
    # compiled again for other values.
    pairs = [_factor_of(size) for size in sizes[1:]]
    below = [size * stride for size, stride in zip(sizes[1:], strides[1:], strict=True)]
    return {
        f"{side}sizes": (0, *sizes[1:]),
        f"{side}factors": (0, *(f - (1 << 32) if f >> 31 else f for f, _ in pairs)),
        f"{side}shifts": (0, *(length - 1 for _, length in pairs)),
        f"{side}steps": tuple(s - b for s, b in zip(strides, [*below, 0], strict=True)),
    }


def reciprocal(size: int) -> int:
    """What `divide` takes to divide by `size`, which is at least 1: a factor and, in the bits above, a shift.

    A quotient is n * factor, shifted right: see `_factor_of`. The factor has 32 bits.
    """
    factor, length = _factor_of(size)
    return (31 + length) << 32 | factor


def _factor_of(size: int) -> tuple[int, int]:
    """A factor and a length l, by which n // size is n * factor, shifted right by 31 + l, for any n below 2^31.

    2^(l-1) < size <= 2^l, and the factor is 2^(31+l) / size, rounded up.
    """
    length = (size - 1).bit_length()
    return -(-(1 << (31 + length)) // size), length


@triton.jit
def divide(n: tl.tensor, size: tl.tensor, reciprocal: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The quotient and the remainder of n, an int32 from 0 on, divided by `size`.

    A program cannot load anything before it has divided its number up to three times, and a division by a number
    that the compiler does not know has some 20 instructions, of which each waits for the one before.
    """
    product = n.to(tl.uint32).to(tl.uint64) * reciprocal.to(tl.uint32)
    quotient = (product >> (reciprocal >> 32).to(tl.uint64)).to(tl.int32)
    return quotient, n - quotient * size


@triton.jit
def offset(
    index: tl.tensor,
    sizes: tl.tensor,
    strides: tl.tensor,
    NDIM: tl.constexpr,
    ALIGN: tl.constexpr,
) -> tl.tensor:
    """The offsets of linear indices over `sizes` (C order), in elements; ALIGN divides all
    `strides`.

    `tl.multiple_of` stands in this function because a hint on the result of a call is lost when the
    call is inlined.
    """
    if NDIM == 1:
        return tl.multiple_of(index * strides[0], ALIGN)
    total = index % sizes[NDIM - 1] * strides[NDIM - 1]
    for d in tl.static_range(NDIM - 2, -1, -1):
        index = index // sizes[d + 1]
        total += (index % sizes[d] if d > 0 else index) * strides[d]
    return tl.multiple_of(total, ALIGN)
