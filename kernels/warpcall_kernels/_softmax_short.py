"""The kernels of masked softmax and of its gradient for rows of a few positions that begin anywhere.

A program takes rows that lie side by side as one run. What is to be reduced goes through shared memory
once, so that a thread gets whole rows and needs no other thread; what that leaves of each row goes back,
and the result is computed where the run was read. What is left of a block beyond the row's length costs
nothing, for the length is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl

from warpcall_kernels import _softmax
from warpcall_kernels._softmax import place, row_limits, start
from warpcall_kernels._softmax_forward import factor_of
from warpcall_kernels._torch import VECTOR_BYTES

MOST_COLUMNS = 32  # a thread holds so many
ALIGN_BYTES = 4  # rows that begin at more than this do well as tiles
WARPS = 4  # of one, Triton gathers by shuffles: 10 times the instructions
THREAD_POSITIONS = 32  # at least so many, of one row or several
NARROW = (
    True  # a position at a time, so that neighbours in shared memory belong to neighbouring threads
)


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
            "NARROW": NARROW,
            "num_warps": self.warps,
        }


@triton.jit
def _positions(
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr, NARROW: tl.constexpr
) -> tl.tensor:
    """The positions of a run, the row of each, and its column."""
    run = tl.arange(0, RUN)
    if NARROW:  # backwards, so that the compiler sees nothing worth a wide access
        run = (RUN - 1) - run
    return run, tl.minimum(run // COLUMNS, ROWS - 1), run % COLUMNS


@triton.jit
def _by_rows(
    values: tl.tensor,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
    NARROW: tl.constexpr,
) -> tl.tensor:
    """Values of a run as [BLOCK, ROWS], of which a thread has whole rows."""
    turned = tl.arange(0, BLOCK * ROWS)
    col = tl.minimum(turned // ROWS, COLUMNS - 1)
    row = tl.minimum(turned % ROWS, RUN // COLUMNS - 1)
    at = row * COLUMNS + col
    if NARROW:
        at = (RUN - 1) - at
    return tl.reshape(tl.gather(values, at, axis=0), (BLOCK, ROWS))


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
    NARROW: tl.constexpr,
) -> None:
    PREFIX: tl.constexpr = CAUSAL or (lengths_ptr is not None)
    at, rows, _ = place(ROWS, TAKEN, places, inner, count, WIDE)
    begin = start(at, out_strides, GROUP)
    run, row, col = _positions(COLUMNS, ROWS, RUN, NARROW)
    counts = run < tl.minimum(count - at[2], TAKEN).to(tl.int32) * COLUMNS
    inside = counts
    x = tl.load(x_ptr + begin + run, mask=inside, other=float("-inf")).to(ACC)
    if not FOLDED:
        x *= tl.full([], scale, ACC)
    if PREFIX:
        limit = row_limits(
            lengths_ptr, at, lengths_strides, q_strides, rows, columns, diagonal, CAUSAL
        )
        counts = counts & (col < tl.gather(limit.to(tl.int32), row, axis=0))
    if mask_ptr is not None:
        mask_at = col * stride_mk
        if not SHARED:
            mask_at += row.to(rows.dtype) * mask_strides[2]
        masked = tl.load(mask_ptr + start(at, mask_strides, 1) + mask_at, mask=inside, other=1)
        counts = counts & (masked == 0)
    x = tl.where(counts, x, float("-inf"))

    factor = factor_of(scale, FOLDED, ACC)
    turned = _by_rows(x, COLUMNS, ROWS, BLOCK, RUN, NARROW)
    top = tl.max(turned, axis=0)
    y = tl.exp2((turned - top[None, :]) * factor)
    y = tl.where(
        tl.arange(0, BLOCK)[:, None] < COLUMNS, y, -0.0
    )  # the compiler drops what adds -0.0
    share = 1.0 / tl.sum(y, axis=0)
    y = tl.exp2((x - tl.gather(top, row, axis=0)) * factor) * tl.gather(share, row, axis=0)
    if PREFIX or mask_ptr is not None:  # where all is masked, and where a NaN counts, y is NaN
        y = tl.where(counts, y, 0.0)
    tl.store(out_ptr + begin + run, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=("places", "count", "g_strides", "y_strides", "out_strides"),
    do_not_specialize_on_alignment=("inner",),
)
def masked_softmax_backward_short_kernel(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float64,
    places: tl.tensor,
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
    NARROW: tl.constexpr,
) -> None:
    at, _, _ = place(ROWS, TAKEN, places, inner, count, WIDE)
    run, row, _ = _positions(COLUMNS, ROWS, RUN, NARROW)
    inside = run < tl.minimum(count - at[2], TAKEN).to(tl.int32) * COLUMNS
    g = tl.load(g_ptr + start(at, g_strides, GROUP) + run, mask=inside, other=0.0).to(ACC)
    y = tl.load(y_ptr + start(at, y_strides, GROUP) + run, mask=inside, other=0.0).to(ACC)
    g = tl.where(y == 0.0, 0.0, g)
    turned = _by_rows(g * y, COLUMNS, ROWS, BLOCK, RUN, NARROW)
    turned = tl.where(tl.arange(0, BLOCK)[:, None] < COLUMNS, turned, -0.0)
    total = tl.gather(tl.sum(turned, axis=0), row, axis=0)
    grad = tl.where(y == 0.0, 0.0, y * (g - total) * tl.full([], scale, ACC))
    begin = start(at, out_strides, GROUP)
    tl.store(out_ptr + begin + run, grad.to(out_ptr.dtype.element_ty), mask=inside)
