"""The kernels of masked softmax: rows in registers, and rows too long for that.

A row of up to some thousand positions is read once and kept in registers, several short rows a
program; a longer one is read twice, the second time from the L2. A mask that rows share is read once
for the rows of a program. Of a row with a length, or with a causal limit, only the prefix is read,
rounded up to whole 16-byte accesses. No index is divided inside a tile, and a position costs some 13
instructions with a shared mask and 11 without: at two bytes each, 28 would be as slow as memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels import _softmax
from warpcall_kernels._softmax import place, row_limits, start

LOG2_E = tl.constexpr(1.4426950408889634)
ALL_COLUMNS = tl.constexpr(2**30)  # more than a row that is held has


@triton.jit
def _load(ptrs: tl.tensor, read: tl.tensor, FILL: tl.constexpr, EVEN: tl.constexpr) -> tl.tensor:
    if EVEN:
        return tl.load(ptrs)
    return tl.load(ptrs, mask=read, other=FILL)


@triton.jit
def _load_mask(
    ptrs: tl.tensor, read: tl.tensor, SHARED: tl.constexpr, EVEN: tl.constexpr
) -> tl.tensor:
    masked = _load(ptrs, read, 1, EVEN)
    if SHARED:
        masked = masked[None, :]
    return masked


@triton.jit
def _scores(
    x_ptrs: tl.tensor,
    mask_ptrs: tl.tensor,
    mask_read: tl.tensor,
    cols: tl.tensor,
    limit: tl.tensor,
    scale: tl.tensor,
    PREFIX: tl.constexpr,
    SHARED: tl.constexpr,
    FOLDED: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """x, -inf where masked; times `scale` unless that is FOLDED into the exponential's factor."""
    x = _load(x_ptrs, cols < (limit + (ALIGN - 1)) // ALIGN * ALIGN, float("-inf"), EVEN).to(ACC)
    if not FOLDED:
        x *= tl.full([], scale, ACC)
    if PREFIX or not (FOLDED or EVEN):  # what fills the block is -inf, but scaled it may be +inf
        x = tl.where(cols < limit, x, float("-inf"))
    if mask_ptrs is not None:
        x = tl.where(_load_mask(mask_ptrs, mask_read, SHARED, EVEN) == 0, x, float("-inf"))
    return x


@triton.jit
def _factor(scale: tl.tensor, FOLDED: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """What turns a difference of scores into an exponent of 2."""
    factor = tl.full([], LOG2_E, ACC)
    if FOLDED:
        factor *= tl.full([], scale, ACC)
    return factor


@triton.jit
def _softmax_tile(
    x_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.tensor,
    columns: tl.tensor,
    rows: tl.tensor,
    exist: tl.tensor,
    limit: tl.tensor,
    x_strides: tl.tensor,
    mask_strides: tl.tensor,
    out_strides: tl.tensor,
    stride_xk: tl.tensor,
    stride_mk: tl.tensor,
    PREFIX: tl.constexpr,
    SHARED: tl.constexpr,
    FOLDED: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    MASK_ALIGN: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Rows of at most BLOCK positions that count, in registers; pointers are at the first row."""
    line = tl.arange(0, BLOCK).to(rows.dtype)
    cols = line[None, :]
    x_ptrs = x_ptr + (tl.multiple_of(rows * x_strides[2], ALIGN)[:, None] + cols * stride_xk)
    mask_ptrs = None
    mask_read = None
    if mask_ptr is not None:
        if SHARED:
            mask_ptrs = mask_ptr + line * stride_mk
            mask_read = line < columns
        else:
            steps = tl.multiple_of(rows * mask_strides[2], MASK_ALIGN)
            mask_ptrs = mask_ptr + (steps[:, None] + cols * stride_mk)
            mask_read = cols < limit
    x = _scores(
        x_ptrs, mask_ptrs, mask_read, cols, limit, scale, PREFIX, SHARED, FOLDED, EVEN, ALIGN, ACC
    )
    y = tl.exp2((x - tl.max(x, axis=1)[:, None]) * _factor(scale, FOLDED, ACC))
    total = tl.sum(y, axis=1)
    y *= (1.0 / total)[:, None]

    # Masked positions hold 0 by now, unless the sum is NaN: a NaN or inf counts, or all is masked.
    # What is masked is then found again: to keep it would cost every position of every tile.
    if PREFIX or mask_ptr is not None:
        odd = tl.max((total != total).to(tl.int32), axis=0)  # noqa: PLR0124  # so NaN is found
        if odd != 0:
            if PREFIX:
                again = tl.minimum(
                    limit, odd * ALL_COLUMNS
                )  # `limit`, but the compiler cannot tell
                y = tl.where(cols < again, y, 0.0)
            if mask_ptr is not None:
                y = tl.where(_load_mask(mask_ptrs, mask_read, SHARED, EVEN) == 0, y, 0.0)
    out_ptrs = out_ptr + (tl.multiple_of(rows * out_strides[2], ALIGN)[:, None] + cols)
    tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=exist & (cols < columns))


@triton.jit(do_not_specialize=_softmax.PLAIN, do_not_specialize_on_alignment=_softmax.UNALIGNED)
def masked_softmax_kernel(
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
    x_strides: tl.tensor,
    mask_strides: tl.tensor,
    lengths_strides: tl.tensor,
    q_strides: tl.tensor,
    out_strides: tl.tensor,
    stride_xk: tl.tensor,
    stride_mk: tl.tensor,
    CAUSAL: tl.constexpr,
    SHARED: tl.constexpr,
    FOLDED: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    MASK_ALIGN: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    PREFIX: tl.constexpr = CAUSAL or (lengths_ptr is not None)
    columns = columns // ALIGN * ALIGN  # the same, but now the compiler knows what divides it
    at, rows, exist = place(ROWS, places, inner, count, WIDE)
    x_ptr += start(at, x_strides, ALIGN)
    out_ptr += start(at, out_strides, ALIGN)
    if mask_ptr is not None:
        mask_ptr += start(at, mask_strides, MASK_ALIGN)
    limit = columns
    if PREFIX:
        limit = row_limits(
            lengths_ptr, at, lengths_strides, q_strides, rows, columns, diagonal, CAUSAL
        )[:, None]
    # A row of which less than half counts takes half the work. With several rows in a tile their
    # longest is not uniform in the compiler's eyes, and every shuffle below would be guarded.
    HALF: tl.constexpr = BLOCK // 2
    HALVES: tl.constexpr = PREFIX and ROWS == 1 and BLOCK >= 1024
    if HALVES and tl.max(tl.max(limit, axis=1), axis=0) <= HALF:
        _softmax_tile(
            *(x_ptr, mask_ptr, out_ptr, scale, columns, rows, exist, limit),
            *(x_strides, mask_strides, out_strides, stride_xk, stride_mk),
            *(PREFIX, SHARED, FOLDED, EVEN, ALIGN, MASK_ALIGN, ACC, HALF),
        )
        cols = (HALF + tl.arange(0, HALF).to(rows.dtype))[None, :]
        zeros = tl.zeros([ROWS, HALF], out_ptr.dtype.element_ty)
        tl.store(out_ptr + cols, zeros, mask=exist & (cols < columns))
    else:
        _softmax_tile(
            *(x_ptr, mask_ptr, out_ptr, scale, columns, rows, exist, limit),
            *(x_strides, mask_strides, out_strides, stride_xk, stride_mk),
            *(PREFIX, SHARED, FOLDED, EVEN, ALIGN, MASK_ALIGN, ACC, BLOCK),
        )


@triton.jit
def _counts(
    mask_ptr: tl.tensor, cols: tl.tensor, limit: tl.tensor, stride_mk: tl.tensor
) -> tl.tensor:
    """Which positions of a row are not masked."""
    counts = cols < limit
    if mask_ptr is not None:
        counts = counts & (tl.load(mask_ptr + cols * stride_mk, mask=counts, other=1) == 0)
    return counts


@triton.jit
def _long_scores(
    x_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    cols: tl.tensor,
    limit: tl.tensor,
    scale: tl.tensor,
    stride_xk: tl.tensor,
    stride_mk: tl.tensor,
    FOLDED: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """x, -inf where masked; as `_scores` for a piece of one row."""
    x = tl.load(x_ptr + cols * stride_xk, mask=cols < limit, other=float("-inf")).to(ACC)
    if not FOLDED:
        x *= tl.full([], scale, ACC)
    return tl.where(_counts(mask_ptr, cols, limit, stride_mk), x, float("-inf"))


@triton.jit(do_not_specialize=_softmax.PLAIN, do_not_specialize_on_alignment=_softmax.UNALIGNED)
def masked_softmax_long_kernel(
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
    x_strides: tl.tensor,
    mask_strides: tl.tensor,
    lengths_strides: tl.tensor,
    q_strides: tl.tensor,
    out_strides: tl.tensor,
    stride_xk: tl.tensor,
    stride_mk: tl.tensor,
    CAUSAL: tl.constexpr,
    FOLDED: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    MASK_ALIGN: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row: its maximum and sum online, then the result, BLOCK positions at a time."""
    PREFIX: tl.constexpr = CAUSAL or (lengths_ptr is not None)
    at, rows, _ = place(1, places, inner, count, WIDE)
    columns = columns.to(rows.dtype) // ALIGN * ALIGN
    x_ptr += start(at, x_strides, ALIGN)
    out_ptr += start(at, out_strides, ALIGN)
    if mask_ptr is not None:
        mask_ptr += start(at, mask_strides, MASK_ALIGN)
    limit = rows * 0 + columns
    if PREFIX:
        limit = row_limits(
            lengths_ptr, at, lengths_strides, q_strides, rows, columns, diagonal, CAUSAL
        )
    limit = tl.max(limit, axis=0)
    factor = _factor(scale, FOLDED, ACC)
    line = tl.arange(0, BLOCK).to(rows.dtype)

    peak = tl.full([BLOCK], float("-inf"), ACC)
    total = tl.zeros([BLOCK], ACC)
    for first in range(0, limit, BLOCK):
        x = _long_scores(
            *(x_ptr, mask_ptr, first + line, limit, scale, stride_xk, stride_mk, FOLDED, ACC)
        )
        higher = tl.maximum(peak, x)
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing yet: no NaN of -inf - -inf
        total = total * tl.exp2((peak - base) * factor) + tl.exp2((x - base) * factor)
        peak = higher
    top = tl.max(peak, axis=0)
    scaled = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(total * tl.exp2((peak - scaled) * factor), axis=0)

    for first in range(0, columns, BLOCK):
        cols = first + line
        y = tl.zeros([BLOCK], ACC)
        if first < limit:
            x = _long_scores(
                *(x_ptr, mask_ptr, cols, limit, scale, stride_xk, stride_mk, FOLDED, ACC)
            )
            y = tl.exp2((x - top) * factor) / total
            y = tl.where(_counts(mask_ptr, cols, limit, stride_mk), y, 0.0)
        tl.store(out_ptr + cols, y.to(out_ptr.dtype.element_ty), mask=cols < columns)
