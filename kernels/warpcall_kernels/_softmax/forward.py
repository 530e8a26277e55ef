"""The kernel of masked softmax for rows that fit into registers: the variant "tile".

A program reads one row, or several short ones, once and keeps them in registers. A mask that rows
share is read once for all rows of a program. Of a row with a length or a causal limit only the
prefix that counts is read, rounded up to whole accesses of 16 bytes. No index is divided inside a
tile. A position takes some 13 instructions with a shared mask and 11 without one; at two bytes a
position, 28 instructions would take as long as the memory does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._softmax.device import (
    broadcast_row_stat,
    end_columns,
    pointers,
    program_rows,
    round_up,
    row_limits,
    row_offset,
    row_starts,
    rows_beside,
    unaligned_prefix,
)

# Integers whose values no kernel is specialized for: the arguments ALIGN say what divides them.
UNSPECIALIZED = (
    *("columns", "outer", "count", "diagonal", "queries"),
    *("x_strides", "mask_strides", "lengths_strides", "q_strides", "out_strides"),
)
OF_BIAS = ("bias_strides", "slope_strides")
# Integers of which a kernel may only know whether they are 1.
UNALIGNED = ("inner", "stride_xk", "stride_mk")

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
def _load_bias(
    ptrs: tl.tensor, read: tl.tensor, SHARED: tl.constexpr, EVEN: tl.constexpr, ACC: tl.constexpr
) -> tl.tensor:
    bias = _load(ptrs, read, float("-inf"), EVEN).to(ACC)
    if SHARED:
        bias = bias[None, :]
    return bias


@triton.jit
def with_bias(scores: tl.tensor, bias: tl.tensor) -> tl.tensor:
    """Scores and their bias. A bias of -inf masks a position, whatever its score is."""
    return tl.where(bias == float("-inf"), float("-inf"), scores + bias)


@triton.jit
def slopes_of_rows(
    slopes_ptr: tl.tensor,
    place: tl.tensor,
    rows: tl.tensor,
    slope_strides: tl.tensor,
    q_strides: tl.tensor,
    diagonal: tl.tensor,
    ACC: tl.constexpr,
) -> tl.tensor:
    """The slope of each row, and the position at which its distance is 0."""
    at = row_offset(place, slope_strides, 1) + rows.to(tl.int64) * slope_strides.row
    q = row_offset(place, q_strides, 1) + rows.to(tl.int64) * q_strides.row
    return tl.load(slopes_ptr + at).to(ACC), (q + (diagonal - 1)).to(rows.dtype)


@triton.jit
def _scores(
    x_ptrs: tl.tensor,
    mask_ptrs: tl.tensor,
    mask_read: tl.tensor,
    bias_ptrs: tl.tensor,
    bias_read: tl.tensor,
    slope: tl.tensor,
    origin: tl.tensor,
    cols: tl.tensor,
    limit: tl.tensor,
    scale: tl.tensor,
    PREFIX: tl.constexpr,
    SHARED: tl.constexpr,
    BIAS_SHARED: tl.constexpr,
    FOLDED: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """The scores: x, and -inf where masked.

    They are multiplied by `scale` unless it is FOLDED into the factor of the exponential. Then come
    the slope of a row times the distance from its `origin`, and the bias.
    """
    x = _load(x_ptrs, cols < round_up(limit, ALIGN), float("-inf"), EVEN).to(ACC)
    if not FOLDED:
        x *= tl.full([], scale, ACC)
    if slope is not None:
        x += slope * (cols - origin).to(ACC)
    if bias_ptrs is not None:
        x = with_bias(x, _load_bias(bias_ptrs, bias_read, BIAS_SHARED, EVEN, ACC))
    if PREFIX or not (
        FOLDED or EVEN
    ):  # positions past the end hold -inf; `scale` may make that +inf
        x = tl.where(cols < limit, x, float("-inf"))
    if mask_ptrs is not None:
        x = tl.where(_load_mask(mask_ptrs, mask_read, SHARED, EVEN) == 0, x, float("-inf"))
    return x


@triton.jit
def zero_masked_nans(
    y: tl.tensor,
    mask_ptrs: tl.tensor,
    mask_read: tl.tensor,
    bias_ptrs: tl.tensor,
    bias_read: tl.tensor,
    cols: tl.tensor,
    limit: tl.tensor,
    has_nan: tl.tensor,
    PREFIX: tl.constexpr,
    SHARED: tl.constexpr,
    BIAS_SHARED: tl.constexpr,
    EVEN: tl.constexpr,
) -> tl.tensor:
    """The result with 0 at masked positions, of a tile with a NaN sum (`has_nan` is 1)."""
    # The minimum is `limit`. The compiler does not know it, and so cannot keep the comparisons that
    # `_scores` made, which would take registers in every tile.
    if PREFIX:
        y = tl.where(cols < tl.minimum(limit, has_nan * ALL_COLUMNS), y, 0.0)
    if mask_ptrs is not None:
        y = tl.where(_load_mask(mask_ptrs, mask_read, SHARED, EVEN) == 0, y, 0.0)
    if bias_ptrs is not None:
        bias = _load_bias(bias_ptrs, bias_read, BIAS_SHARED, EVEN, y.dtype)
        y = tl.where(bias == float("-inf"), 0.0, y)
    return y


@triton.jit
def factor_of(scale: tl.tensor, FOLDED: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """The factor by which a difference of scores becomes an exponent of 2."""
    factor = tl.full([], LOG2_E, ACC)
    if FOLDED:
        factor *= tl.full([], scale, ACC)
    return factor


@triton.jit
def _softmax_tile(
    x_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.tensor,
    slope: tl.tensor,
    origin: tl.tensor,
    columns: tl.tensor,
    exist: tl.tensor,
    limit: tl.tensor,
    head: tl.tensor,
    x_at: tl.tensor,
    mask_at: tl.tensor,
    bias_at: tl.tensor,
    out_at: tl.tensor,
    stride_xk: tl.tensor,
    stride_mk: tl.tensor,
    stride_bk: tl.tensor,
    PREFIX: tl.constexpr,
    SHARED: tl.constexpr,
    BIAS_SHARED: tl.constexpr,
    FOLDED: tl.constexpr,
    EVEN: tl.constexpr,
    SKEWED: tl.constexpr,
    ALIGN: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Softmax of rows of which at most BLOCK positions count; `x_at` and the like are their steps.

    The whole groups of SKEWED rows, from `head` on, are one tile; the ends of the rows, before and
    after these groups, are a small second one. Positions are counted from `head`.
    """
    block = tl.arange(0, BLOCK).to(head.dtype)
    cols = block[None, :]
    whole = columns
    most = limit
    if SKEWED:
        columns -= head
        limit -= head
        whole = columns // ALIGN * ALIGN
        most = tl.minimum(limit, whole)
    x_ptrs = pointers(x_ptr, x_at, cols * stride_xk, SKEWED)
    mask_ptrs = mask_ptr  # stays None without a mask
    mask_read = mask_ptr
    ends_mask_ptrs = mask_ptr
    if mask_ptr is not None:
        if SHARED:
            mask_ptrs = mask_ptr + block * stride_mk
            mask_read = block < columns
        else:
            mask_ptrs = pointers(mask_ptr, mask_at, cols * stride_mk, SKEWED)
            mask_read = cols < round_up(most, ALIGN)
    bias_ptrs = bias_ptr  # stays None without a bias
    bias_read = bias_ptr
    ends_bias_ptrs = bias_ptr
    if bias_ptr is not None:
        if BIAS_SHARED:
            bias_ptrs = bias_ptr + block * stride_bk
            bias_read = block < columns
        else:
            bias_ptrs = pointers(bias_ptr, bias_at, cols * stride_bk, SKEWED)
            bias_read = cols < round_up(most, ALIGN)
    x = _scores(
        x_ptrs,
        mask_ptrs,
        mask_read,
        bias_ptrs,
        bias_read,
        slope,
        origin,
        *(cols, most, scale),
        *(PREFIX, SHARED, BIAS_SHARED, FOLDED, EVEN, ALIGN, ACC),
    )
    top = broadcast_row_stat(tl.max(x, axis=1), SKEWED)
    factor = factor_of(scale, FOLDED, ACC)
    if SKEWED:
        ends = end_columns(head, whole, columns, ALIGN)
        if mask_ptr is not None:
            ends_mask_ptrs = pointers(mask_ptr, mask_at, ends * stride_mk, SKEWED)
        if bias_ptr is not None:
            ends_bias_ptrs = pointers(bias_ptr, bias_at, ends * stride_bk, SKEWED)
        x_ends = _scores(
            pointers(x_ptr, x_at, ends * stride_xk, SKEWED),
            ends_mask_ptrs,
            ends < limit,
            ends_bias_ptrs,
            ends < limit,
            slope,
            origin,
            *(ends, limit, scale, PREFIX, False, False, FOLDED, False, 1, ACC),
        )
        top = tl.maximum(top, broadcast_row_stat(tl.max(x_ends, axis=1), SKEWED))
    y = tl.exp2((x - top) * factor)
    total = broadcast_row_stat(tl.sum(y, axis=1), SKEWED)
    if SKEWED:
        y_ends = tl.exp2((x_ends - top) * factor)
        total += broadcast_row_stat(tl.sum(y_ends, axis=1), SKEWED)
        y_ends *= 1.0 / total
    y *= 1.0 / total

    # Masked positions hold 0 by now, unless the row's sum is NaN: a NaN or an inf counts, or
    # nothing does. Only then is the mask read again. To keep it until here would take registers in
    # every tile.
    if PREFIX or (mask_ptr is not None) or (bias_ptr is not None):
        has_nan = (total != total).to(tl.int32)  # noqa: PLR0124  # so NaN is found
        if not SKEWED or x.shape[0] > 1:  # else it is a scalar already: see `broadcast_row_stat`
            has_nan = tl.max(tl.max(has_nan, axis=1), axis=0)
        if has_nan != 0:
            y = zero_masked_nans(
                y,
                mask_ptrs,
                mask_read,
                bias_ptrs,
                bias_read,
                *(cols, most, has_nan),
                *(PREFIX, SHARED, BIAS_SHARED, EVEN),
            )
            if SKEWED:
                y_ends = zero_masked_nans(
                    y_ends,
                    ends_mask_ptrs,
                    ends < limit,
                    ends_bias_ptrs,
                    ends < limit,
                    *(ends, limit, has_nan, PREFIX, False, False, False),
                )
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(pointers(out_ptr, out_at, cols, SKEWED), y.to(dtype), mask=exist & (cols < whole))
    if SKEWED:
        out_ptrs = pointers(out_ptr, out_at, ends, SKEWED)
        tl.store(out_ptrs, y_ends.to(dtype), mask=exist & (ends < columns))


