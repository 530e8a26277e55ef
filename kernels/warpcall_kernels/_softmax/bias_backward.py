"""The backward kernels of masked softmax with a bias: the gradients of x and of the bias in one pass.

A row of the gradient of the bias is a sum of rows of the gradient of x, before its scale. So a program
owns rows of the bias, goes through the rows of x that have them, writes the gradient of each, and keeps
the sum in registers. Of a bias with few rows several programs have a part of the sum each, and
`add_parts_kernel` adds the parts in one order, so that the same inputs give the same bits. Rows that
do not fit into registers are read twice: `totals_kernel` finds what a row needs to know of its other
positions, and programs then own blocks of positions.
"""

from __future__ import annotations

import triton
import triton.language as tl

OPERANDS = ("g", "y", "out", "row")
DIMS = tuple(f"{kind}_{name}" for kind in ("kept", "summed") for name in ("sizes", *OPERANDS))
COUNTS = ("columns", "kept", "summed", "steps", "parts")
UNALIGNED = ("stride_gk", "stride_yk")


@triton.jit
def _offset(
    index: tl.tensor,
    sizes: tl.tensor,
    strides: tl.tensor,
    NDIM: tl.constexpr,
    ALIGN: tl.constexpr,
) -> tl.tensor:
    """The 64-bit offsets of indices over `sizes` (C order), in elements; ALIGN divides all strides.

    Indices of 32 bits are divided by a third of the instructions that those of 64 bits take.
    """
    if NDIM == 1:
        return tl.multiple_of(index.to(tl.int64) * strides[0], ALIGN)
    total = (index % sizes[NDIM - 1]).to(tl.int64) * strides[NDIM - 1]
    for d in tl.static_range(NDIM - 2, -1, -1):
        index = index // sizes[d + 1]
        total += (index % sizes[d] if d > 0 else index).to(tl.int64) * strides[d]
    return tl.multiple_of(total, ALIGN)


