"""The kernel of masked softmax for rows of a few positions that begin anywhere.

A program takes rows that together begin at 16 bytes. They are read as one run, in whole accesses, and
turned in shared memory so that a thread holds a row: then a row's maximum and sum need no other thread,
and what is left of a block beyond the row's length costs nothing, for the length is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl

from warpcall_kernels import _softmax
from warpcall_kernels._softmax import place, row_limits, start
from warpcall_kernels._softmax_forward import factor_of, without_nan
from warpcall_kernels._torch import VECTOR_BYTES

MOST_COLUMNS = 64  # a thread holds so many
ALIGN_BYTES = 4  # rows that begin at more than this do well as tiles
WARPS = 4


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
            operands, out, column_strides, addresses: as in `_softmax.has_edges`.
        """
        group = VECTOR_BYTES // itemsize
        packed = all(s[2] == columns for s in (*operands, out))
        begins = all(n % group == 0 for s in (*operands, out) for n in s[:2])
        one_run = packed and begins and all(s == 1 for s in column_strides) and not any(addresses)
        if not (1 < columns <= MOST_COLUMNS and align * itemsize <= ALIGN_BYTES and one_run):
            return None
        rows = 32 * WARPS
        length = triton.next_power_of_2(rows * columns)
        fewer = length // 2 // columns // group * group
        if 2 * fewer > rows:  # in half the run: fewer lanes are idle
            return Run(fewer, rows, length // 2, WARPS)
        return Run(rows, rows, length, WARPS)


@triton.jit
def _load_run(ptr: tl.tensor, run: tl.tensor, count: tl.tensor, GROUP: tl.constexpr) -> tl.tensor:
    if count % GROUP == 0:
        words = tl.load(ptr + run, mask=run < count // GROUP * GROUP)
    else:  # the end of the tensor
        words = tl.load(ptr + run, mask=run < count)
    return words


@triton.jit
def _store_run(
    ptr: tl.tensor, run: tl.tensor, words: tl.tensor, count: tl.tensor, GROUP: tl.constexpr
) -> None:
    if count % GROUP == 0:
        tl.store(ptr + run, words, mask=run < count // GROUP * GROUP)
    else:
        tl.store(ptr + run, words, mask=run < count)


@triton.jit(do_not_specialize=_softmax.PLAIN, do_not_specialize_on_alignment=_softmax.UNALIGNED)
def masked_softmax_short_kernel(
    x_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    places: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    diagonal: tl.tensor,
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
    at, rows, _ = place(ROWS, TAKEN, places, inner, count, WIDE)
    begin = start(at, out_strides, GROUP)
    run = tl.arange(0, RUN)
    length = tl.minimum(count - at[2], TAKEN).to(tl.int32) * COLUMNS
    words = _load_run(x_ptr + begin, run, length, GROUP)

    # From a run of rows to positions by rows, of which a thread has one.
    turned = tl.arange(0, BLOCK * ROWS)
    col, row = turned // ROWS, turned % ROWS
    inside = (col < COLUMNS) & (row < TAKEN)
    words = tl.gather(words, tl.where(inside, row * COLUMNS + col, 0), axis=0)
    x = tl.reshape(words, (BLOCK, ROWS)).to(ACC)
    if not FOLDED:
        x *= tl.full([], scale, ACC)
    cols = tl.arange(0, BLOCK)[:, None]
    limit = COLUMNS
    if PREFIX:
        limit = row_limits(
            lengths_ptr, at, lengths_strides, q_strides, rows, columns, diagonal, CAUSAL
        )[None, :]
    x = tl.where(cols < limit, x, float("-inf"))
    mask_ptrs = mask_ptr
    if mask_ptr is not None:
        mask_ptrs = mask_ptr + start(at, mask_strides, 1) + cols * stride_mk
        if not SHARED:
            mask_ptrs += (rows * mask_strides[2])[None, :]
        masked = tl.load(mask_ptrs, mask=cols < COLUMNS, other=1)
        x = tl.where(masked == 0, x, float("-inf"))

    y = tl.exp2((x - tl.max(x, axis=0)[None, :]) * factor_of(scale, FOLDED, ACC))
    total = tl.sum(y, axis=0)
    y *= (1.0 / total)[None, :]
    if PREFIX or mask_ptr is not None:  # as in `_softmax_tile`
        odd = tl.max((total != total).to(tl.int32), axis=0)  # noqa: PLR0124  # so NaN is found
        if odd != 0:
            y = without_nan(y, mask_ptrs, cols < COLUMNS, cols, limit, odd, PREFIX, False, False)
    words = tl.reshape(y.to(out_ptr.dtype.element_ty), (BLOCK * ROWS,))
    row, col = run // COLUMNS, run % COLUMNS
    words = tl.gather(words, tl.where(row < TAKEN, col * ROWS + row, 0), axis=0)
    _store_run(out_ptr + begin, run, words, length, GROUP)
