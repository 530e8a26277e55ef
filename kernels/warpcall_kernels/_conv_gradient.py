"""The gradients of a convolution: of x and of the filters in one pass, added up in a fixed order.

    grad_x[b, c, s] = sum_j w[h, j] * g[b, c, s - j + padding_l]
    grad_weight[h, j] = sum over b, the channels c of h, and t of g[b, c, t] * x[b, c, t + j - padding_l]

A program takes its share of a head's tiles, and for each the gradient of x, as the forward kernels
do, from a window of g. For the filter it sums products of g with a window of x:

- few taps, fp32 and fp64 (`_fma_kernel`): a thread has a piece of a row, and a sum for each tap;
- many taps of fp16 and bf16 (`_dot_kernel`): G^T, [N, blocks], times windows of X, [blocks, 2 N], is
  a matrix that has the sum of a tap along each diagonal.

At its end a program writes its sums, and `_reduce_kernel` adds those of all programs in one order, so
that the same inputs give the same bits. A filter of more taps than a program sums is cut into bands;
grad_x is then a launch of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._conv import (
    NARROW,
    OCTET,
    PLAIN,
    SOFTMAX_STEP,
    UNALIGNED,
    Tiling,
    common_unit,
    correlate,
    filter_of,
    load_block,
    locate,
    multiply,
    pack,
    softmax_terms,
    step_of,
    store_block,
    toeplitz,
    unpack,
    weights_of,
    window,
    without_strangers,
)
from warpcall_kernels._torch import VECTOR_BYTES, Launch, Layout

BAND = 32  # taps that a program sums: as many registers a thread
BAND_FP64 = 16  # a sum takes two registers
# Of a tile: 4 a thread of two-byte types read whole, 2 of others. [8, 1024, 2048] on an H200, bf16, 7 taps 31 us, with 2 a
# thread 39; fp32 54, and 61 with 4; as many programs as are busy at once, with twice as many bf16 is level.
PIECES = 256
WARPS_NARROW, WARPS = 2, 4
PARTS = 1056  # programs in all, 8 for each of 132 multiprocessors, where rows suffice
FMA_MAX_TAPS = 8  # of fp16 and bf16: more are less work as a product, and take fewer registers
DOT_BLOCK = 32  # N: up to 33 diagonals from one product of two tiles
DOT_BLOCKS = 64  # [8, 1024, 2048], bf16, 31 taps on an H200 48 us, with 128 63
DOT_WARPS = 4
REDUCE = 4096  # sums that are read at once
MAX_SOFTMAX_TAPS = 4096  # of which the gradient of the softmax holds a whole filter


@triton.jit(do_not_specialize=PLAIN, do_not_specialize_on_alignment=UNALIGNED)
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
    UNIT: tl.constexpr,
    COUNT: tl.constexpr,
    SLOTS: tl.constexpr,
    SHIFT: tl.constexpr,
    FUSED: tl.constexpr,
    LEAD_G: tl.constexpr,
    SHIFT_G: tl.constexpr,
    SOFTMAX: tl.constexpr,
    STEP: tl.constexpr,
    EVEN: tl.constexpr,
    V: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    BIG: tl.constexpr,
    ACC: tl.constexpr,
) -> None:
    """`sums` [H, parts, K] of COUNT taps from the program's band on; FUSED, grad_x to `out`, too."""
    band = tl.program_id(0) % bands
    part = tl.program_id(0) // bands % parts
    head = tl.program_id(0) // bands // parts
    length = units * UNIT  # so that the compiler knows what divides it, and how wide it may load
    if FUSED:
        w_ptr, step, peak, scale = filter_of(
            w_ptr + head * stride_wh, taps, stride_wk, True, SOFTMAX, STEP, ACC
        )
        weights = weights_of(w_ptr, step, peak, scale, COUNT, SOFTMAX, ACC)
    # The window of x begins SHIFT elements before what the band's first tap meets, at a multiple of V.
    REACH: tl.constexpr = (COUNT + SHIFT + 2 * V - 2) // V
    REACH_G: tl.constexpr = (COUNT + SHIFT_G + 2 * V - 2) // V
    lead = -lead_pieces * V
    if not FUSED:  # there COUNT is a multiple of V: loads keep their width
        lead += band * COUNT
    acc = tl.zeros((PIECES, SLOTS), ACC)
    for tile in range(part, tiles, parts):
        batch, channel, start, live = locate(
            tile, head, rows, group, tiles_wide, V, PIECES, WIDE, BIG
        )
        live = live & (start < length)
        g_ptrs = g_ptr + (batch * stride_gb + channel * stride_gc) * UNIT
        x_ptrs = x_ptr + (batch * stride_xb + channel * stride_xc) * UNIT
        x = window(x_ptrs, start + lead, live, length, stride_xt, REACH, PIECES, V, ACC)
        if FUSED:
            around = window(
                g_ptrs, start - LEAD_G * V, live, length, stride_gt, REACH_G, PIECES, V, ACC
            )
            g = around[LEAD_G * V : LEAD_G * V + V]
            grad = correlate(around, weights, SHIFT_G, COUNT, PIECES, V, ACC)
            out_ptrs = out_ptr + (batch * channels + channel) * length
            store_block(out_ptrs, grad, start, live, length, V)
        else:
            g = unpack(load_block(g_ptrs, start, live, length, stride_gt, V).to(ACC), PIECES, V)
        sums = ()
        for j in tl.static_range(SLOTS):
            total = tl.zeros((PIECES,), ACC)
            if j < COUNT:
                for i in tl.static_range(V):
                    term = g[i] * x[i + j + SHIFT]
                    if not EVEN:  # past the end of a row g is 0, but x may be NaN
                        term = tl.where(start + i < length, term, 0.0)
                    total += term
            sums = sums + (total,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
        acc += pack(sums, PIECES, SLOTS)
    slot = tl.arange(0, SLOTS)
    tap = band * COUNT + slot
    at = (head * parts + part).to(tl.int64) * taps + tap
    tl.store(sums_ptr + at, tl.sum(acc, axis=0), mask=(slot < COUNT) & (tap < taps))


@triton.jit(do_not_specialize=PLAIN, do_not_specialize_on_alignment=UNALIGNED)
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
    UNIT: tl.constexpr,
    FUSED: tl.constexpr,
    SOFTMAX: tl.constexpr,
    STEP: tl.constexpr,
    EVEN: tl.constexpr,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDE: tl.constexpr,
    BIG: tl.constexpr,
) -> None:
    """As `_fma_kernel`, of N taps from the program's band on; FUSED, of all, which are N + 1 at most."""
    band = tl.program_id(0) % bands
    part = tl.program_id(0) // bands % parts
    head = tl.program_id(0) // bands // parts
    length = units * UNIT
    first = padding - lead_octets * OCTET + band * N  # the tap on the main diagonal: 0, or up to -7
    lead = band * N - lead_octets * OCTET
    mirrored = taps - 1 - padding
    lead_g = (mirrored + OCTET - 1) // OCTET * OCTET
    peak, scale = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    step = stride_wk
    if FUSED:
        w_ptr, step, peak, scale = filter_of(
            w_ptr + head * stride_wh, taps, stride_wk, True, SOFTMAX, STEP, tl.float32
        )
        w = toeplitz(w_ptr, mirrored - lead_g, taps, step, peak, scale, N + 1, N, SOFTMAX)
    product = tl.zeros((N, 2 * N), tl.float32)
    for tile in range(part, tiles, parts):
        batch, channel, start, live = locate(
            tile, head, rows, group, tiles_wide, N, BLOCKS, WIDE, BIG
        )
        g_ptrs = g_ptr + (batch * stride_gb + channel * stride_gc) * UNIT
        x_ptrs = x_ptr + (batch * stride_xb + channel * stride_xc) * UNIT
        g = load_block(g_ptrs, start, live, length, stride_gt, N)
        live_x = live & (start < length)
        x = load_block(x_ptrs, start + lead, live_x, length, stride_xt, 2 * N)
        product = tl.dot(tl.trans(g), x, product)
        if FUSED:
            around = load_block(g_ptrs, start - lead_g, live, length, stride_gt, 2 * N)
            grad = multiply(around, w, tl.zeros((BLOCKS, N), tl.float32), SOFTMAX)
            grad = without_strangers(
                grad, g_ptrs, start, live, length, stride_gt,
                w_ptr, taps, mirrored, step, peak, scale, BLOCKS, N, SOFTMAX,
            )  # fmt: skip
            out_ptrs = out_ptr + (batch * channels + channel) * length
            store_block(out_ptrs, grad, start, live, length, N)
    # Row i has diagonal r in column i + r: shift the rows, and diagonals are columns.
    r = tl.arange(0, 2 * N)
    columns = (tl.arange(0, N)[:, None] + r[None, :]) % (2 * N)
    sums = tl.sum(tl.gather(product, columns, axis=1), axis=0)
    tap = first + r
    counts = (r < (N + 1 if FUSED else N)) & (tap >= 0) & (tap < taps)
    sums_ptr += (head * parts + part).to(tl.int64) * taps
    # Past the end of a row g is 0, which a NaN or inf of x makes NaN: such sums are made anew.
    if not EVEN and tl.max((counts & (sums != sums)).to(tl.int32)) != 0:  # noqa: PLR0124  # so NaN is found
        for j in range(tl.maximum(first, 0), tl.minimum(first + N + 1, taps)):
            total = tl.zeros((BLOCKS, N), tl.float32)
            for tile in range(part, tiles, parts):
                batch, channel, start, live = locate(
                    tile, head, rows, group, tiles_wide, N, BLOCKS, WIDE, BIG
                )
                g_ptrs = g_ptr + (batch * stride_gb + channel * stride_gc) * UNIT
                x_ptrs = x_ptr + (batch * stride_xb + channel * stride_xc) * UNIT
                g = load_block(g_ptrs, start, live, length, stride_gt, N)
                x = load_block(x_ptrs, start + j - padding, live, length, stride_xt, N)
                exist = (start[:, None] + tl.arange(0, N)[None, :]) < length
                total += tl.where(exist, g.to(tl.float32) * x.to(tl.float32), 0.0)
            sums = tl.where(tap == j, tl.sum(tl.sum(total, axis=1), axis=0), sums)
    tl.store(sums_ptr + tap, sums, mask=counts)


