"""The kernels of conv-backward; `_conv/backward.py` says when each is taken."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._conv.filters import (
    OCTET,
    UNALIGNED,
    UNSPECIALIZED,
    Filter,
    correlate,
    filter_of,
    multiply,
    pack,
    recompute_nan_rows,
    tap_products,
    toeplitz,
    weights_of,
    window,
)
from warpcall_kernels._conv.rows import (
    BOUNDS_CHECKED,
    INTERIOR,
    SKEWED,
    SKEWED_TAIL,
    Strides,
    Tile,
    aligned_tile,
    is_interior,
    load_block,
    locate,
    out_ptrs,
    prefetch,
    row_ptrs,
    store_block,
    tile_of,
    within_rows,
)


@triton.jit
def _fma_tile(
    acc: tl.tensor,
    tile: Tile,
    first: tl.tensor,
    g_ptr: tl.tensor,
    g_strides: Strides,
    x_ptr: tl.tensor,
    x_strides: Strides,
    out_ptr: tl.tensor,
    weights: tl.tensor,
    lead: tl.tensor,
    COUNT: tl.constexpr,
    SLOTS: tl.constexpr,
    SHIFT: tl.constexpr,
    FUSED: tl.constexpr,
    LEAD_G: tl.constexpr,
    SHIFT_G: tl.constexpr,
    EVEN: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    V: tl.constexpr,
    OWN: tl.constexpr,
    TAKEN: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    ACC: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """Add to `acc` [TAKEN, SLOTS] the products of TAKEN pieces of g with windows of x.

    The window of a piece begins `lead` positions behind it. With FUSED, grad_x is stored, too.
    """
    place, start, bounds = locate(
        tile, first, TAKEN, OWN, PIECES, WIDE, ONE_BATCH, UNIT, SKEW, ACCESS
    )
    if ACCESS == BOUNDS_CHECKED:  # pieces past the end of their row get no window
        bounds = within_rows(start, bounds)
    g_ptrs = row_ptrs(g_ptr, place, g_strides, UNIT, SKEW)
    x_ptrs = row_ptrs(x_ptr, place, x_strides, UNIT, SKEW)
    # The window of x begins SHIFT elements before what the band's first tap meets, at a multiple of
    # V.
    REACH: tl.constexpr = (COUNT + SHIFT + OWN + V - 2) // V
    REACH_G: tl.constexpr = (COUNT + SHIFT_G + OWN + V - 2) // V
    x = window(x_ptrs, start + lead, bounds, x_strides.position, REACH, TAKEN, V, ACC, ACCESS)
    if FUSED:
        begin = start - LEAD_G * V
        around = window(g_ptrs, begin, bounds, g_strides.position, REACH_G, TAKEN, V, ACC, ACCESS)
        g = around[LEAD_G * V : LEAD_G * V + OWN]
        grad = correlate(around, weights, SHIFT_G, COUNT, TAKEN, OWN, ACC)
        to_ptrs = out_ptrs(out_ptr, tile, place, UNIT, SKEW)
        for i in tl.static_range(OWN // V):
            out = pack(grad[i * V : i * V + V], TAKEN, V)
            store_block(to_ptrs, out, start + i * V, bounds, V, SKEW, ACCESS)
    else:
        own: tl.constexpr = OWN // V
        g = window(g_ptrs, start, bounds, g_strides.position, own, TAKEN, V, ACC, ACCESS)
    sums = ()
    for j in tl.static_range(SLOTS):
        total = tl.zeros((TAKEN,), ACC)
        if j < COUNT:
            for i in tl.static_range(OWN):
                term = g[i] * x[i + j + SHIFT]
                # Past the end of a row g is 0, but x may be NaN.
                if ACCESS == BOUNDS_CHECKED and not EVEN:
                    term = tl.where(start + i < bounds.end, term, 0.0)
                if ACCESS >= SKEWED:
                    term = tl.where(
                        (bounds.begin - start <= i) & (bounds.end - start > i), term, 0.0
                    )
                total += term
        sums = sums + (total,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
    return acc + pack(sums, TAKEN, SLOTS)


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNALIGNED)
def _fma_kernel(
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
    lead_pieces: tl.tensor,
    parts: tl.tensor,
    bands: tl.tensor,
    stride_gb: tl.int64,
    stride_gc: tl.int64,
    stride_gt: tl.tensor,
    stride_xb: tl.int64,
    stride_xc: tl.int64,
    stride_xt: tl.tensor,
    stride_wh: tl.int64,
    stride_wk: tl.int64,
    COUNT: tl.constexpr,
    SLOTS: tl.constexpr,
    SHIFT: tl.constexpr,
    FUSED: tl.constexpr,
    LEAD_G: tl.constexpr,
    SHIFT_G: tl.constexpr,
    SOFTMAX: tl.constexpr,
    STEP: tl.constexpr,
    EVEN: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    TAIL: tl.constexpr,
    SPLIT: tl.constexpr,
    V: tl.constexpr,
    OWN: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    BIG: tl.constexpr,
    ACC: tl.constexpr,
    PDL: tl.constexpr,
    WAIT: tl.constexpr,
) -> None:
    """Store `sums` [H, parts, K] of the COUNT taps of a program's band and, with FUSED, grad_x in
    `out`.
    """
    if PDL:
        gdc_launch_dependents()
    band = tl.program_id(0) % bands
    part = tl.program_id(0) // bands % parts
    head = tl.program_id(0) // bands // parts
    g_strides = Strides(stride_gb, stride_gc, stride_gt)
    x_strides = Strides(stride_xb, stride_xc, stride_xt)
    if WAIT:  # meanwhile the L2 is asked for the first tile
        _tile, place, start, bounds = aligned_tile(
            part, head, rows, group, channels, units, tiles_wide, UNIT, OWN, PIECES, WIDE,
            ONE_BATCH, BIG,
        )  # fmt: skip
        prefetch(row_ptrs(g_ptr, place, g_strides, UNIT, 0), start, bounds, stride_gt)
        prefetch(row_ptrs(x_ptr, place, x_strides, UNIT, 0), start, bounds, stride_xt)
        gdc_wait()
    weights = ()
    if FUSED:
        w_ptr, step, peak, scale = filter_of(
            w_ptr + head * stride_wh, taps, stride_wk, True, SOFTMAX, STEP, ACC
        )
        weights = weights_of(w_ptr, step, peak, scale, COUNT, SOFTMAX, ACC)
    lead = -lead_pieces * V
    if not FUSED:  # COUNT is then a multiple of V, so that loads stay aligned
        lead += band * COUNT
    AFTER_G: tl.constexpr = (COUNT + SHIFT_G + V - 2) // V * V - LEAD_G * V if FUSED else 0
    before = tl.maximum(
        -lead, LEAD_G * V
    )  # positions that are read before a tile of g or x, and after it
    after = tl.maximum((COUNT + SHIFT + V - 2) // V * V + lead, AFTER_G)
    acc = tl.zeros((PIECES, SLOTS), ACC)
    ends_acc = tl.zeros((PIECES // SPLIT, SLOTS), ACC)
    for at in range(part, tiles, parts):
        tile = tile_of(at, head, rows, group, channels, units, tiles_wide, UNIT, BIG)
        if not SKEW:
            acc = _fma_tile(
                acc, tile, 0, g_ptr, g_strides, x_ptr, x_strides, out_ptr, weights, lead, COUNT,
                SLOTS, SHIFT, FUSED, LEAD_G, SHIFT_G, EVEN, UNIT, SKEW, V, OWN, PIECES, PIECES, WIDE,
                ONE_BATCH, ACC, BOUNDS_CHECKED,
            )  # fmt: skip
        elif is_interior(tile, before, after, SKEW, OWN, PIECES, WIDE):
            acc = _fma_tile(
                acc, tile, 0, g_ptr, g_strides, x_ptr, x_strides, out_ptr, weights, lead, COUNT,
                SLOTS, SHIFT, FUSED, LEAD_G, SHIFT_G, EVEN, UNIT, SKEW, V, OWN, PIECES, PIECES, WIDE,
                ONE_BATCH, ACC, INTERIOR,
            )  # fmt: skip
        else:
            for first in tl.range(0, PIECES, PIECES // SPLIT, num_stages=1):
                ends_acc = _fma_tile(
                    ends_acc, tile, first, g_ptr, g_strides, x_ptr, x_strides, out_ptr, weights, lead,
                    COUNT, SLOTS, SHIFT, FUSED, LEAD_G, SHIFT_G, EVEN, UNIT, SKEW, V, OWN,
                    PIECES // SPLIT, PIECES, WIDE, ONE_BATCH, ACC, SKEWED_TAIL if TAIL else SKEWED,
                )  # fmt: skip
    slot = tl.arange(0, SLOTS)
    tap = band * COUNT + slot
    to = (head * parts + part).to(tl.int64) * taps + tap
    sums = tl.sum(acc, axis=0)
    if SKEW:
        sums += tl.sum(ends_acc, axis=0)
    tl.store(sums_ptr + to, sums, mask=(slot < COUNT) & (tap < taps))


@triton.jit
def _dot_tile(
    product: tl.tensor,
    tile: Tile,
    g_ptr: tl.tensor,
    g_strides: Strides,
    x_ptr: tl.tensor,
    x_strides: Strides,
    out_ptr: tl.tensor,
    filters: Filter,
    w: tl.tensor,
    taps: tl.tensor,
    lead: tl.tensor,
    mirrored: tl.tensor,
    lead_g: tl.tensor,
    FUSED: tl.constexpr,
    SOFTMAX: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDE: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """Add to `product` [N, 2 N] that of a tile of g with windows of x.

    The window of a block begins `lead` positions behind it. With FUSED, grad_x is stored, too.
    """
    place, start, bounds = locate(tile, 0, BLOCKS, N, BLOCKS, WIDE, False, UNIT, SKEW, ACCESS)
    g_ptrs = row_ptrs(g_ptr, place, g_strides, UNIT, SKEW)
    x_ptrs = row_ptrs(x_ptr, place, x_strides, UNIT, SKEW)
    TYPE: tl.constexpr = g_ptr.dtype.element_ty
    g = load_block(g_ptrs, start, bounds, g_strides.position, N, ACCESS, TYPE)
    x_bounds = bounds
    if ACCESS == BOUNDS_CHECKED:
        x_bounds = within_rows(start, bounds)
    x = load_block(x_ptrs, start + lead, x_bounds, x_strides.position, 2 * N, ACCESS, TYPE)
    product = tl.dot(tl.trans(g), x, product)
    if FUSED:
        w_ptr, step, peak, scale = filters
        around = load_block(g_ptrs, start - lead_g, bounds, g_strides.position, 2 * N, ACCESS, TYPE)
        grad = multiply(around, w, tl.zeros((BLOCKS, N), tl.float32), SOFTMAX)
        grad = recompute_nan_rows(
            grad, g_ptrs, start, bounds, g_strides.position,
            w_ptr, taps, mirrored, step, peak, scale, BLOCKS, N, SOFTMAX, ACCESS,
        )  # fmt: skip
        to_ptrs = out_ptrs(out_ptr, tile, place, UNIT, SKEW)
        store_block(to_ptrs, grad, start, bounds, N, SKEW, ACCESS)
    return product


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNALIGNED)
def _dot_kernel(
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
    lead_octets: tl.tensor,
    parts: tl.tensor,
    bands: tl.tensor,
    stride_gb: tl.int64,
    stride_gc: tl.int64,
    stride_gt: tl.tensor,
    stride_xb: tl.int64,
    stride_xc: tl.int64,
    stride_xt: tl.tensor,
    stride_wh: tl.int64,
    stride_wk: tl.int64,
    FUSED: tl.constexpr,
    SOFTMAX: tl.constexpr,
    STEP: tl.constexpr,
    EVEN: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    TAIL: tl.constexpr,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDE: tl.constexpr,
    BIG: tl.constexpr,
) -> None:
    """Store what `_fma_kernel` stores; a band has N taps or, with FUSED, all of at most N + 1."""
    band = tl.program_id(0) % bands
    part = tl.program_id(0) // bands % parts
    head = tl.program_id(0) // bands // parts
    tap = padding - lead_octets * OCTET + band * N  # on the main diagonal: between 0 and -7
    lead = band * N - lead_octets * OCTET
    mirrored = taps - 1 - padding
    lead_g = (mirrored + OCTET - 1) // OCTET * OCTET
    filters = ()
    w = lead
    if FUSED:
        filters = filter_of(
            w_ptr + head * stride_wh, taps, stride_wk, True, SOFTMAX, STEP, tl.float32
        )
        f_ptr, step, peak, scale = filters
        w = toeplitz(f_ptr, mirrored - lead_g, taps, step, peak, scale, N + 1, N, SOFTMAX, False)
    g_strides = Strides(stride_gb, stride_gc, stride_gt)
    x_strides = Strides(stride_xb, stride_xc, stride_xt)
    ACCESS: tl.constexpr = (SKEWED_TAIL if TAIL else SKEWED) if SKEW else BOUNDS_CHECKED
    product = tl.zeros((N, 2 * N), tl.float32)
    for at in range(part, tiles, parts):
        tile = tile_of(at, head, rows, group, channels, units, tiles_wide, UNIT, BIG)
        if not SKEW:
            product = _dot_tile(
                product, tile, g_ptr, g_strides, x_ptr, x_strides, out_ptr, filters, w, taps,
                lead, mirrored, lead_g, FUSED, SOFTMAX, UNIT, SKEW, N, BLOCKS, WIDE, ACCESS,
            )  # fmt: skip
        elif is_interior(tile, tl.maximum(-lead, lead_g), 2 * N + band * N, SKEW, N, BLOCKS, WIDE):
            product = _dot_tile(
                product, tile, g_ptr, g_strides, x_ptr, x_strides, out_ptr, filters, w, taps,
                lead, mirrored, lead_g, FUSED, SOFTMAX, UNIT, SKEW, N, BLOCKS, WIDE, INTERIOR,
            )  # fmt: skip
        else:
            product = _dot_tile(
                product, tile, g_ptr, g_strides, x_ptr, x_strides, out_ptr, filters, w, taps,
                lead, mirrored, lead_g, FUSED, SOFTMAX, UNIT, SKEW, N, BLOCKS, WIDE, ACCESS,
            )  # fmt: skip
    # Row i has its element of diagonal r in column i + r. Once rows are shifted, diagonals are
    # columns.
    r = tl.arange(0, 2 * N)
    columns = (tl.arange(0, N)[:, None] + r[None, :]) % (2 * N)
    sums = tl.sum(tl.gather(product, columns, axis=1), axis=0)
    j = tap + r
    counts = (r < (N + 1 if FUSED else N)) & (j >= 0) & (j < taps)
    sums_ptr += (head * parts + part).to(tl.int64) * taps
    # Outside of a row g is 0, and times a NaN or inf of x it gives NaN: such sums are computed
    # again.
    if not EVEN and tl.max((counts & (sums != sums)).to(tl.int32)) != 0:  # noqa: PLR0124  # so NaN is found
        for lost_tap in range(tl.maximum(tap, 0), tl.minimum(tap + N + 1, taps)):
            total = tl.zeros((BLOCKS, N), tl.float32)
            for at in range(part, tiles, parts):
                tile = tile_of(at, head, rows, group, channels, units, tiles_wide, UNIT, BIG)
                total += tap_products(
                    tile, g_ptr, g_strides, x_ptr, x_strides, lost_tap - padding, UNIT, SKEW, N, BLOCKS,
                    WIDE, ACCESS,
                )  # fmt: skip
            sums = tl.where(j == lost_tap, tl.sum(tl.sum(total, axis=1), axis=0), sums)
    tl.store(sums_ptr + j, sums, mask=counts)
