"""The backward kernels for rows that are held in registers ("tile") and read twice ("long")."""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._softmax.device import (
    broadcast_row_stat,
    end_columns,
    pointers,
    program_rows,
    row_start,
    row_starts,
    rows_beside,
    unaligned_prefix,
)
from warpcall_kernels._softmax.forward_long import BOTH, RESULTS, SUMS, part_of_row

# As in `_softmax.forward`.
UNSPECIALIZED = ("columns", "outer", "count", "g_strides", "y_strides", "out_strides")
UNALIGNED = ("inner", "stride_gk", "stride_yk")


@triton.jit
def grad_of(
    g: tl.tensor, y: tl.tensor, total: tl.tensor, scale: tl.tensor, ACC: tl.constexpr
) -> tl.tensor:
    """The gradient of x; it is 0 where y is 0, even if g is NaN or infinite there."""
    return tl.where(y == 0.0, 0.0, y * (g - total) * tl.full([], scale, ACC))


@triton.jit
def _terms(
    g_ptrs: tl.tensor,
    y_ptrs: tl.tensor,
    read: tl.tensor,
    EVEN: tl.constexpr,
    ACC: tl.constexpr,
    KEEP: tl.constexpr,
) -> tl.tensor:
    """The gradient g, replaced by 0 where y is 0, and y."""
    if EVEN:
        g, y = tl.load(g_ptrs).to(ACC), tl.load(y_ptrs).to(ACC)
    else:
        g = tl.load(g_ptrs, mask=read, other=0.0, eviction_policy=KEEP).to(ACC)
        y = tl.load(y_ptrs, mask=read, other=0.0, eviction_policy=KEEP).to(ACC)
    return tl.where(y == 0.0, 0.0, g), y