@triton.jit(
    do_not_specialize=(*UNSPECIALIZED, *OF_BIAS),
    do_not_specialize_on_alignment=(*UNALIGNED, "stride_bk"),
)
def masked_softmax_kernel(
    x_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    slopes_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    outer: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    diagonal: tl.tensor,
    queries: tl.tensor,
    x_strides: tl.tensor,
    mask_strides: tl.tensor,
    lengths_strides: tl.tensor,
    q_strides: tl.tensor,
    out_strides: tl.tensor,
    stride_xk: tl.tensor,
    stride_mk: tl.tensor,
    bias_strides: tl.tensor,
    slope_strides: tl.tensor,
    stride_bk: tl.tensor,
    CAUSAL: tl.constexpr,
    SHARED: tl.constexpr,
    BIAS_SHARED: tl.constexpr,
    FOLDED: tl.constexpr,
    EVEN: tl.constexpr,
    SKEWED: tl.constexpr,
    BESIDE: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    MASK_ALIGN: tl.constexpr,
    BIAS_ALIGN: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    PREFIX: tl.constexpr = CAUSAL or (lengths_ptr is not None)
    place, rows, exist = program_rows(ROWS, ROWS, outer, inner, count, WIDE)
    head = rows * 0
    if SKEWED:
        head = unaligned_prefix(place, rows, out_strides, ALIGN)
    else:
        columns = columns // ALIGN * ALIGN  # the same number, but now the compiler knows a divisor
    x_starts = row_starts(place, rows, x_strides, head, SKEWED, ALIGN)
    out_starts = row_starts(place, rows, out_strides, head, SKEWED, ALIGN)
    x_ptr += x_starts.base
    out_ptr += out_starts.base
    x_at, out_at = x_starts.steps, out_starts.steps
    mask_at = x_at
    if mask_ptr is not None:
        shift = head * stride_mk
        mask_starts = row_starts(place, rows, mask_strides, shift, SKEWED, MASK_ALIGN)
        mask_ptr += mask_starts.base
        mask_at = mask_starts.steps
    bias_at = x_at
    if bias_ptr is not None:
        bias_shift = head * stride_bk
        bias_starts = row_starts(place, rows, bias_strides, bias_shift, SKEWED, BIAS_ALIGN)
        bias_ptr += bias_starts.base
        bias_at = bias_starts.steps
    head = head[:, None]
    slope = slopes_ptr  # stays None without slopes
    origin = slopes_ptr
    if slopes_ptr is not None:
        slope, origin = slopes_of_rows(
            slopes_ptr, place, rows, slope_strides, q_strides, diagonal, ACC
        )
        slope = slope[:, None]
        origin = origin[:, None] - head  # positions of a tile are counted from there
    limit = columns
    if PREFIX:
        limit = row_limits(
            lengths_ptr, place, lengths_strides, q_strides, rows, columns, diagonal, queries, CAUSAL
        )[:, None]
    if BESIDE:  # neighbouring lanes read neighbouring rows, and none past the last one
        x_at = rows_beside(rows)
        limit = tl.where(exist, limit, 0)
    # A row of which at most half counts takes a block of half the size. Not with several rows in a
    # tile: the compiler could not tell that all threads take the same branch, and would guard every
    # shuffle.
    HALF: tl.constexpr = BLOCK // 2
    HALVES: tl.constexpr = PREFIX and ROWS == 1 and BLOCK >= 1024
    if HALVES and tl.max(tl.max(limit, axis=1), axis=0) <= HALF:
        _softmax_tile(
            *(x_ptr, mask_ptr, bias_ptr, out_ptr, scale),
            slope,
            origin,
            *(columns, exist, limit),
            *(head, x_at, mask_at, bias_at, out_at, stride_xk, stride_mk, stride_bk),
            *(PREFIX, SHARED, BIAS_SHARED, FOLDED, EVEN, SKEWED, ALIGN, ACC, HALF),
        )
        cols = (HALF + tl.arange(0, HALF).to(rows.dtype))[None, :]
        zeros = tl.zeros([ROWS, HALF], out_ptr.dtype.element_ty)
        whole = columns
        if SKEWED:
            whole = (columns - head) // ALIGN * ALIGN
        tl.store(pointers(out_ptr, out_at, cols, SKEWED), zeros, mask=exist & (cols < whole))
    else:
        _softmax_tile(
            *(x_ptr, mask_ptr, bias_ptr, out_ptr, scale),
            slope,
            origin,
            *(columns, exist, limit),
            *(head, x_at, mask_at, bias_at, out_at, stride_xk, stride_mk, stride_bk),
            *(PREFIX, SHARED, BIAS_SHARED, FOLDED, EVEN, SKEWED, ALIGN, ACC, BLOCK),
        )
