"""Dims, sizes and strides: what permute and transpose-add work out before a launch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import triton
import triton.language as tl

from warpcall_kernels.op.launch import VECTOR_BYTES

INT32_REACH = 2**31 - 64  # elements that 32-bit offsets reach, and some beyond

WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}  # what is moved, by its size

Dim = tuple[int, tuple[int, ...]]  # a size, and the stride of each operand along it


def merge(sizes: Sequence[int], *strides: Sequence[int]) -> list[Dim]:
    """The same walk with as few dims as possible, in the same order.

    Dims of size 1 go, and neighbours along which every operand steps evenly become one.
    """
    merged: list[Dim] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        step = tuple(steps)
        if merged and merged[-1][1] == tuple(s * size for s in step):
            merged[-1] = (merged[-1][0] * size, step)
        else:
            merged.append((size, step))
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


def alignment(itemsize: int, numbers: Sequence[int]) -> int:
    """Elements, a power of two, that one access may take: they divide all of `numbers`."""
    return math.gcd(VECTOR_BYTES // itemsize, *numbers)


@triton.jit
def offset(
    index: tl.tensor,
    sizes: tl.tensor,
    strides: tl.tensor,
    NDIM: tl.constexpr,
    ALIGN: tl.constexpr,
) -> tl.tensor:
    """Where linear indices over `sizes` (C order) lie by `strides`, all multiples of ALIGN.

    That is said in here: said of what a call returns, it would be lost when the call is inlined.
    """
    if NDIM == 1:
        return tl.multiple_of(index * strides[0], ALIGN)
    total = index % sizes[NDIM - 1] * strides[NDIM - 1]
    for d in tl.static_range(NDIM - 2, -1, -1):
        index = index // sizes[d + 1]
        total += (index % sizes[d] if d > 0 else index) * strides[d]
    return tl.multiple_of(total, ALIGN)
