"""The kernel of conv-backward on tensor cores, for filters of a few dozen taps; `_conv/backward.py`
says when it is taken.

Pieces of rows are SUPER blocks of N positions long. Each block of g and of x is loaded once for all
that it contributes to, and so are the parts of rows before and after a piece that a filter reaches,
its *halos*: LEFT positions before it for x, which are RIGHT ones for g because filters are reversed
for grad_x. The compiler pipelines the loads of a tile with the products of the one before.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._conv.filters import (
    UNALIGNED,
    UNSPECIALIZED,
    Filter,
    filter_of,
    load_diagonals,
    multiply,
    tap_by_tap,
    tap_products,
)
from warpcall_kernels._conv.rows import (
    BOUNDS_CHECKED,
    Bounds,
    Strides,
    aligned_tile,
    load_near,
    out_ptrs,
    prefetch,
    row_ptrs,
    store_block,
    tile_of,
    within_rows,
)

# Tiles that the L2 is asked for while a program waits for the kernel before, and builds its matrices.
# [32, 512, 512] bf16, 31 taps, on an H100: 23.7 us, 3 % less than without.
PREFETCHED = tl.constexpr(2)


@triton.jit
def _load_window(
    ptrs: tl.tensor,
    start: tl.tensor,
    bounds: Bounds,
    stride: tl.tensor,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SUPER: tl.constexpr,
    N: tl.constexpr,
    TYPE: tl.constexpr,
) -> tl.tensor:
    """The SUPER blocks of each piece, then its left and its right halo, if it has them."""
    ptrs += start if stride is None else start.to(tl.int64) * stride
    blocks = ()
    for s in tl.static_range(SUPER):
        block = load_near(ptrs, start, bounds, stride, s * N, N, TYPE)
        blocks = blocks + (block,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
    if LEFT:
        block = load_near(ptrs, start, bounds, stride, -LEFT, LEFT, TYPE)
        blocks = blocks + (block,)  # type: ignore[assignment]  # noqa: RUF005
    if RIGHT:
        block = load_near(ptrs, start, bounds, stride, SUPER * N, RIGHT, TYPE)
        blocks = blocks + (block,)  # type: ignore[assignment]  # noqa: RUF005
    return blocks


@triton.jit
def _matrix(
    filters: Filter,
    first: tl.tensor,
    taps: tl.tensor,
    WIDTH: tl.constexpr,
    N: tl.constexpr,
    TYPE: tl.constexpr,
    SOFTMAX: tl.constexpr,
) -> tl.tensor:
    """[WIDTH, N] with tap `first + i - n` at (i, n), or 0; in fp32 with SOFTMAX, for `multiply`."""
    w_ptr, stride_wk, peak, scale = filters
    w, inside = load_diagonals(w_ptr, first, taps, stride_wk, WIDTH, N)
    if SOFTMAX:
        return tl.where(inside, tl.exp(w.to(tl.float32) - peak) * scale, 0.0)
    else:  # noqa: RET505  # Triton needs the else
        return w.to(TYPE)


# Five places of blocks that a block meets, in tuples: itself, its left and its right halo, and with
# several blocks in a piece the block before it and the one after it. A place that does not occur
# has what the block itself has.


@triton.jit
def _matrices(
    filters: Filter,
    mirrored: tl.tensor,
    taps: tl.tensor,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SUPER: tl.constexpr,
    N: tl.constexpr,
    TYPE: tl.constexpr,
    SOFTMAX: tl.constexpr,
) -> tl.tensor:
    """What blocks of g at the five places are multiplied with, for grad_x."""
    own = _matrix(filters, mirrored, taps, N, N, TYPE, SOFTMAX)
    left, right, before, after = own, own, own, own
    if RIGHT:
        left = _matrix(filters, mirrored - RIGHT, taps, RIGHT, N, TYPE, SOFTMAX)
        if SUPER > 1:
            before = _matrix(filters, mirrored - N, taps, N, N, TYPE, SOFTMAX)
    if LEFT:
        right = _matrix(filters, mirrored + N, taps, LEFT, N, TYPE, SOFTMAX)
        if SUPER > 1:
            after = _matrix(filters, mirrored + N, taps, N, N, TYPE, SOFTMAX)
    return own, left, right, before, after


@triton.jit
def _store_grads(
    nan: tl.tensor,
    g: tl.tensor,
    matrices: tl.tensor,
    to_ptrs: tl.tensor,
    start: tl.tensor,
    bounds: Bounds,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SUPER: tl.constexpr,
    N: tl.constexpr,
    PIECES: tl.constexpr,
    SOFTMAX: tl.constexpr,
) -> tl.tensor:
    """Store grad_x of a tile, and return `nan` with whether any of it is NaN."""
    own, left, right, before, after = matrices
    for o in tl.static_range(SUPER):
        grad = multiply(g[o], own, tl.zeros((PIECES, N), tl.float32), SOFTMAX)
        if RIGHT:
            if o == 0:
                grad = multiply(g[SUPER], left, grad, SOFTMAX)
            else:
                grad = multiply(g[o - 1], before, grad, SOFTMAX)
        if LEFT:
            if o == SUPER - 1:
                grad = multiply(g[SUPER + (1 if RIGHT else 0)], right, grad, SOFTMAX)
            else:
                grad = multiply(g[o + 1], after, grad, SOFTMAX)
        nan |= tl.max((grad != grad).to(tl.int32), axis=1)  # noqa: PLR0124  # so NaN is found
        store_block(to_ptrs, grad, start + o * N, bounds, N, 0, BOUNDS_CHECKED)
    return nan


@triton.jit
def _no_products(
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SUPER: tl.constexpr, N: tl.constexpr
) -> tl.tensor:
    """Zeros for the products of blocks of g with those of x at the five places."""
    own = tl.zeros((N, N), tl.float32)
    left = tl.zeros((N, LEFT if LEFT else N), tl.float32)
    right = tl.zeros((N, RIGHT if RIGHT else N), tl.float32)
    return own, left, right, own, own


@triton.jit
def _add_products(
    products: tl.tensor,
    g: tl.tensor,
    x: tl.tensor,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SUPER: tl.constexpr,
) -> tl.tensor:
    """`products` and those of the blocks of g and x of a tile."""
    own, left, right, before, after = products
    for o in tl.static_range(SUPER):
        turned = tl.trans(g[o])
        own = tl.dot(turned, x[o], own)
        if LEFT:
            if o == 0:
                left = tl.dot(turned, x[SUPER], left)
            else:
                before = tl.dot(turned, x[o - 1], before)
        if RIGHT:
            if o == SUPER - 1:
                right = tl.dot(turned, x[SUPER + (1 if LEFT else 0)], right)
            else:
                after = tl.dot(turned, x[o + 1], after)
    return own, left, right, before, after


@triton.jit
def _tap_sums(
    product: tl.tensor,
    first: tl.tensor,
    WIDTH: tl.constexpr,
    N: tl.constexpr,
    SLOTS: tl.constexpr,
) -> tl.tensor:
    """[SLOTS]: the sum of the elements (n, i) of a product [N, WIDTH] with tap `first + i - n`."""
    i = tl.arange(0, N)[:, None] + tl.arange(0, SLOTS)[None, :] - first
    inside = (i >= 0) & (i < WIDTH)
    terms = tl.gather(product, tl.where(inside, i, 0), axis=1)
    return tl.sum(tl.where(inside, terms, 0.0), axis=0)


@triton.jit
def _all_tap_sums(
    products: tl.tensor,
    padding: tl.tensor,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SUPER: tl.constexpr,
    N: tl.constexpr,
    SLOTS: tl.constexpr,
) -> tl.tensor:
    """[SLOTS]: the sums of all taps."""
    own, left, right, before, after = products
    sums = _tap_sums(own, padding, N, N, SLOTS)
    if LEFT:
        sums += _tap_sums(left, padding - LEFT, LEFT, N, SLOTS)
        if SUPER > 1:
            sums += _tap_sums(before, padding - N, N, N, SLOTS)
    if RIGHT:
        sums += _tap_sums(right, padding + N, RIGHT, N, SLOTS)
        if SUPER > 1:
            sums += _tap_sums(after, padding + N, N, N, SLOTS)
    return sums


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNALIGNED)
def _blocks_kernel(
    g_ptr: tl.tensor,
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    out_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    rows: tl.tensor,
    group: tl.tensor,
    channels: tl.int64,
    units: tl.tensor,
    tiles: tl.tensor,
    tiles_wide: tl.tensor,
    taps: tl.tensor,
    padding: tl.tensor,
    parts: tl.tensor,
    stride_gb: tl.int64,
    stride_gc: tl.int64,
    stride_gt: tl.tensor,
    stride_xb: tl.int64,
    stride_xc: tl.int64,
    stride_xt: tl.tensor,
    stride_wh: tl.int64,
    stride_wk: tl.int64,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SUPER: tl.constexpr,
    SOFTMAX: tl.constexpr,
    STEP: tl.constexpr,
    SLOTS: tl.constexpr,
    EVEN: tl.constexpr,
    UNIT: tl.constexpr,
    N: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    BIG: tl.constexpr,
    ONCE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Store `sums` [H, parts, K], and grad_x in `out`."""
    part, head = tl.program_id(0) % parts, tl.program_id(0) // parts
    TYPE: tl.constexpr = g_ptr.dtype.element_ty
    g_strides = Strides(stride_gb, stride_gc, stride_gt)
    x_strides = Strides(stride_xb, stride_xc, stride_xt)
    if PDL:
        gdc_launch_dependents()
        for i in tl.static_range(0 if ONCE else PREFETCHED):
            at = part + i * parts
            _tile, place, start, bounds = aligned_tile(
                at, head, rows, group, channels, units, tiles_wide, UNIT, N * SUPER, PIECES, WIDE,
                ONE_BATCH, BIG,
            )  # fmt: skip
            bounds = Bounds(bounds.live & (at < tiles), bounds.end, 0, 0, 0)
            prefetch(row_ptrs(g_ptr, place, g_strides, UNIT, 0), start, bounds, stride_gt)
            prefetch(row_ptrs(x_ptr, place, x_strides, UNIT, 0), start, bounds, stride_xt)
        gdc_wait()
    mirrored = taps - 1 - padding
    filters = filter_of(w_ptr + head * stride_wh, taps, stride_wk, True, SOFTMAX, STEP, tl.float32)
    nan = tl.zeros((PIECES,), tl.int32)  # whether any element of these pieces of grad_x is NaN
    products = _no_products(LEFT, RIGHT, SUPER, N)
    if ONCE:  # the loads of the only tile and those of the filter wait for memory together
        tile, place, start, bounds = aligned_tile(
            part, head, rows, group, channels, units, tiles_wide, UNIT, N * SUPER, PIECES, WIDE,
            ONE_BATCH, BIG,
        )  # fmt: skip
        bounds = within_rows(start, bounds)
        g_ptrs = row_ptrs(g_ptr, place, g_strides, UNIT, 0)
        x_ptrs = row_ptrs(x_ptr, place, x_strides, UNIT, 0)
        g = _load_window(g_ptrs, start, bounds, stride_gt, RIGHT, LEFT, SUPER, N, TYPE)
        x = _load_window(x_ptrs, start, bounds, stride_xt, LEFT, RIGHT, SUPER, N, TYPE)
        matrices = _matrices(filters, mirrored, taps, LEFT, RIGHT, SUPER, N, TYPE, SOFTMAX)
        to_ptrs = out_ptrs(out_ptr, tile, place, UNIT, 0)
        nan = _store_grads(
            nan, g, matrices, to_ptrs, start, bounds, LEFT, RIGHT, SUPER, N, PIECES, SOFTMAX
        )
        products = _add_products(products, g, x, LEFT, RIGHT, SUPER)
    else:
        matrices = _matrices(filters, mirrored, taps, LEFT, RIGHT, SUPER, N, TYPE, SOFTMAX)
        for at in tl.range(part, tiles, parts, num_stages=STAGES):
            tile, place, start, bounds = aligned_tile(
                at, head, rows, group, channels, units, tiles_wide, UNIT, N * SUPER, PIECES, WIDE,
                ONE_BATCH, BIG,
            )  # fmt: skip
            bounds = within_rows(start, bounds)
            g_ptrs = row_ptrs(g_ptr, place, g_strides, UNIT, 0)
            x_ptrs = row_ptrs(x_ptr, place, x_strides, UNIT, 0)
            g = _load_window(g_ptrs, start, bounds, stride_gt, RIGHT, LEFT, SUPER, N, TYPE)
            x = _load_window(x_ptrs, start, bounds, stride_xt, LEFT, RIGHT, SUPER, N, TYPE)
            to_ptrs = out_ptrs(out_ptr, tile, place, UNIT, 0)
            nan = _store_grads(
                nan, g, matrices, to_ptrs, start, bounds, LEFT, RIGHT, SUPER, N, PIECES, SOFTMAX
            )
            products = _add_products(products, g, x, LEFT, RIGHT, SUPER)
    if tl.max(nan) != 0:  # all tiles again, because a dot lets NaN reach too far
        for at in range(part, tiles, parts):
            tile, place, start, bounds = aligned_tile(
                at, head, rows, group, channels, units, tiles_wide, UNIT, N * SUPER, PIECES, WIDE,
                ONE_BATCH, BIG,
            )  # fmt: skip
            g_ptrs = row_ptrs(g_ptr, place, g_strides, UNIT, 0)
            to_ptrs = out_ptrs(out_ptr, tile, place, UNIT, 0)
            for o in range(SUPER):
                grad = tap_by_tap(
                    g_ptrs, start + o * N, bounds, stride_gt, filters, taps, mirrored, PIECES, N,
                    SOFTMAX, BOUNDS_CHECKED,
                )  # fmt: skip
                store_block(to_ptrs, grad, start + o * N, bounds, N, 0, BOUNDS_CHECKED)
    sums = _all_tap_sums(products, padding, LEFT, RIGHT, SUPER, N, SLOTS)
    j = tl.arange(0, SLOTS)
    # Outside of a row g is 0, and times a NaN or inf of x it gives NaN: such sums are computed
    # again.
    if not EVEN and tl.max(((j < taps) & (sums != sums)).to(tl.int32)) != 0:  # noqa: PLR0124  # so NaN is found
        for tap in range(taps):
            total = tl.zeros((PIECES, N * SUPER), tl.float32)
            for at in range(part, tiles, parts):
                tile = tile_of(at, head, rows, group, channels, units, tiles_wide, UNIT, BIG)
                total += tap_products(
                    tile, g_ptr, g_strides, x_ptr, x_strides, tap - padding, UNIT, 0,
                    N * SUPER, PIECES, WIDE, BOUNDS_CHECKED,
                )  # fmt: skip
            sums = tl.where(j == tap, tl.sum(tl.sum(total, axis=1), axis=0), sums)
    sums_ptr += (head * parts + part).to(tl.int64) * taps
    tl.store(sums_ptr + j, sums, mask=j < taps)
