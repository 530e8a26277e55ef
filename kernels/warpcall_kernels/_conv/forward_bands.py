"""The kernel of lightweight convolution for long filters; `_conv/forward.py` says when it is taken.

A block of N outputs is the product of a window of x with the banded Toeplitz matrix of the filter.
The matrix is cut into BANDS square matrices, the *band matrices*. They are the same for all rows of
a head, so a program builds them once. It then takes tiles whose pieces are SUPER blocks long: each
block of x is loaded once for all blocks of outputs that it reaches.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._conv.filters import (
    OCTET,
    UNALIGNED,
    UNSPECIALIZED,
    Filter,
    filter_of,
    load_diagonals,
    tap_by_tap,
)
from warpcall_kernels._conv.rows import (
    BOUNDS_CHECKED,
    Bounds,
    Strides,
    aligned_tile,
    load_near,
    out_ptrs,
    row_ptrs,
    store_block,
)


@triton.jit
def band_matrices(
    filters: Filter,
    first: tl.tensor,
    taps: tl.tensor,
    BANDS: tl.constexpr,
    N: tl.constexpr,
    TYPE: tl.constexpr,
    SOFTMAX: tl.constexpr,
) -> tl.tensor:
    """BANDS matrices [N, N]: element (i, n) of matrix b is tap `first + b * N + i - n`, or 0.

    With SOFTMAX, BANDS more follow: what rounding the weights to TYPE has cut off.
    """
    w_ptr, stride_wk, peak, scale = filters
    matrices, rests = (), ()
    for b in tl.static_range(BANDS):
        w, inside = load_diagonals(w_ptr, first + b * N, taps, stride_wk, N, N)
        if SOFTMAX:
            w = tl.where(inside, tl.exp(w.to(tl.float32) - peak) * scale, 0.0)
            rests = rests + ((w - w.to(TYPE).to(tl.float32)).to(TYPE),)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
        matrices = matrices + (w.to(TYPE),)  # type: ignore[assignment]  # noqa: RUF005
    return matrices + rests


@triton.jit
def zero_blocks(COUNT: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr) -> tl.tensor:
    """COUNT blocks [ROWS, N] of zeros, to which products are added."""
    blocks = ()
    for _ in tl.static_range(COUNT):
        blocks = blocks + (tl.zeros((ROWS, N), tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    return blocks


@triton.jit
def add_products(
    totals: tl.tensor,
    x: tl.tensor,
    matrices: tl.tensor,
    S: tl.constexpr,
    SUPER: tl.constexpr,
    BANDS: tl.constexpr,
    SOFTMAX: tl.constexpr,
) -> tl.tensor:
    """`totals`, the SUPER blocks of outputs, plus what block S of the window adds to them."""
    added = ()
    for o in tl.static_range(SUPER):
        total = totals[o]
        if S - o >= 0 and S - o < BANDS:
            total = tl.dot(x, matrices[S - o], total)
            if SOFTMAX:
                total = tl.dot(x, matrices[BANDS + S - o], total)
        added = added + (total,)  # type: ignore[assignment]  # noqa: RUF005
    return added


@triton.jit
def load_blocks(
    ptrs: tl.tensor,
    start: tl.tensor,
    bounds: Bounds,
    stride: tl.tensor,
    COUNT: tl.constexpr,
    N: tl.constexpr,
    TYPE: tl.constexpr,
) -> tl.tensor:
    """COUNT blocks of N positions each, from `start` on; 0 outside of the row."""
    ptrs += start if stride is None else start.to(tl.int64) * stride
    blocks = ()
    for s in tl.static_range(COUNT):
        block = load_near(ptrs, start, bounds, stride, s * N, N, TYPE)
        blocks = blocks + (block,)  # type: ignore[assignment]  # noqa: RUF005
    return blocks


@triton.jit
def _load_bias(
    bias_ptr: tl.tensor,
    channel: tl.tensor,
    stride_bias: tl.tensor,
    bounds: Bounds,
    PIECES: tl.constexpr,
) -> tl.tensor:
    """What is added to each piece; 0 without a bias."""
    bias = tl.zeros((PIECES,), tl.float32)
    if bias_ptr is not None:
        at = bias_ptr + channel * stride_bias
        bias = tl.load(at, mask=bounds.live, other=0.0).to(tl.float32)
    return bias


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNALIGNED)
def _bands_kernel(
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
    stride_xb: tl.int64,
    stride_xc: tl.int64,
    stride_xt: tl.tensor,
    stride_wh: tl.int64,
    stride_wk: tl.int64,
    stride_bias: tl.int64,
    FLIP: tl.constexpr,
    SOFTMAX: tl.constexpr,
    STEP: tl.constexpr,
    UNIT: tl.constexpr,
    BANDS: tl.constexpr,
    SUPER: tl.constexpr,
    N: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    BIG: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    part, head = tl.program_id(0) % parts, tl.program_id(0) // parts
    filters = filter_of(w_ptr + head * stride_wh, taps, stride_wk, FLIP, SOFTMAX, STEP, tl.float32)
    strides = Strides(stride_xb, stride_xc, stride_xt)
    lead = lead_octets * OCTET
    TYPE: tl.constexpr = x_ptr.dtype.element_ty
    matrices = band_matrices(filters, padding - lead, taps, BANDS, N, TYPE, SOFTMAX)
    BLOCKS: tl.constexpr = SUPER + BANDS - 1
    nan = tl.zeros((PIECES,), tl.int32)  # whether any element of these pieces is NaN
    for at in tl.range(part, tiles, parts, num_stages=STAGES):
        tile, place, start, bounds = aligned_tile(
            at, head, rows, group, channels, units, tiles_wide, UNIT, N * SUPER, PIECES, WIDE,
            ONE_BATCH, BIG,
        )  # fmt: skip
        x_ptrs = row_ptrs(x_ptr, place, strides, UNIT, 0)
        x = load_blocks(x_ptrs, start - lead, bounds, stride_xt, BLOCKS, N, TYPE)
        totals = zero_blocks(SUPER, PIECES, N)
        for s in tl.static_range(BLOCKS):
            totals = add_products(totals, x[s], matrices, s, SUPER, BANDS, SOFTMAX)
        to_ptrs = out_ptrs(out_ptr, tile, place, UNIT, 0)
        bias = _load_bias(bias_ptr, place.channel + place.further, stride_bias, bounds, PIECES)
        for o in tl.static_range(SUPER):
            nan |= tl.max((totals[o] != totals[o]).to(tl.int32), axis=1)  # so NaN is found
            out = totals[o] + bias[:, None]
            store_block(to_ptrs, out, start + o * N, bounds, N, 0, BOUNDS_CHECKED)
    if tl.max(nan) != 0:  # all tiles again, because a dot lets NaN reach too far
        for at in range(part, tiles, parts):
            tile, place, start, bounds = aligned_tile(
                at, head, rows, group, channels, units, tiles_wide, UNIT, N * SUPER, PIECES, WIDE,
                ONE_BATCH, BIG,
            )  # fmt: skip
            x_ptrs = row_ptrs(x_ptr, place, strides, UNIT, 0)
            to_ptrs = out_ptrs(out_ptr, tile, place, UNIT, 0)
            bias = _load_bias(bias_ptr, place.channel + place.further, stride_bias, bounds, PIECES)
            for o in range(SUPER):
                total = tap_by_tap(
                    x_ptrs, start + o * N, bounds, stride_xt, filters, taps, padding, PIECES, N,
                    SOFTMAX, BOUNDS_CHECKED,
                )  # fmt: skip
                out = total + bias[:, None]
                store_block(to_ptrs, out, start + o * N, bounds, N, 0, BOUNDS_CHECKED)
