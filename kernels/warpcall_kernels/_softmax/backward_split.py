"""The backward kernel for rows of which each program holds a part in registers: the variant "split".

A row is read once, however long it is. The programs of a row exchange the sums of their parts
through words of 64 bits in device memory: the sum, and a bit that says that it is there. The words
are 0 before the launch. [670, 50021] bf16 takes 62 us on an H200, 26 % less than when each program
reads its row twice.

A program waits for the words of other parts a limited time. A program that has not begun by then
might begin only after this one ends, for example if another kernel fills the multiprocessors. So
the program then makes the words of all parts itself, and the kernel ends in whatever order its
programs run. The word of a part has the same bits whoever makes it.

Rows of two bytes a position are held as they lie in memory, two positions a register, and widened
once for the sum and once for the result.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from warpcall_kernels._softmax.backward import UNSPECIALIZED, grad_of
from warpcall_kernels._softmax.device import (
    end_columns,
    program_rows,
    row_start,
    row_starts,
    unaligned_prefix,
)
from warpcall_kernels._softmax.packed import as_words, halves, opaque_copy, side_by_side

THERE = tl.constexpr(1 << 32)  # the bit of a word that is set, and the word of a sum of 0


class Part(NamedTuple):
    """What a program holds of a part: both operands, and those of the unaligned ends of the row."""

    g: tl.tensor
    y: tl.tensor
    ends_g: tl.tensor
    ends_y: tl.tensor


@triton.jit
def _product(g: tl.tensor, y: tl.tensor) -> tl.tensor:
    return tl.where(y == 0.0, 0.0, g) * y


@triton.jit
def _read(
    ptr: tl.tensor, first: tl.tensor, whole: tl.tensor, BLOCK: tl.constexpr, PACKED: tl.constexpr
) -> tl.tensor:
    """BLOCK positions of a row, and 0 for those that are not among its `whole` ones."""
    if PACKED:
        at = first // 2 + tl.arange(0, BLOCK // 2).to(first.dtype)
        held = tl.load(as_words(ptr) + at, mask=at < whole // 2, other=0)
    else:
        at = first + tl.arange(0, BLOCK).to(first.dtype)
        held = tl.load(ptr + at, mask=at < whole, other=0.0)
    return held


@triton.jit
def _read_part(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    part: tl.tensor,
    whole: tl.tensor,
    ends: tl.tensor,
    columns: tl.tensor,
    SKEWED: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """A part of a row. The first one has both ends of the row."""
    g = _read(g_ptr, part * BLOCK, whole, BLOCK, PACKED)
    y = _read(y_ptr, part * BLOCK, whole, BLOCK, PACKED)
    ends_g, ends_y = g, y
    if SKEWED:
        inside = (ends < columns) & (part == 0)
        ends_g = tl.load(g_ptr + ends, mask=inside, other=0.0).to(tl.float32)
        ends_y = tl.load(y_ptr + ends, mask=inside, other=0.0).to(tl.float32)
    return Part(g, y, ends_g, ends_y)


@triton.jit
def _sum_of(
    held: Part, DTYPE: tl.constexpr, SKEWED: tl.constexpr, PACKED: tl.constexpr
) -> tl.tensor:
    if PACKED:
        first_g, second_g = halves(held.g, DTYPE)
        first_y, second_y = halves(held.y, DTYPE)
        products = _product(first_g, first_y) + _product(second_g, second_y)
    else:
        products = _product(held.g, held.y)
    total = tl.sum(products, axis=0)
    if SKEWED:
        total += tl.sum(_product(held.ends_g, held.ends_y), axis=0)
    return total


@triton.jit
def _write_word(word_ptr: tl.tensor, total: tl.tensor) -> None:
    """Write the word of a part. Other programs see all of it or nothing."""
    word = total.to(tl.uint32, bitcast=True).to(tl.uint64) | THERE
    tl.atomic_xchg(word_ptr, word, sem="relaxed")


@triton.jit
def _read_words(words_ptr: tl.tensor, parts: tl.tensor, LANES: tl.constexpr) -> tl.tensor:
    """The words of all parts, and whether all of them are there.

    Each thread reads at most one word, so that the answer is put together in shared memory and is
    the same for all warps. They could otherwise leave the loops below at different times, and wait
    for each other at different barriers.
    """
    lane = tl.arange(0, LANES)
    words = tl.load(words_ptr + lane, mask=lane < parts, other=THERE, volatile=True)
    return words, tl.min((words != 0).to(tl.int32), axis=0) != 0


@triton.jit(
    do_not_specialize=(*UNSPECIALIZED, "zero", "tries", "parts"),
    do_not_specialize_on_alignment=("inner",),
)
def masked_softmax_backward_split_kernel(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    out_ptr: tl.tensor,
    words_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    outer: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    g_strides: tl.tensor,
    y_strides: tl.tensor,
    out_strides: tl.tensor,
    parts: tl.tensor,
    tries: tl.tensor,
    zero: tl.tensor,
    SKEWED: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    WHOLE: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One part of a row, BLOCK positions; WHOLE rows have one part, and their words stay 0."""
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    PACKED: tl.constexpr = DTYPE.primitive_bitwidth == 16
    place, rows, _ = program_rows(1, 1, outer, inner, count, WIDE, parts)
    part = (tl.program_id(0) % parts).to(rows.dtype)
    head = rows * 0
    if SKEWED:
        head = unaligned_prefix(place, rows, out_strides, ALIGN)
    g_ptr += row_start(row_starts(place, rows, g_strides, head, SKEWED, ALIGN), ALIGN)
    y_ptr += row_start(row_starts(place, rows, y_strides, head, SKEWED, ALIGN), ALIGN)
    out_ptr += row_start(row_starts(place, rows, out_strides, head, SKEWED, ALIGN), ALIGN)
    columns = columns.to(rows.dtype) - tl.max(head, axis=0)
    whole = columns // ALIGN * ALIGN
    ends = rows
    if SKEWED:
        ends = tl.ravel(end_columns(head[:, None], whole, columns, ALIGN))
    held = _read_part(g_ptr, y_ptr, part, whole, ends, columns, SKEWED, PACKED, BLOCK)
    total = _sum_of(held, DTYPE, SKEWED, PACKED)

    if not WHOLE:
        row = (place.outer * inner + place.inner) * count + place.row
        words_ptr += row * parts
        _write_word(words_ptr + part, total)
        words, complete = _read_words(words_ptr, parts, LANES)
        tried = 0
        while (not complete) & (tried < tries):
            words, complete = _read_words(words_ptr, parts, LANES)
            tried += 1
        if not complete:
            for other in range(parts):
                held = _read_part(
                    *(g_ptr, y_ptr, part * 0 + other, whole),
                    *(ends, columns, SKEWED, PACKED, BLOCK),
                )
                _write_word(words_ptr + other, _sum_of(held, DTYPE, SKEWED, PACKED))
            while not complete:  # until what this program wrote is seen by all its threads
                words, complete = _read_words(words_ptr, parts, LANES)
            # The part is read again, so that it need not be held beside the other ones.
            held = _read_part(g_ptr, y_ptr, part, whole, ends, columns, SKEWED, PACKED, BLOCK)
        total = tl.sum(words.to(tl.uint32).to(tl.float32, bitcast=True), axis=0)

    if SKEWED:
        grads = grad_of(held.ends_g, held.ends_y, total, scale, tl.float32)
        tl.store(out_ptr + ends, grads.to(DTYPE), mask=(ends < columns) & (part == 0))
    if PACKED:
        first_g, second_g = halves(opaque_copy(held.g, zero), DTYPE)
        first_y, second_y = halves(opaque_copy(held.y, zero), DTYPE)
        first = grad_of(first_g, first_y, total, scale, tl.float32)
        grads = side_by_side(first, grad_of(second_g, second_y, total, scale, tl.float32))
    else:
        grads = grad_of(held.g, held.y, total, scale, tl.float32)
    cols = part * BLOCK + tl.arange(0, BLOCK).to(rows.dtype)
    tl.store(out_ptr + cols, grads.to(DTYPE), mask=cols < whole, eviction_policy="evict_first")
