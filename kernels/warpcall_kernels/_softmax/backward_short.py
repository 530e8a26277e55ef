"""The backward kernel for rows of a few positions: see `_softmax.short_rows`."""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._softmax.backward import UNSPECIALIZED, grad_of
from warpcall_kernels._softmax.device import program_rows, row_offset
from warpcall_kernels._softmax.short_rows import (
    of_each_row,
    pack,
    read_run,
    to_groups,
    to_run,
    unpack,
    write_run,
)


@triton.jit
def _backward_run(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.tensor,
    positions: tl.tensor,
    FULL: tl.constexpr,
    ACC: tl.constexpr,
    WORD: tl.constexpr,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PER: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    RUN: tl.constexpr,
) -> None:
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    g_run = read_run(g_ptr, positions, FULL, WORD, BITS, PER, RUN)
    y_run = read_run(y_ptr, positions, FULL, WORD, BITS, PER, RUN)
    g_words = to_groups(g_run, COLUMNS, BLOCK, GROUPS)
    y_words = to_groups(y_run, COLUMNS, BLOCK, GROUPS)
    word = tl.arange(0, BLOCK)[:, None]
    totals: tl.tuple = ()
    for r in tl.static_range(PER):
        total = tl.full([GROUPS], -0.0, ACC)  # the compiler drops additions of -0.0
        for i in tl.static_range(PER):
            y = unpack(y_words, i, BITS, DTYPE, ACC)
            g = tl.where(y == 0.0, 0.0, unpack(g_words, i, BITS, DTYPE, ACC))
            total += tl.sum(tl.where((word * PER + i) // COLUMNS == r, g * y, -0.0), axis=0)
        totals = totals + (total,)  # noqa: RUF005
    words = tl.zeros([BLOCK, GROUPS], WORD)
    for i in tl.static_range(PER):
        y = unpack(y_words, i, BITS, DTYPE, ACC)
        g = unpack(g_words, i, BITS, DTYPE, ACC)
        total = of_each_row(totals, (word * PER + i) // COLUMNS, PER)
        grad = tl.where(word < COLUMNS, grad_of(g, y, total, scale, ACC), 0.0)
        words |= pack(grad, i, WORD, BITS, DTYPE)
    words = to_run(words, COLUMNS, BLOCK, GROUPS, RUN)
    write_run(out_ptr, words, positions, FULL, WORD, BITS, PER, RUN)


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=("inner",))
def masked_softmax_backward_short_kernel(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    outer: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    g_strides: tl.tensor,
    y_strides: tl.tensor,
    out_strides: tl.tensor,
    WIDE: tl.constexpr,
    ACC: tl.constexpr,
    WORD: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    TAKEN: tl.constexpr,
    PER: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    RUN: tl.constexpr,
) -> None:
    place, _, _ = program_rows(1, TAKEN, outer, inner, count, WIDE)
    g_ptr += row_offset(place, g_strides, GROUP)
    y_ptr += row_offset(place, y_strides, GROUP)
    out_ptr += row_offset(place, out_strides, GROUP)
    taken = tl.minimum(count - place.row, TAKEN).to(tl.int32)
    if taken == TAKEN:
        _backward_run(
            *(g_ptr, y_ptr, out_ptr, scale, TAKEN * COLUMNS),
            *(True, ACC, WORD, BITS, COLUMNS, PER, BLOCK, GROUPS, RUN),
        )
    else:  # the last rows, which need not end with a whole word
        _backward_run(
            *(g_ptr, y_ptr, out_ptr, scale, taken * COLUMNS),
            *(False, ACC, WORD, BITS, COLUMNS, PER, BLOCK, GROUPS, RUN),
        )