@triton.jit
def _terms(
    g_ptrs: tl.tensor, y_ptrs: tl.tensor, read: tl.tensor, ACC: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The gradient g, replaced by 0 where y is 0, and y."""
    g = tl.load(g_ptrs, mask=read, other=0.0).to(ACC)
    y = tl.load(y_ptrs, mask=read, other=0.0).to(ACC)
    return tl.where(y == 0.0, 0.0, g), y


@triton.jit(
    do_not_specialize=("columns", "parts", "steps", "sizes", "g_strides", "y_strides"),
    do_not_specialize_on_alignment=UNALIGNED,
)
def totals_kernel(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    totals_ptr: tl.tensor,
    columns: tl.tensor,
    parts: tl.tensor,
    steps: tl.tensor,
    sizes: tl.tensor,
    g_strides: tl.tensor,
    y_strides: tl.tensor,
    stride_gk: tl.tensor,
    stride_yk: tl.tensor,
    NDIM: tl.constexpr,
    ALIGN: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The sum of g * y of a part of a row, of `steps` blocks."""
    part = tl.program_id(0) % parts
    row = (tl.program_id(0) // parts).to(tl.int64)
    g_ptr += _offset(row, sizes, g_strides, NDIM, ALIGN)
    y_ptr += _offset(row, sizes, y_strides, NDIM, ALIGN)
    whole = columns.to(tl.int64) // ALIGN * ALIGN
    products = tl.zeros([BLOCK], ACC)
    for step in range(steps):
        cols = (part.to(tl.int64) * steps + step) * BLOCK + tl.arange(0, BLOCK)
        g, y = _terms(g_ptr + cols * stride_gk, y_ptr + cols * stride_yk, cols < whole, ACC)
        products += g * y
    tl.store(totals_ptr + row * parts + part, tl.sum(products, axis=0))


@triton.jit(
    do_not_specialize=(*COUNTS, "total_parts", *DIMS), do_not_specialize_on_alignment=UNALIGNED
)
def masked_softmax_bias_backward_kernel(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    totals_ptr: tl.tensor,
    out_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    kept: tl.tensor,
    summed: tl.tensor,
    steps: tl.tensor,
    parts: tl.tensor,
    total_parts: tl.tensor,
    kept_sizes: tl.tensor,
    kept_g: tl.tensor,
    kept_y: tl.tensor,
    kept_out: tl.tensor,
    kept_row: tl.tensor,
    summed_sizes: tl.tensor,
    summed_g: tl.tensor,
    summed_y: tl.tensor,
    summed_out: tl.tensor,
    summed_row: tl.tensor,
    stride_gk: tl.tensor,
    stride_yk: tl.tensor,
    KEPT_DIMS: tl.constexpr,
    SUMMED_DIMS: tl.constexpr,
    BY_KEPT: tl.constexpr,
    SUM_COLUMNS: tl.constexpr,
    ALIGN: tl.constexpr,
    ACC: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sum `steps` tiles of rows.

    The rows of a tile belong to ROWS rows of the bias if BY_KEPT, and otherwise to one. `kept` are the
    rows of the bias, and `summed` the rows of x of each. With SUM_COLUMNS the bias has one number a row.
    """
    part = tl.program_id(0) % parts
    if WIDE:
        part = part.to(tl.int64)
    owner = (tl.program_id(0) // parts).to(tl.int64)
    TAKEN: tl.constexpr = 1 if BY_KEPT else ROWS  # rows of x of each row of the bias, in a tile
    lane = tl.arange(0, ROWS)
    block = tl.program_id(1).to(tl.int64) * BLOCK
    g_ptr += block * stride_gk
    y_ptr += block * stride_yk
    out_ptr += block
    cols = tl.arange(0, BLOCK)[None, :]
    columns = columns // ALIGN * ALIGN  # the same number, but now the compiler knows a divisor
    inside = cols < (columns - block)
    if BY_KEPT:
        each = owner * ROWS + lane
        exists = each < kept
        index = tl.minimum(each, kept - 1)
        of_bias = index
    else:
        exists = lane >= 0
        index = owner
        of_bias = owner + tl.zeros([1], tl.int64)
    g_ptr += _offset(index, kept_sizes, kept_g, KEPT_DIMS, ALIGN)
    y_ptr += _offset(index, kept_sizes, kept_y, KEPT_DIMS, ALIGN)
    out_ptr += _offset(index, kept_sizes, kept_out, KEPT_DIMS, ALIGN)
    row = _offset(index, kept_sizes, kept_row, KEPT_DIMS, 1)
    first = part * steps
    last = tl.minimum(first + steps, (summed + (TAKEN - 1)) // TAKEN)
    sums = tl.zeros([ROWS, BLOCK], ACC)
    for step in range(first, last):
        if BY_KEPT:
            at = step
        else:
            exists = step * ROWS + lane < summed
            at = tl.minimum(step * ROWS + lane, summed - 1)
        read = exists[:, None] & inside
        g_ptrs = (g_ptr + _offset(at, summed_sizes, summed_g, SUMMED_DIMS, ALIGN))[:, None]
        y_ptrs = (y_ptr + _offset(at, summed_sizes, summed_y, SUMMED_DIMS, ALIGN))[:, None]
        out_ptrs = (out_ptr + _offset(at, summed_sizes, summed_out, SUMMED_DIMS, ALIGN))[:, None]
        g, y = _terms(g_ptrs + cols * stride_gk, y_ptrs + cols * stride_yk, read, ACC)
        if totals_ptr is None:
            total = tl.sum(g * y, axis=1)
        else:
            part_of_row = tl.arange(0, LANES)[None, :]
            rows = row + _offset(at, summed_sizes, summed_row, SUMMED_DIMS, 1)
            ptrs = totals_ptr + (rows * total_parts)[:, None] + part_of_row
            total = tl.sum(tl.load(ptrs, mask=part_of_row < total_parts, other=0.0), axis=1)
        grad = tl.where(y == 0.0, 0.0, y * (g - total[:, None]))
        sums += grad
        grad *= tl.full([], scale, ACC)
        tl.store(out_ptrs + cols, grad.to(out_ptr.dtype.element_ty), mask=read)
    dtype: tl.constexpr = sums_ptr.dtype.element_ty
    if not BY_KEPT:
        sums = tl.sum(sums, axis=0)[None, :]
        exists = of_bias < kept
    if SUM_COLUMNS:
        slot = part.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        ptrs = sums_ptr + slot * kept + of_bias
        tl.store(ptrs, tl.sum(sums, axis=1).to(dtype), mask=exists)
    else:
        ptrs = sums_ptr + ((part.to(tl.int64) * kept + of_bias) * columns + block)[:, None] + cols
        tl.store(ptrs, sums.to(dtype), mask=exists[:, None] & inside)


@triton.jit(do_not_specialize=("slots", "numel"))
def add_parts_kernel(
    sums_ptr: tl.tensor,
    out_ptr: tl.tensor,
    slots: tl.tensor,
    numel: tl.tensor,
    ACC: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add the parts [slots, numel] of the gradient of the bias, in one order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = at < numel
    sums = tl.zeros([SLOTS, BLOCK], ACC)
    for first in range(0, slots, SLOTS):
        slot = first + tl.arange(0, SLOTS)
        ptrs = sums_ptr + (slot.to(tl.int64) * numel)[:, None] + at[None, :]
        sums += tl.load(ptrs, mask=(slot < slots)[:, None] & exists[None, :], other=0.0)
    tl.store(out_ptr + at, tl.sum(sums, axis=0).to(out_ptr.dtype.element_ty), mask=exists)
