"""The gradients of a convolution: of x and of the filters in one pass, added up in a fixed order.

    grad_x[b, c, s] = sum_j w[h, j] * g[b, c, s - j + padding_l]
    grad_weight[h, j] = sum over b, the channels c of h, and t of g[b, c, t] * x[b, c, t + j - padding_l]

A program takes its share of a head's tiles. A thread has one piece of a row at a time: a window of g
around it, from which the piece of grad_x follows, and a window of x, which is multiplied with the
piece of g and added to a sum in registers for each tap. At its end the program writes its sums, and
`_reduce_kernel` adds those of all programs in one order, so that the same inputs give the same bits.
A filter of more taps than a program sums is cut into bands; grad_x is then a launch of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._conv import (
    PLAIN,
    UNALIGNED,
    Tiling,
    common_unit,
    correlate,
    filter_of,
    load_block,
    locate,
    pack,
    softmax_terms,
    step_of,
    store_block,
    unpack,
    weights_of,
    window,
)
from warpcall_kernels._torch import VECTOR_BYTES, Launch, Layout

BAND = 32  # taps that a program sums: as many registers a thread
BAND_FP64 = 16  # a sum takes two registers
PIECES = 128  # of a tile, one a thread: more leave too few warps to hide the loads
WARPS = 4
PARTS = 2048  # programs in all, some 15 for each of 132 multiprocessors, where rows suffice
REDUCE = 4096  # sums that are read at once
MAX_SOFTMAX_TAPS = 4096  # of which the gradient of the softmax holds a whole filter


@triton.jit(do_not_specialize=PLAIN, do_not_specialize_on_alignment=UNALIGNED)
def _gradients_kernel(
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
    lead = band * COUNT - lead_pieces * V
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
    width = VECTOR_BYTES // dtype.itemsize
    unit = common_unit(x, g)
    tiling = Tiling.of(rows, length, width, PIECES)
    wide = dtype == torch.float64
    acc = tl.float64 if wide else tl.float32
    band = min(taps, BAND_FP64 if wide else BAND)
    bands = triton.cdiv(taps, band)
    parts = min(tiling.tiles, max(1, PARTS // (heads * bands)))
    mirrored = taps - 1 - padding_l  # of grad_x, whose filters are reversed
    lead, lead_g = -(-padding_l // width), -(-mirrored // width)
    fused = bands == 1
    arguments: dict[str, Any] = {
        "rows": rows,
        "group": group,
        "channels": channels,
        "units": length // unit,
        "tiles": tiling.tiles,
        "tiles_wide": tiling.tiles_wide,
        "taps": taps,
        "lead_pieces": lead,
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
        "COUNT": band,
        "SLOTS": triton.next_power_of_2(band),
        "SHIFT": lead * width - padding_l,
        "FUSED": fused,
        "LEAD_G": lead_g if fused else 0,
        "SHIFT_G": lead_g * width - mirrored if fused else 0,
        "SOFTMAX": fused and softmax_weight,
        "STEP": triton.next_power_of_2(band),
        "EVEN": length % width == 0,
        "V": width,
        "PIECES": PIECES,
        "WIDE": tiling.wide,
        "BIG": tiling.big,
        "ACC": acc,
        "num_warps": WARPS,
    }
    both = Launch(_gradients_kernel, (heads * parts * bands,), arguments)
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
            "AT_ONCE": max(1, min(REDUCE // block, triton.next_power_of_2(parts))),
            "ACC": acc,
        }
        reduce = Launch(_reduce_kernel, (heads, triton.cdiv(taps, block)), arguments)
    return Gradients(fused, (heads, parts, taps), both, reduce)