@triton.jit(do_not_specialize=PLAIN)
def _reduce_kernel(
    sums_ptr: tl.tensor,
    w_ptr: tl.tensor,
    out_ptr: tl.tensor,
    taps: tl.tensor,
    parts: tl.tensor,
    stride_wh: tl.int64,
    stride_wk: tl.int64,
    SOFTMAX: tl.constexpr,
    TAPS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    ACC: tl.constexpr,
) -> None:
    """Add the parts of TAPS taps of a head; SOFTMAX, all of them, through its gradient."""
    head = tl.program_id(0).to(tl.int64)
    tap = tl.program_id(1) * TAPS + tl.arange(0, TAPS)
    exist = tap < taps
    sums_ptr += head * parts * taps
    total = tl.zeros((TAPS,), ACC)
    for first in range(0, parts, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)[:, None]
        at = part.to(tl.int64) * taps + tap[None, :]
        mask = (part < parts) & exist[None, :]
        total += tl.sum(tl.load(sums_ptr + at, mask=mask, other=0.0), axis=0)
    if SOFTMAX:
        w_ptr += head * stride_wh
        peak, scale = softmax_terms(w_ptr, taps, stride_wk, TAPS, ACC)
        w = tl.load(w_ptr + tap * stride_wk, mask=exist, other=float("-inf")).to(ACC)
        y = tl.exp(w - peak) * scale
        total = y * (total - tl.sum(tl.where(exist, y * total, 0.0)))
    tl.store(out_ptr + head * taps + tap, total.to(out_ptr.dtype.element_ty), mask=exist)


