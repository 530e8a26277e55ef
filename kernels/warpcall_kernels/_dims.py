"""Dims, sizes and strides: what permute and transpose-add work out before a launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from warpcall_kernels._torch import VECTOR_BYTES

INT32_REACH = 2**31 - 64  # elements that 32-bit offsets reach, and some beyond

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


@triton.jit
def walk(
    index: tl.tensor,
    sizes: tl.tensor,
    factors: tl.tensor,
    shifts: tl.tensor,
    steps: tl.tensor,
    NDIM: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
) -> tl.tensor:
    """Where linear indices over `sizes` lie, as `offset`, in 3 instructions a dim: see `walker`."""
    total = index * steps[NDIM - 1]
    for d in tl.static_range(NDIM - 1, 0, -1):
        if WIDE:
            index = index // sizes[d]
        else:
            factor = factors[d].to(tl.uint32, bitcast=True)
            index = (tl.umulhi(index.to(tl.uint32), factor) >> shifts[d]).to(tl.int32)
        total += index * steps[d - 1]
    return tl.multiple_of(total, ALIGN)


def walker(sizes: tuple[int, ...], strides: tuple[int, ...], side: str = "") -> dict[str, Any]:
    """What `walk` needs to walk dims by these strides, named for the `side`.

    With 2^(l-1) < size <= 2^l, n // size is the high word of n * factor, shifted right by l - 1, for any
    n below 2^31; the factor is 2^(31+l) / size, rounded up, here as a signed number. And n % size is
    n - n // size * size, so that an offset is a sum of quotients, each times a step.
    """
    # Of the first dim only the step is used: the rest is 0, so that no variant is compiled for it.
    lengths = [max(1, (size - 1).bit_length()) for size in sizes[1:]]
    factors = [-(-(1 << (31 + n)) // size) for size, n in zip(sizes[1:], lengths, strict=True)]
    below = [size * stride for size, stride in zip(sizes[1:], strides[1:], strict=True)]
    return {
        f"{side}sizes": (0, *sizes[1:]),
        f"{side}factors": (0, *(f - (1 << 32) if f >> 31 else f for f in factors)),
        f"{side}shifts": (0, *(n - 1 for n in lengths)),
        f"{side}steps": tuple(s - b for s, b in zip(strides, [*below, 0], strict=True)),
    }
