"""The kernel of conv-backward that sums the gradient of long filters; `_conv/backward.py` says when
it is taken.

Pieces of rows are one block of N positions long. X^T G of two blocks is a matrix that has the sum
of a tap along each diagonal. A program holds BANDS such matrices, which are all taps, and reads x
and g once for all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from warpcall_kernels._conv.filters import UNALIGNED, UNSPECIALIZED, tap_products
from warpcall_kernels._conv.forward_bands import load_blocks, zero_blocks
from warpcall_kernels._conv.rows import (
    BOUNDS_CHECKED,
    Strides,
    aligned_tile,
    load_block,
    row_ptrs,
    tile_of,
    within_rows,
)


@triton.jit
def _add_products(
    products: tl.tensor, g: tl.tensor, x: tl.tensor, BANDS: tl.constexpr
) -> tl.tensor:
    """`products` [N, N], one for each band, plus those of a block of g and the blocks of x."""
    added = ()
    for b in tl.static_range(BANDS):
        product = tl.dot(tl.trans(x[b]), g, products[b])
        added = added + (product,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
    return added


@triton.jit
def _diagonal_sums(product: tl.tensor, N: tl.constexpr) -> tl.tensor:
    """Sums along the diagonals of a product [N, N], as two tensors [N].

    Element r of the first is the sum where row - column is r, of the second where it is r - N.
    """
    row, r = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    turned = tl.gather(product, (row - r + N) % N, axis=1)  # diagonals are columns now
    return (
        tl.sum(tl.where(row >= r, turned, 0.0), axis=0),
        tl.sum(tl.where(row < r, turned, 0.0), axis=0),
    )


@triton.jit(do_not_specialize=UNSPECIALIZED, do_not_specialize_on_alignment=UNALIGNED)
def _bands_kernel(
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
    LEAD: tl.constexpr,
    BANDS: tl.constexpr,
    EVEN: tl.constexpr,
    UNIT: tl.constexpr,
    N: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    BIG: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Store `sums` [H, parts, K]. The window of x of a block begins LEAD blocks before it."""
    if PDL:
        gdc_launch_dependents()
    part, head = tl.program_id(0) % parts, tl.program_id(0) // parts
    TYPE: tl.constexpr = g_ptr.dtype.element_ty
    g_strides = Strides(stride_gb, stride_gc, stride_gt)
    x_strides = Strides(stride_xb, stride_xc, stride_xt)
    products = zero_blocks(BANDS, N, N)
    for at in tl.range(part, tiles, parts, num_stages=STAGES):
        tile, place, start, bounds = aligned_tile(
            at, head, rows, group, channels, units, tiles_wide, UNIT, N, PIECES, WIDE,
            ONE_BATCH, BIG,
        )  # fmt: skip
        bounds = within_rows(start, bounds)
        g_ptrs = row_ptrs(g_ptr, place, g_strides, UNIT, 0)
        x_ptrs = row_ptrs(x_ptr, place, x_strides, UNIT, 0)
        g = load_block(g_ptrs, start, bounds, stride_gt, N, BOUNDS_CHECKED, TYPE)
        x = load_blocks(x_ptrs, start - LEAD * N, bounds, stride_xt, BANDS, N, TYPE)
        products = _add_products(products, g, x, BANDS)
    sums_ptr += (head * parts + part).to(tl.int64) * taps
    sums, before = _diagonal_sums(products[0], N)  # `before` belongs to no tap
    for b in tl.static_range(BANDS):
        if b + 1 < BANDS:
            following, before = _diagonal_sums(products[b + 1], N)
            sums += before
        first = padding - LEAD * N + b * N
        j = first + tl.arange(0, N)
        counts = (j >= 0) & (j < taps)
        # Outside of a row g is 0, and times a NaN or inf of x it gives NaN: such sums are computed
        # again.
        if not EVEN and tl.max((counts & (sums != sums)).to(tl.int32)) != 0:  # noqa: PLR0124  # so NaN is found
            for lost_tap in range(tl.maximum(first, 0), tl.minimum(first + N, taps)):
                total = tl.zeros((PIECES, N), tl.float32)
                for at in range(part, tiles, parts):
                    tile = tile_of(at, head, rows, group, channels, units, tiles_wide, UNIT, BIG)
                    total += tap_products(
                        tile, g_ptr, g_strides, x_ptr, x_strides, lost_tap - padding, UNIT, 0, N,
                        PIECES, WIDE, BOUNDS_CHECKED,
                    )  # fmt: skip
                sums = tl.where(j == lost_tap, tl.sum(tl.sum(total, axis=1), axis=0), sums)
        tl.store(sums_ptr + j, sums, mask=counts)
        if b + 1 < BANDS:
            sums = following