class Gradients(NamedTuple):
    """The launches of a backward pass.

    Args:
        fused: whether `both` gives grad_x, too.
        sums: the shape of the workspace, [H, parts, K].
        both: on (g, x, weight, grad_x, sums).
        reduce: on (sums, weight, grad_weight), or None where torch does it.
    """

    fused: bool
    sums: tuple[int, int, int]
    both: Launch
    reduce: Launch | None


def plan(g: Layout, x: Layout, weight: Layout, padding_l: int, softmax_weight: bool) -> Gradients:
    """The launches for g and x [B, C, T], weight [H, K], of any strides, none of them empty."""
    (batches, channels, length), x_strides, dtype, _ = x
    (heads, taps), w_strides, *_ = weight
    g_strides = g[1]
    group = channels // heads
    rows = batches * group
    unit = common_unit(x, g)
    wide = dtype == torch.float64
    acc = tl.float64 if wide else tl.float32
    mirrored = taps - 1 - padding_l  # of grad_x, whose filters are reversed
    dot = dtype in NARROW and taps > FMA_MAX_TAPS
    width = DOT_BLOCK if dot else VECTOR_BYTES // dtype.itemsize
    tiling = Tiling.of(rows, length, width, DOT_BLOCKS if dot else PIECES)
    if dot:
        lead, lead_g = -(-padding_l // OCTET.value), -(-mirrored // OCTET.value)
        reach = taps + lead * OCTET.value - padding_l  # taps, and those between a window and them
        fused = max(reach, taps + lead_g * OCTET.value - mirrored) <= DOT_BLOCK + 1
        bands = 1 if fused else triton.cdiv(reach, DOT_BLOCK)
        kernel: Any = _dot_kernel
        own = {
            "padding": padding_l,
            "lead_octets": lead,
            "N": DOT_BLOCK,
            "BLOCKS": DOT_BLOCKS,
            "num_warps": DOT_WARPS if unit >= OCTET.value else 2 * DOT_WARPS,  # or addresses spill
        }
    else:
        lead, lead_g = -(-padding_l // width), -(-mirrored // width)
        band = min(taps, BAND_FP64 if wide else BAND)
        bands = triton.cdiv(taps, band)
        fused = bands == 1
        kernel = _fma_kernel
        own = {
            "lead_pieces": lead,
            "COUNT": band,
            "SLOTS": triton.next_power_of_2(band),
            "SHIFT": lead * width - padding_l,
            "LEAD_G": lead_g if fused else 0,
            "SHIFT_G": lead_g * width - mirrored if fused else 0,
            "V": width,
            "PIECES": PIECES,
            "ACC": acc,
            "num_warps": WARPS_NARROW if dtype in NARROW and unit == width else WARPS,
        }
    parts = min(tiling.tiles, max(1, PARTS // (heads * bands)))
    arguments: dict[str, Any] = {
        **own,
        "rows": rows,
        "group": group,
        "channels": channels,
        "units": length // unit,
        "tiles": tiling.tiles,
        "tiles_wide": tiling.tiles_wide,
        "taps": taps,
        "parts": parts,
        "bands": bands,
        "stride_gb": g_strides[0] // unit,
        "stride_gc": g_strides[1] // unit,
        "stride_gt": step_of(g),
        "stride_xb": x_strides[0] // unit,
        "stride_xc": x_strides[1] // unit,
        "stride_xt": step_of(x),
        "stride_wh": w_strides[0],
        "stride_wk": w_strides[1],
        "UNIT": unit,
        "FUSED": fused,
        "SOFTMAX": fused and softmax_weight,
        "STEP": min(SOFTMAX_STEP, triton.next_power_of_2(taps)),
        "EVEN": length % width == 0,
        "WIDE": tiling.wide,
        "BIG": tiling.big,
    }
    both = Launch(kernel, (heads * parts * bands,), arguments)
    reduce = None
    block = triton.next_power_of_2(taps)
    if not softmax_weight or block <= MAX_SOFTMAX_TAPS:
        block = block if softmax_weight else min(block, BAND)
        arguments = {
            "taps": taps,
            "parts": parts,
            "stride_wh": w_strides[0],
            "stride_wk": w_strides[1],
            "SOFTMAX": softmax_weight,
            "TAPS": block,
            "AT_ONCE": min(REDUCE // block, triton.next_power_of_2(parts)),
            "ACC": acc,
        }
        reduce = Launch(_reduce_kernel, (heads, triton.cdiv(taps, block)), arguments)
    return Gradients(fused, (heads, parts, taps), both, reduce)
