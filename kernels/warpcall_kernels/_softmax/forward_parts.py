"""Device functions of the kernels that hold parts of rows: the variant "split" of masked softmax.

A row is read once, however long it is. The programs of a row exchange the maximum and the sum of
their parts through words of 64 bits in device memory, which are 0 before the launch.
`_softmax.backward_split` says why a program waits a limited time, and what it does then.

These kernels take as long as their instructions: ncu saw an instruction issued in 72 % of cycles.
So rows of two bytes a position are held as they lie in memory, two positions a register. A thread
finds the maximum and the sum of its own positions before it exchanges them with others. And the
division by the sum is a subtraction in the exponent.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from warpcall_kernels._softmax.device import Place
from warpcall_kernels._softmax.forward_long import base_of
from warpcall_kernels._softmax.packed import as_words, halves, opaque_copy, side_by_side

NOTHING = tl.constexpr(0xFF80000000000000)  # the word of a part in which no position counts


class Stats(NamedTuple):
    """The maximum of some scores, and the sum of their exponentials relative to it."""

    top: tl.tensor
    total: tl.tensor


class Parts(NamedTuple):
    """The words of a row, and how many of its parts have positions that count."""

    words_ptr: tl.tensor
    live: tl.tensor


@triton.jit
def minus_inf_of(DTYPE: tl.constexpr) -> tl.tensor:
    """-inf, or a word of two positions with -inf."""
    if tl.bfloat16 == DTYPE:
        x = tl.full([], 0xFF80FF80, tl.uint32)
    elif tl.float16 == DTYPE:
        x = tl.full([], 0xFC00FC00, tl.uint32)
    else:
        x = tl.full([], float("-inf"), tl.float32)
    return x


@triton.jit
def groups_of_part(ALIGN: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """The groups of 16 bytes of a part: [groups, 1].

    They are counted from the beginning of the part, so that the compiler knows that they are few:
    then their addresses take fewer instructions.
    """
    return tl.arange(0, BLOCK // ALIGN)[:, None]


@triton.jit
def negative_words(words: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """The words with the other sign of each position."""
    if DTYPE.primitive_bitwidth == 16:
        words ^= 0x80008000
    else:
        words = -words
    return words


@triton.jit
def read_groups(
    x_ptr: tl.tensor,
    group: tl.tensor,
    most: tl.tensor,
    NEGATIVE: tl.constexpr,
    ALIGN: tl.constexpr,
) -> tl.tensor:
    """Groups as four words of 4 bytes, and -inf for those from position `most` on.

    If the scale is NEGATIVE, positions are read with the other sign.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    at = group * 4 + tl.arange(0, 4)[None, :]
    inside = group * ALIGN < most
    ptrs = x_ptr + at
    if DTYPE.primitive_bitwidth == 16:
        ptrs = as_words(x_ptr) + at
    if NEGATIVE:
        return negative_words(
            tl.load(ptrs, mask=inside, other=negative_words(minus_inf_of(DTYPE), DTYPE)), DTYPE
        )
    return tl.load(ptrs, mask=inside, other=minus_inf_of(DTYPE))


@triton.jit
def stats_of_groups(
    held: tl.tensor,
    factor: tl.tensor,
    zero: tl.tensor,
    DTYPE: tl.constexpr,
    THREADS: tl.constexpr,
) -> tl.tensor:
    """A thread has every THREADS-th group, and first finds the maximum and the sum of these."""
    held = tl.reshape(held, (held.shape[0] // THREADS, THREADS, 4))
    if DTYPE.primitive_bitwidth == 16:
        first, second = halves(held, DTYPE)
        peak = tl.max(tl.max(tl.maximum(first, second), axis=2), axis=0)
        base = base_of(peak)[None, :, None]
        first, second = halves(opaque_copy(held, 5 * zero), DTYPE)  # see `packed.opaque_copy`
        y = tl.exp2((first - base) * factor) + tl.exp2((second - base) * factor)
    else:
        peak = tl.max(tl.max(held, axis=2), axis=0)
        y = tl.exp2((held - base_of(peak)[None, :, None]) * factor)
    total = tl.sum(tl.sum(y, axis=2), axis=0)
    return combine(peak, total, factor)


@triton.jit
def combine(tops: tl.tensor, totals: tl.tensor, factor: tl.tensor) -> tl.tensor:
    top = tl.max(tops, axis=0)
    return Stats(top, tl.sum(totals * tl.exp2((tops - base_of(top)) * factor), axis=0))


@triton.jit
def write_word(word_ptr: tl.tensor, stats: Stats) -> None:
    """Write the word of a part. Other programs see all of it or nothing, and it is never 0."""
    high = stats.top.to(tl.uint32, bitcast=True).to(tl.uint64) << 32
    word = high | stats.total.to(tl.uint32, bitcast=True).to(tl.uint64)
    tl.atomic_xchg(word_ptr, word, sem="relaxed")


@triton.jit
def _read_words(parts: Parts, LANES: tl.constexpr) -> tl.tensor:
    lane = tl.arange(0, LANES)
    inside = lane < parts.live
    return tl.load(parts.words_ptr + lane, mask=inside, other=NOTHING, volatile=True)


@triton.jit
def all_words_there(parts: Parts, THREADS: tl.constexpr) -> tl.tensor:
    """Whether all words are there.

    Each thread reads at most one word, so that the answer is put together in shared memory and is
    the same for all warps.
    """
    return tl.min((_read_words(parts, THREADS) != 0).to(tl.int32), axis=0) != 0


@triton.jit
def wait_for_words(parts: Parts, tries: tl.tensor, THREADS: tl.constexpr) -> tl.tensor:
    complete = all_words_there(parts, THREADS)
    tried = 0
    while (not complete) & (tried < tries):
        complete = all_words_there(parts, THREADS)
        tried += 1
    return complete


@triton.jit
def stats_of_row(parts: Parts, factor: tl.tensor, LANES: tl.constexpr) -> tl.tensor:
    """The words are read once more, by lanes so few that each warp puts them together itself."""
    words = _read_words(parts, LANES)
    tops = (words >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
    return combine(tops, words.to(tl.uint32).to(tl.float32, bitcast=True), factor)


@triton.jit
def write_groups(
    out_ptr: tl.tensor,
    group: tl.tensor,
    held: tl.tensor,
    stats: Stats,
    factor: tl.tensor,
    whole: tl.tensor,
    zero: tl.tensor,
    ALIGN: tl.constexpr,
) -> None:
    DTYPE: tl.constexpr = out_ptr.dtype.element_ty
    less = tl.log2(stats.total)
    if DTYPE.primitive_bitwidth == 16:
        first, second = halves(opaque_copy(held, zero), DTYPE)
        first = tl.exp2((first - stats.top) * factor - less)
        second = tl.exp2((second - stats.top) * factor - less)
        y = side_by_side(first, second)
    else:
        y = tl.exp2((held - stats.top) * factor - less)
    cols = group * ALIGN + tl.arange(0, ALIGN)[None, :]
    tl.store(out_ptr + cols, y.to(DTYPE), mask=group * ALIGN < whole)


@triton.jit
def place_of_row(first: tl.tensor, outer: tl.tensor, inner: tl.tensor, count: tl.tensor) -> Place:
    index = tl.program_id(2).to(outer.dtype) * tl.num_programs(1) + tl.program_id(1)
    index = tl.minimum(index, outer - 1)
    return Place((index // inner).to(tl.int64), (index % inner).to(tl.int64), first.to(tl.int64))
