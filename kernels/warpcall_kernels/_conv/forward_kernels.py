"""The kernels of lightweight convolution; `_conv/forward.py` says when each is taken."""

from __future__ import annotations

import triton
import triton.language as tl

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
    is_interior,
    load_block,
    locate,
    out_ptrs,
    row_ptrs,
    store_block,
    tile_of,
)


@triton.jit
def _fma_tile(
    tile: Tile,
    first: tl.tensor,
    x_ptr: tl.tensor,
    x_strides: Strides,
    bias_ptr: tl.tensor,
    stride_bias: tl.tensor,
    out_ptr: tl.tensor,
    filters: Filter,
    taps: tl.tensor,
    before: tl.tensor,
    REST: tl.constexpr,
    LOOP: tl.constexpr,
    BAND: tl.constexpr,
    SHIFT: tl.constexpr,
    SOFTMAX: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    V: tl.constexpr,
    TAKEN: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    ACC: tl.constexpr,
    ACCESS: tl.constexpr,
) -> None:
    """Convolve TAKEN pieces of a tile, from its piece `first` on.

    The window of a piece begins `before` positions before it.
    """
    place, start, bounds = locate(
        tile, first, TAKEN, V, PIECES, WIDE, ONE_BATCH, UNIT, SKEW, ACCESS
    )
    x_ptrs = row_ptrs(x_ptr, place, x_strides, UNIT, SKEW)
    to_ptrs = out_ptrs(out_ptr, tile, place, UNIT, SKEW)
    step = x_strides.position
    w_ptr, stride_wk, peak, scale = filters
    begin = start - before
    acc = tl.zeros((TAKEN, V), ACC)
    if LOOP:
        COUNT: tl.constexpr = (BAND + SHIFT + 2 * V - 2) // V
        for _ in range(taps // BAND):
            weights = weights_of(w_ptr, stride_wk, peak, scale, BAND, SOFTMAX, ACC)
            values = window(x_ptrs, begin, bounds, step, COUNT, TAKEN, V, ACC, ACCESS)
            acc += pack(correlate(values, weights, SHIFT, BAND, TAKEN, V, ACC), TAKEN, V)
            w_ptr += BAND * stride_wk
            begin += BAND
    if REST > 0:
        REACH: tl.constexpr = (REST + SHIFT + 2 * V - 2) // V
        weights = weights_of(w_ptr, stride_wk, peak, scale, REST, SOFTMAX, ACC)
        values = window(x_ptrs, begin, bounds, step, REACH, TAKEN, V, ACC, ACCESS)
        acc += pack(correlate(values, weights, SHIFT, REST, TAKEN, V, ACC), TAKEN, V)
    if bias_ptr is not None:
        acc += tl.load(
            bias_ptr + (place.channel + place.further) * stride_bias, mask=bounds.live, other=0.0
        ).to(ACC)[:, None]
    store_block(to_ptrs, acc, start, bounds, V, SKEW, ACCESS)


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNALIGNED)
def _fma_kernel(
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    group: tl.tensor,
    channels: tl.int64,
    units: tl.tensor,
    tiles: tl.tensor,
    tiles_wide: tl.tensor,
    taps: tl.tensor,
    lead_pieces: tl.tensor,
    stride_xb: tl.int64,
    stride_xc: tl.int64,
    stride_xt: tl.tensor,
    stride_wh: tl.int64,
    stride_wk: tl.int64,
    stride_bias: tl.int64,
    REST: tl.constexpr,
    LOOP: tl.constexpr,
    BAND: tl.constexpr,
    SHIFT: tl.constexpr,
    FLIP: tl.constexpr,
    SOFTMAX: tl.constexpr,
    STEP: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    TAIL: tl.constexpr,
    HAS_INTERIOR: tl.constexpr,
    SPLIT: tl.constexpr,
    END_BAND: tl.constexpr,
    V: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    BIG: tl.constexpr,
    ACC: tl.constexpr,
) -> None:
    at, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    tile = tile_of(at, head, rows, group, channels, units, tiles_wide, UNIT, BIG)
    filters = filter_of(w_ptr + head * stride_wh, taps, stride_wk, FLIP, SOFTMAX, STEP, ACC)
    strides = Strides(stride_xb, stride_xc, stride_xt)
    before = lead_pieces * V
    after = (taps + SHIFT + V - 2) // V * V - before
    if not HAS_INTERIOR:
        _fma_tile(
            tile, 0, x_ptr, strides, bias_ptr, stride_bias, out_ptr, filters, taps, before, REST,
            LOOP, BAND, SHIFT, SOFTMAX, UNIT, SKEW, V, PIECES, PIECES, WIDE, ONE_BATCH, ACC,
            BOUNDS_CHECKED,
        )  # fmt: skip
    elif is_interior(tile, before, after, SKEW, V, PIECES, WIDE):
        _fma_tile(
            tile, 0, x_ptr, strides, bias_ptr, stride_bias, out_ptr, filters, taps, before, REST,
            LOOP, BAND, SHIFT, SOFTMAX, UNIT, SKEW, V, PIECES, PIECES, WIDE, ONE_BATCH, ACC,
            INTERIOR,
        )  # fmt: skip
    else:
        ACCESS: tl.constexpr = (SKEWED_TAIL if TAIL else SKEWED) if SKEW else BOUNDS_CHECKED
        for first in tl.range(0, PIECES, PIECES // SPLIT, num_stages=1):
            _fma_tile(
                tile, first, x_ptr, strides, bias_ptr, stride_bias, out_ptr, filters, taps, before,
                REST % END_BAND, LOOP or REST >= END_BAND, END_BAND, SHIFT, SOFTMAX, UNIT, SKEW,
                V, PIECES // SPLIT, PIECES, WIDE, ONE_BATCH, ACC, ACCESS,
            )  # fmt: skip


@triton.jit
def _dot_tile(
    tile: Tile,
    first: tl.tensor,
    x_ptr: tl.tensor,
    x_strides: Strides,
    bias_ptr: tl.tensor,
    stride_bias: tl.tensor,
    out_ptr: tl.tensor,
    filters: Filter,
    w: tl.tensor,
    taps: tl.tensor,
    padding: tl.tensor,
    lead: tl.tensor,
    bands: tl.tensor,
    LOOP: tl.constexpr,
    SOFTMAX: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    N: tl.constexpr,
    TAKEN: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    ACCESS: tl.constexpr,
) -> None:
    """Convolve TAKEN blocks of a tile, from its block `first` on.

    The window of a block begins `lead` positions before it; `w` is the `toeplitz` matrix of the
    first.
    """
    place, start, bounds = locate(
        tile, first, TAKEN, N, BLOCKS, WIDE, ONE_BATCH, UNIT, SKEW, ACCESS
    )
    x_ptrs = row_ptrs(x_ptr, place, x_strides, UNIT, SKEW)
    to_ptrs = out_ptrs(out_ptr, tile, place, UNIT, SKEW)
    w_ptr, stride_wk, peak, scale = filters
    begin = start - lead
    TYPE: tl.constexpr = x_ptr.dtype.element_ty
    x = load_block(x_ptrs, begin, bounds, x_strides.position, 2 * N, ACCESS, TYPE)
    acc = multiply(x, w, tl.zeros((TAKEN, N), tl.float32), SOFTMAX)
    if LOOP:
        for band in range(1, bands):
            tap = padding - lead + band * N
            further = toeplitz(
                w_ptr, tap, taps, stride_wk, peak, scale, N, N, SOFTMAX, UNIT == OCTET
            )
            x = load_block(
                x_ptrs, begin + band * N, bounds, x_strides.position, 2 * N, ACCESS, TYPE
            )
            acc = multiply(x, further, acc, SOFTMAX)
    acc = recompute_nan_rows(
        acc, x_ptrs, start, bounds, x_strides.position,
        w_ptr, taps, padding, stride_wk, peak, scale, TAKEN, N, SOFTMAX, ACCESS,
    )  # fmt: skip
    if bias_ptr is not None:
        bias = tl.load(
            bias_ptr + (place.channel + place.further) * stride_bias, mask=bounds.live, other=0.0
        )
        acc += bias.to(tl.float32)[:, None]
    store_block(to_ptrs, acc, start, bounds, N, SKEW, ACCESS)


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNALIGNED)
def _dot_kernel(
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    group: tl.tensor,
    channels: tl.int64,
    units: tl.tensor,
    tiles: tl.tensor,
    tiles_wide: tl.tensor,
    parts: tl.tensor,
    taps: tl.tensor,
    lead_octets: tl.tensor,
    padding: tl.tensor,
    bands: tl.tensor,
    stride_xb: tl.int64,
    stride_xc: tl.int64,
    stride_xt: tl.tensor,
    stride_wh: tl.int64,
    stride_wk: tl.int64,
    stride_bias: tl.int64,
    LOOP: tl.constexpr,
    FLIP: tl.constexpr,
    SOFTMAX: tl.constexpr,
    STEP: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    TAIL: tl.constexpr,
    SPLIT: tl.constexpr,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    BIG: tl.constexpr,
) -> None:
    part, head = tl.program_id(0) % parts, tl.program_id(0) // parts
    filters = filter_of(w_ptr + head * stride_wh, taps, stride_wk, FLIP, SOFTMAX, STEP, tl.float32)
    strides = Strides(stride_xb, stride_xc, stride_xt)
    lead = lead_octets * OCTET
    f_ptr, step, peak, scale = filters
    # The tap on the main diagonal is between 0 and -7, because windows begin at multiples of OCTET.
    SPAN: tl.constexpr = N if LOOP else N + 1
    w = toeplitz(f_ptr, padding - lead, taps, step, peak, scale, SPAN, N, SOFTMAX, UNIT == OCTET)
    for at in range(part, tiles, parts):
        tile = tile_of(at, head, rows, group, channels, units, tiles_wide, UNIT, BIG)
        if not SKEW:
            _dot_tile(
                tile, 0, x_ptr, strides, bias_ptr, stride_bias, out_ptr, filters, w, taps, padding,
                lead, bands, LOOP, SOFTMAX, UNIT, SKEW, N, BLOCKS, BLOCKS, WIDE, ONE_BATCH,
                BOUNDS_CHECKED,
            )  # fmt: skip
        elif is_interior(tile, lead, N, SKEW, N, BLOCKS, WIDE):  # there is no LOOP
            _dot_tile(
                tile, 0, x_ptr, strides, bias_ptr, stride_bias, out_ptr, filters, w, taps, padding,
                lead, bands, LOOP, SOFTMAX, UNIT, SKEW, N, BLOCKS, BLOCKS, WIDE, ONE_BATCH,
                INTERIOR,
            )  # fmt: skip
        else:
            for first in tl.range(0, BLOCKS, BLOCKS // SPLIT, num_stages=1):
                _dot_tile(
                    tile, first, x_ptr, strides, bias_ptr, stride_bias, out_ptr, filters, w, taps,
                    padding, lead, bands, LOOP, SOFTMAX, UNIT, SKEW, N, BLOCKS // SPLIT, BLOCKS,
                    WIDE, ONE_BATCH, SKEWED_TAIL if TAIL else SKEWED,
                )  # fmt: skip
