"""The kernels of masked softmax and of its gradient for rows of a few positions that begin anywhere.

A program takes rows that together begin at 16 bytes. They are read as one run and turned in shared memory
so that a thread holds a row: then a row's maximum and sum need no other thread, and what is left of a block
beyond the row's length costs nothing, for the length is a constant. Softmax turns the rows, read in whole
accesses, and turns the result back. Its gradient has two operands: it turns their products, and turns back
one sum of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl

from warpcall_kernels._softmax import rows as _softmax
from warpcall_kernels._softmax.backward import PLAIN, grad_of
from warpcall_kernels._softmax.forward import factor_of, zero_masked_nans
from warpcall_kernels._softmax.rows import program_rows, row_limits, row_offset
from warpcall_kernels.op.launch import VECTOR_BYTES

# A thread holds so many. On an H200: 17 bf16 64 us, as tiles 121; but 34 fp16 84 and 77, 63 fp16 120 and 52.
MOST_COLUMNS = 32
ALIGN_BYTES = 4  # rows that begin at more than this do well as tiles
WARPS = 4  # of one, Triton gathers by shuffles: 10 times the instructions
THREAD_POSITIONS = 32  # at least so many, of one row or several


class Run(NamedTuple):
    """How many rows a program takes, and the powers of two for rows and positions."""

    taken: int
    rows: int
    length: int
    warps: int

    @staticmethod
    def of(
        columns: int,
        itemsize: int,
        align: int,
        operands: Sequence[Sequence[int]],
        out: Sequence[int],
        column_strides: Sequence[int],
        addresses: Sequence[int],
    ) -> Run | None:
        """The run for rows of so many positions, or None where another kernel serves them.

        Args:
            columns, itemsize: of a row, and of a position of it.
            align: positions; what divides where rows begin.
            operands, out, column_strides, addresses: as in `_softmax.has_skewed_rows`.
        """
        group = VECTOR_BYTES // itemsize
        packed = all(s[2] == columns for s in (*operands, out))
        begins = all(n % group == 0 for s in (*operands, out) for n in s[:2])
        one_run = packed and begins and all(s == 1 for s in column_strides) and not any(addresses)
        if not (1 < columns <= MOST_COLUMNS and align * itemsize <= ALIGN_BYTES and one_run):
            return None
        rows = 32 * WARPS * max(1, THREAD_POSITIONS // triton.next_power_of_2(columns))
        length = triton.next_power_of_2(rows * columns)
        whole = Run(rows, rows, length, WARPS)
        half = Run(length // 2 // columns // group * group, rows, length // 2, WARPS)
        return min(whole, half, key=lambda run: (2 * rows * columns + run.length) / run.taken)

    def constants(self, columns: int, itemsize: int) -> dict[str, Any]:
        """What a kernel is compiled for."""
        return {
            "GROUP": VECTOR_BYTES // itemsize,
            "COLUMNS": columns,
            "TAKEN": self.taken,
            "ROWS": self.rows,
            "BLOCK": triton.next_power_of_2(columns),
            "RUN": self.length,
            "num_warps": self.warps,
        }


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
    """Rows that are the first `length` positions from `x_ptr`."""
    run = tl.arange(0, RUN)
    words = tl.load(x_ptr + run, mask=run < length)
    # From positions of a run to positions by rows, of which a thread has all.
    turned = tl.arange(0, BLOCK * ROWS)
    col = tl.minimum(turned // ROWS, COLUMNS - 1)
    row = tl.minimum(turned % ROWS, RUN // COLUMNS - 1)
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
    y = tl.where(cols < COLUMNS, y, -0.0)  # the compiler drops what adds -0.0
    total = tl.sum(y, axis=0)
    y *= (1.0 / total)[None, :]
    if PREFIX or mask_ptrs is not None:  # as in `_softmax_tile`
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
    else:  # other than above, or else the compiler makes one store of both, of single positions
        tl.store(out_ptr + run, words, mask=run < length, cache_modifier=".wb")


@triton.jit(do_not_specialize=_softmax.PLAIN, do_not_specialize_on_alignment=_softmax.UNALIGNED)
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
    at, rows, _ = program_rows(ROWS, TAKEN, outer, inner, count, WIDE)
    x_ptr += row_offset(at, x_strides, GROUP)
    out_ptr += row_offset(at, out_strides, GROUP)
    limit = COLUMNS
    if PREFIX:
        limit = row_limits(
            lengths_ptr, at, lengths_strides, q_strides, rows, columns, diagonal, CAUSAL
        )[None, :]
    mask_ptrs = mask_ptr
    if mask_ptr is not None:
        cols = tl.arange(0, BLOCK)[:, None]
        mask_ptrs = mask_ptr + row_offset(at, mask_strides, 1) + cols * stride_mk
        if not SHARED:
            mask_ptrs += (rows * mask_strides[2])[None, :]
    if count - at[2] >= TAKEN:
        _softmax_run(
            x_ptr,
            mask_ptrs,
            *(out_ptr, scale, TAKEN * COLUMNS, limit),
            *(True, PREFIX, FOLDED, ACC, COLUMNS, ROWS, BLOCK, RUN),
        )
    else:  # the last rows, which need not end with a whole group
        _softmax_run(
            x_ptr,
            mask_ptrs,
            *(out_ptr, scale, (count - at[2]).to(tl.int32) * COLUMNS, limit),
            *(False, PREFIX, FOLDED, ACC, COLUMNS, ROWS, BLOCK, RUN),
        )


@triton.jit(do_not_specialize=PLAIN, do_not_specialize_on_alignment=("inner",))
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
    at, _, _ = program_rows(ROWS, TAKEN, outer, inner, count, WIDE)
    # Backwards, so that the compiler sees nothing worth a wide access: a thread takes a position at a time,
    # and neighbours in shared memory belong to neighbouring threads.
    run = (RUN - 1) - tl.arange(0, RUN)
    inside = run < tl.minimum(count - at[2], TAKEN).to(tl.int32) * COLUMNS
    g = tl.load(g_ptr + row_offset(at, g_strides, GROUP) + run, mask=inside, other=0.0).to(ACC)
    y = tl.load(y_ptr + row_offset(at, y_strides, GROUP) + run, mask=inside, other=0.0).to(ACC)
    g = tl.where(y == 0.0, 0.0, g)
    turned = tl.arange(0, BLOCK * ROWS)
    col = tl.minimum(turned // ROWS, COLUMNS - 1)
    row = tl.minimum(turned % ROWS, RUN // COLUMNS - 1)
    products = tl.gather(g * y, (RUN - 1) - (row * COLUMNS + col), axis=0)
    products = tl.reshape(products, (BLOCK, ROWS))
    # the compiler drops what adds -0.0
    products = tl.where(tl.arange(0, BLOCK)[:, None] < COLUMNS, products, -0.0)
    total = tl.gather(tl.sum(products, axis=0), tl.minimum(run // COLUMNS, ROWS - 1), axis=0)
    grad = grad_of(g, y, total, scale, ACC)
    begin = row_offset(at, out_strides, GROUP)
    tl.store(out_ptr + begin + run, grad.to(out_ptr.dtype.element_ty), mask=inside)
