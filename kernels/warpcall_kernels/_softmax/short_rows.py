"""The kernels of masked softmax and its backward for rows of a few positions: the variant "short".

Such rows begin anywhere, but a program takes several that together begin at 16 bytes. It reads them
as one run of positions and transposes the run in shared memory, so that a thread holds whole rows.
Then the maximum and the sum of a row need no other thread. The length of a row is a compile-time
constant, so the positions of the block beyond it cost nothing. The forward kernel transposes the
rows, which it reads by whole accesses, and transposes the result back. The backward kernel has two
operands: it transposes their products, and transposes back one sum for each row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from warpcall_kernels._softmax import backward, forward
from warpcall_kernels._softmax.backward import grad_of
from warpcall_kernels._softmax.constants import (
    SHORT_COLUMNS,
    SHORT_THREAD_POSITIONS,
    SHORT_WARPS,
)
from warpcall_kernels._softmax.device import program_rows, row_limits, row_offset
from warpcall_kernels._softmax.forward import factor_of, zero_masked_nans
from warpcall_kernels._softmax.rows import RowLayout


class RowRun(NamedTuple):
    """The rows of a program, which are one run of positions.

    Blocks have powers of two of rows and of positions, so a run may have fewer rows than its block.
    """

    taken: int  # rows of the run
    rows: int  # rows of the block
    length: int  # positions of the block that is read
    warps: int

    def constants(self, layout: RowLayout) -> dict[str, Any]:
        """What a kernel is compiled for."""
        return {
            "GROUP": layout.group,
            "COLUMNS": layout.columns,
            "TAKEN": self.taken,
            "ROWS": self.rows,
            "BLOCK": triton.next_power_of_2(layout.columns),
            "RUN": self.length,
            "num_warps": self.warps,
        }


def is_run(layout: RowLayout) -> bool:
    """Whether rows are short, begin anywhere, and lie without gaps from 16 aligned bytes on."""
    operands = (*layout.operands, layout.out)
    return (
        1 < layout.columns <= SHORT_COLUMNS
        and layout.narrow
        and all(strides.row == layout.columns for strides in operands)
        and all(n % layout.group == 0 for s in operands for n in (s.outer, s.inner))
        and all(stride == 1 for stride in layout.column_strides)
        and not any(layout.addresses)
    )


def plan_run(layout: RowLayout) -> RowRun:
    """The run that a program takes: the one with the least work for each row."""
    columns = layout.columns
    threads = 32 * SHORT_WARPS
    rows = threads * max(1, SHORT_THREAD_POSITIONS // triton.next_power_of_2(columns))
    length = triton.next_power_of_2(rows * columns)
    whole = RowRun(rows, rows, length, SHORT_WARPS)
    fewer = length // 2 // columns // layout.group * layout.group
    half = RowRun(fewer, rows, length // 2, SHORT_WARPS)
    return min(whole, half, key=lambda run: (2 * rows * columns + run.length) / run.taken)


@triton.jit
def _softmax_run(
    x_ptr: tl.tensor,
    mask_ptrs: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.tensor,
    length: tl.tensor,
    limit: tl.tensor,
    FULL: tl.constexpr,
    PREFIX: tl.constexpr,
    FOLDED: tl.constexpr,
    ACC: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
) -> None:
    """Softmax of the rows that are the first `length` positions from `x_ptr` on."""
    run = tl.arange(0, RUN)
    words = tl.load(x_ptr + run, mask=run < length)
    # Transpose the run: a thread gets all positions of its rows.
    transposed = tl.arange(0, BLOCK * ROWS)
    col = tl.minimum(transposed // ROWS, COLUMNS - 1)
    row = tl.minimum(transposed % ROWS, RUN // COLUMNS - 1)
    words = tl.gather(words, row * COLUMNS + col, axis=0)
    x = tl.reshape(words, (BLOCK, ROWS)).to(ACC)
    if not FOLDED:
        x *= tl.full([], scale, ACC)
    cols = tl.arange(0, BLOCK)[:, None]
    x = tl.where(cols < limit, x, float("-inf"))
    if mask_ptrs is not None:
        masked = tl.load(mask_ptrs, mask=cols < COLUMNS, other=1)
        x = tl.where(masked == 0, x, float("-inf"))

    y = tl.exp2((x - tl.max(x, axis=0)[None, :]) * factor_of(scale, FOLDED, ACC))
    y = tl.where(cols < COLUMNS, y, -0.0)  # the compiler drops additions of -0.0
    total = tl.sum(y, axis=0)
    y *= (1.0 / total)[None, :]
    if PREFIX or mask_ptrs is not None:  # as in `forward._softmax_tile`
        has_nan = tl.max((total != total).to(tl.int32), axis=0)  # noqa: PLR0124  # so NaN is found
        if has_nan != 0:
            y = zero_masked_nans(
                y, mask_ptrs, cols < COLUMNS, cols, limit, has_nan, PREFIX, False, False
            )
    words = tl.reshape(y.to(out_ptr.dtype.element_ty), (BLOCK * ROWS,))
    row, col = tl.minimum(run // COLUMNS, ROWS - 1), run % COLUMNS
    words = tl.gather(words, col * ROWS + row, axis=0)
    if FULL:
        tl.store(out_ptr + run, words, mask=run < length)
    else:  # with a modifier, or else the compiler merges both stores into one of single positions
        tl.store(out_ptr + run, words, mask=run < length, cache_modifier=".wb")


@triton.jit(
    do_not_specialize=forward.UNSPECIALIZED, do_not_specialize_on_alignment=forward.UNALIGNED
)
def masked_softmax_short_kernel(
    x_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    outer: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    diagonal: tl.tensor,
    x_strides: tl.tensor,
    mask_strides: tl.tensor,
    lengths_strides: tl.tensor,
    q_strides: tl.tensor,
    out_strides: tl.tensor,
    stride_mk: tl.tensor,
    CAUSAL: tl.constexpr,
    SHARED: tl.constexpr,
    FOLDED: tl.constexpr,
    WIDE: tl.constexpr,
    ACC: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    TAKEN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
) -> None:
    PREFIX: tl.constexpr = CAUSAL or (lengths_ptr is not None)
    place, rows, _ = program_rows(ROWS, TAKEN, outer, inner, count, WIDE)
    x_ptr += row_offset(place, x_strides, GROUP)
    out_ptr += row_offset(place, out_strides, GROUP)
    limit = COLUMNS
    if PREFIX:
        limit = row_limits(
            lengths_ptr, place, lengths_strides, q_strides, rows, columns, diagonal, CAUSAL
        )[None, :]
    mask_ptrs = mask_ptr
    if mask_ptr is not None:
        cols = tl.arange(0, BLOCK)[:, None]
        mask_ptrs = mask_ptr + row_offset(place, mask_strides, 1) + cols * stride_mk
        if not SHARED:
            mask_ptrs += (rows * mask_strides.row)[None, :]
    if count - place.row >= TAKEN:
        _softmax_run(
            x_ptr,
            mask_ptrs,
            *(out_ptr, scale, TAKEN * COLUMNS, limit),
            *(True, PREFIX, FOLDED, ACC, COLUMNS, ROWS, BLOCK, RUN),
        )
    else:  # the last rows, which need not end with a whole group of 16 bytes
        _softmax_run(
            x_ptr,
            mask_ptrs,
            *(out_ptr, scale, (count - place.row).to(tl.int32) * COLUMNS, limit),
            *(False, PREFIX, FOLDED, ACC, COLUMNS, ROWS, BLOCK, RUN),
        )


@triton.jit(do_not_specialize=backward.UNSPECIALIZED, do_not_specialize_on_alignment=("inner",))
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
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    TAKEN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
) -> None:
    place, _, _ = program_rows(ROWS, TAKEN, outer, inner, count, WIDE)
    # The positions run backwards, because the compiler would otherwise choose wide accesses. So a
    # thread takes one position at a time, and neighbours in shared memory belong to neighbouring
    # threads.
    run = (RUN - 1) - tl.arange(0, RUN)
    inside = run < tl.minimum(count - place.row, TAKEN).to(tl.int32) * COLUMNS
    g = tl.load(g_ptr + row_offset(place, g_strides, GROUP) + run, mask=inside, other=0.0).to(ACC)
    y = tl.load(y_ptr + row_offset(place, y_strides, GROUP) + run, mask=inside, other=0.0).to(ACC)
    g = tl.where(y == 0.0, 0.0, g)
    transposed = tl.arange(0, BLOCK * ROWS)
    col = tl.minimum(transposed // ROWS, COLUMNS - 1)
    row = tl.minimum(transposed % ROWS, RUN // COLUMNS - 1)
    products = tl.gather(g * y, (RUN - 1) - (row * COLUMNS + col), axis=0)
    products = tl.reshape(products, (BLOCK, ROWS))
    # the compiler drops additions of -0.0
    products = tl.where(tl.arange(0, BLOCK)[:, None] < COLUMNS, products, -0.0)
    total = tl.gather(tl.sum(products, axis=0), tl.minimum(run // COLUMNS, ROWS - 1), axis=0)
    grad = grad_of(g, y, total, scale, ACC)
    begin = row_offset(place, out_strides, GROUP)
    tl.store(out_ptr + begin + run, grad.to(out_ptr.dtype.element_ty), mask=inside)