@triton.jit
def _store(
    out_ptrs: tl.tensor,
    g: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    scale: tl.tensor,
    inside: tl.tensor,
    ACC: tl.constexpr,
    KEEP: tl.constexpr,
) -> None:
    grad = grad_of(g, y, total, scale, ACC)
    tl.store(out_ptrs, grad.to(out_ptrs.dtype.element_ty), mask=inside, eviction_policy=KEEP)


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNALIGNED)
def masked_softmax_backward_kernel(
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
    stride_gk: tl.tensor,
    stride_yk: tl.tensor,
    EVEN: tl.constexpr,
    SKEWED: tl.constexpr,
    G_BESIDE: tl.constexpr,
    Y_BESIDE: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    place, rows, exist = program_rows(ROWS, ROWS, outer, inner, count, WIDE)
    head = rows * 0
    if SKEWED:
        head = unaligned_prefix(place, rows, out_strides, ALIGN)
    g_starts = row_starts(place, rows, g_strides, head, SKEWED, ALIGN)
    y_starts = row_starts(place, rows, y_strides, head, SKEWED, ALIGN)
    out_starts = row_starts(place, rows, out_strides, head, SKEWED, ALIGN)
    g_ptr += g_starts.base
    y_ptr += y_starts.base
    out_ptr += out_starts.base
    g_at, y_at, out_at = g_starts.steps, y_starts.steps, out_starts.steps
    head = head[:, None]
    if SKEWED:
        columns -= head  # positions are counted from the first whole group of a row
    whole = columns // ALIGN * ALIGN
    cols = tl.arange(0, BLOCK).to(rows.dtype)[None, :]
    read = cols < whole
    if (
        G_BESIDE or Y_BESIDE
    ):  # neighbouring lanes read neighbouring rows, and none past the last one
        read = read & exist
    if G_BESIDE:
        g_at = rows_beside(rows)
    if Y_BESIDE:
        y_at = rows_beside(rows)
    g_ptrs = pointers(g_ptr, g_at, cols * stride_gk, SKEWED)
    y_ptrs = pointers(y_ptr, y_at, cols * stride_yk, SKEWED)
    g, y = _terms(g_ptrs, y_ptrs, read, EVEN, ACC, "")
    total = broadcast_row_stat(tl.sum(g * y, axis=1), SKEWED)
    if SKEWED:
        ends = end_columns(head, whole, columns, ALIGN)
        ends_g, ends_y = _terms(
            g_ptr + g_at + ends, y_ptr + y_at + ends, ends < columns, False, ACC, ""
        )
        total += broadcast_row_stat(tl.sum(ends_g * ends_y, axis=1), SKEWED)
        ends_ptrs = out_ptr + out_at + ends
        _store(ends_ptrs, ends_g, ends_y, total, scale, exist & (ends < columns), ACC, "")
    _store(
        pointers(out_ptr, out_at, cols, SKEWED), g, y, total, scale, exist & (cols < whole), ACC, ""
    )


@triton.jit(do_not_specialize=(*UNSPECIALIZED, "parts"), do_not_specialize_on_alignment=UNALIGNED)
def masked_softmax_backward_long_kernel(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    out_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    outer: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    g_strides: tl.tensor,
    y_strides: tl.tensor,
    out_strides: tl.tensor,
    stride_gk: tl.tensor,
    stride_yk: tl.tensor,
    parts: tl.tensor,
    step: tl.tensor,
    SKEWED: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    ACC: tl.constexpr,
    PASS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row, read twice: for the sum, and from its end, out of the L2 cache, for the result.

    Of few rows, several programs have a part each, and each pass is a launch, as in
    `_softmax.forward_long`: the first one stores the sum of each part.
    """
    place, rows, _ = program_rows(1, 1, outer, inner, count, WIDE, parts)
    head = rows * 0
    if SKEWED:
        head = unaligned_prefix(place, rows, out_strides, ALIGN)
    g_ptr += row_start(row_starts(place, rows, g_strides, head, SKEWED, ALIGN), ALIGN)
    y_ptr += row_start(row_starts(place, rows, y_strides, head, SKEWED, ALIGN), ALIGN)
    out_ptr += row_start(row_starts(place, rows, out_strides, head, SKEWED, ALIGN), ALIGN)
    columns = columns.to(rows.dtype) - tl.max(head, axis=0)
    whole = columns // ALIGN * ALIGN
    part, begin, end = part_of_row(whole, parts, step, PASS)
    block = tl.arange(0, BLOCK).to(rows.dtype)
    if SKEWED:  # the first part has both ends of the row
        ends = tl.ravel(end_columns(head[:, None], whole, columns, ALIGN))
        inside = (ends < columns) & (part == 0)
        ends_g, ends_y = _terms(g_ptr + ends, y_ptr + ends, inside, False, ACC, "")
    if PASS != BOTH:
        stats_ptr += ((place.outer * inner + place.inner) * count + place.row) * parts
    if PASS == RESULTS:
        lane = tl.arange(0, LANES)
        total = tl.sum(tl.load(stats_ptr + lane, mask=lane < parts, other=0.0), axis=0)
    else:
        products = tl.zeros([BLOCK], ACC)
        for first in range(begin, end, BLOCK):
            cols = first + block
            g_ptrs, y_ptrs = g_ptr + cols * stride_gk, y_ptr + cols * stride_yk
            g, y = _terms(g_ptrs, y_ptrs, cols < end, False, ACC, "evict_last")
            products += g * y
        total = tl.sum(products, axis=0)
        if SKEWED:
            total += tl.sum(ends_g * ends_y, axis=0)
    if PASS == SUMS:
        tl.store(stats_ptr + part, total)
        return
    if SKEWED:
        _store(out_ptr + ends, ends_g, ends_y, total, scale, inside, ACC, "")
    last = begin + (end - begin + (BLOCK - 1)) // BLOCK * BLOCK - BLOCK
    for back in range(0, end - begin, BLOCK):
        cols = last - back + block
        g_ptrs, y_ptrs = g_ptr + cols * stride_gk, y_ptr + cols * stride_yk
        g, y = _terms(g_ptrs, y_ptrs, cols < end, False, ACC, "evict_first")
        _store(out_ptr + cols, g, y, total, scale, cols < end, ACC, "evict_first")
