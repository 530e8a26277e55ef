"""Lightweight convolution along the last dim: the two kernels, and how one is chosen.

`conv` runs them as they are, `conv-backward` with the filter flipped.

Few taps, and fp32 or fp64: `_fma_kernel`. A thread owns one piece, 16 bytes of a row, and loads it
and the pieces that its window reaches into with 16-byte accesses (DRAM is read once, the rest hits
L1); the taps, unrolled, are then fused multiply-adds of registers with fixed numbers.
Many taps of fp16 or bf16: `_dot_kernel`. A window of X, [blocks, 2 N], times the banded Toeplitz
matrix of the filter, [2 N, N], is one `tl.dot`: tensor cores make 31 taps as cheap as 3.
"""

from __future__ import annotations

import functools
from typing import Any

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
    check_filter,
    common_unit,
    correlate,
    filter_of,
    load_block,
    locate,
    multiply,
    step_of,
    store_block,
    toeplitz,
    weights_of,
    window,
    without_strangers,
)
from warpcall_kernels._torch import VECTOR_BYTES, Launch, Layout, meta

# Of fp16 and bf16: 2 + K instructions an element, against some 6 of the dot and its way through shared
# memory; [32, 512, 512], bf16, 15 taps on an H200 14.0 us, by the dot 16.6.
FMA_MAX_TAPS = 16

FMA_PIECES = 128  # a tile: 4 pieces a thread; at [8, 1024, 2048], fp32, 31 taps on an H200 47 us,
FMA_WARPS = 1  # with 2 warps 62; at 7 taps of bf16 they are level
BAND = 32  # taps unrolled; a longer filter is a loop over bands and an unrolled rest
BAND_FP64 = 16  # a weight takes two registers

DOT_TILE = 2048  # outputs a program: 64 blocks of 32
DOT_WARPS = 2  # [32, 512, 512], bf16, 31 taps on an H200 15.3 us, with 4 warps of 4096 outputs 16.4
DOT_PROGRAMS = 1056  # in all, 8 for each of 132 multiprocessors, as each builds its matrix
DOT_SHORT = 32  # N for up to 33 taps, in one dot: the Toeplitz matrix is half full at 31
DOT_LONG = 64  # N for longer filters, in a loop: half as many windows as with 32


@triton.jit(do_not_specialize=PLAIN, do_not_specialize_on_alignment=UNALIGNED)
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
    V: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    BIG: tl.constexpr,
    ACC: tl.constexpr,
) -> None:
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, channel, start, live = locate(tile, head, rows, group, tiles_wide, V, PIECES, WIDE, BIG)
    length = units * UNIT  # so that the compiler knows what divides it, and how wide it may load
    x_ptrs = x_ptr + (batch * stride_xb + channel * stride_xc) * UNIT
    out_ptrs = out_ptr + (batch * channels + channel) * length
    w_ptr, step, peak, scale = filter_of(
        w_ptr + head * stride_wh, taps, stride_wk, FLIP, SOFTMAX, STEP, ACC
    )

    begin = start - lead_pieces * V
    acc = tl.zeros((PIECES, V), ACC)
    if LOOP:
        COUNT: tl.constexpr = (BAND + SHIFT + 2 * V - 2) // V
        for _ in range(taps // BAND):
            weights = weights_of(w_ptr, step, peak, scale, BAND, SOFTMAX, ACC)
            values = window(x_ptrs, begin, live, length, stride_xt, COUNT, PIECES, V, ACC)
            acc += correlate(values, weights, SHIFT, BAND, PIECES, V, ACC)
            w_ptr += BAND * step
            begin += BAND
    if REST > 0:
        REACH: tl.constexpr = (REST + SHIFT + 2 * V - 2) // V
        weights = weights_of(w_ptr, step, peak, scale, REST, SOFTMAX, ACC)
        values = window(x_ptrs, begin, live, length, stride_xt, REACH, PIECES, V, ACC)
        acc += correlate(values, weights, SHIFT, REST, PIECES, V, ACC)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + channel * stride_bias, mask=live, other=0.0).to(ACC)[:, None]
    store_block(out_ptrs, acc, start, live, length, V)


@triton.jit(do_not_specialize=PLAIN, do_not_specialize_on_alignment=UNALIGNED)
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
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDE: tl.constexpr,
    BIG: tl.constexpr,
) -> None:
    part, head = tl.program_id(0) % parts, tl.program_id(0) // parts
    length = units * UNIT
    w_ptr, step, peak, scale = filter_of(
        w_ptr + head * stride_wh, taps, stride_wk, FLIP, SOFTMAX, STEP, tl.float32
    )
    first = padding - lead_octets * OCTET  # the tap on the main diagonal: 0, or up to -7
    w = toeplitz(w_ptr, first, taps, step, peak, scale, N if LOOP else N + 1, N, SOFTMAX)
    for tile in range(part, tiles, parts):
        batch, channel, start, live = locate(
            tile, head, rows, group, tiles_wide, N, BLOCKS, WIDE, BIG
        )
        x_ptrs = x_ptr + (batch * stride_xb + channel * stride_xc) * UNIT
        out_ptrs = out_ptr + (batch * channels + channel) * length
        begin = start - lead_octets * OCTET
        x = load_block(x_ptrs, begin, live, length, stride_xt, 2 * N)
        acc = multiply(x, w, tl.zeros((BLOCKS, N), tl.float32), SOFTMAX)
        if LOOP:
            for band in range(1, bands):
                at = first + band * N
                further = toeplitz(w_ptr, at, taps, step, peak, scale, N, N, SOFTMAX)
                x = load_block(x_ptrs, begin + band * N, live, length, stride_xt, 2 * N)
                acc = multiply(x, further, acc, SOFTMAX)
        acc = without_strangers(
            acc, x_ptrs, start, live, length, stride_xt,
            w_ptr, taps, padding, step, peak, scale, BLOCKS, N, SOFTMAX,
        )  # fmt: skip
        if bias_ptr is not None:
            acc += tl.load(bias_ptr + channel * stride_bias, mask=live, other=0.0).to(tl.float32)[
                :, None
            ]
        store_block(out_ptrs, acc, start, live, length, N)


@functools.lru_cache(maxsize=4096)
def plan(
    x: Layout,
    weight: Layout,
    bias: Layout | None,
    padding_l: int | None,
    softmax_weight: bool,
    flip: bool = False,
) -> Launch:
    """The launch, on (x, weight, bias or None, out); `out` is contiguous.

    Args:
        x, weight, bias: [B, C, T], [H, K], [C], any strides.
        padding_l: None is K - 1.
        flip: reverse the filters, after their softmax.

    Raises:
        InvalidInput: shapes or dtypes that do not fit, or a padding out of range.
    """
    bias_meta = None if bias is None else meta(bias)
    padding_l = check_filter("x", meta(x), meta(weight), bias_meta, padding_l)
    (batches, channels, length), x_strides, dtype, _ = x
    (heads, taps), w_strides, *_ = weight
    group = channels // heads
    rows = batches * group
    unit = common_unit(x)
    launch: dict[str, Any] = {
        "rows": rows,
        "group": group,
        "channels": channels,
        "units": length // unit,
        "taps": taps,
        "stride_xb": x_strides[0] // unit,
        "stride_xc": x_strides[1] // unit,
        "stride_xt": step_of(x),
        "stride_wh": w_strides[0],
        "stride_wk": w_strides[1],
        "stride_bias": 0 if bias is None else bias[1][0],
        "FLIP": flip,
        "SOFTMAX": softmax_weight,
        "STEP": min(SOFTMAX_STEP, triton.next_power_of_2(taps)),
        "UNIT": unit,
    }
    if dtype in NARROW and taps > FMA_MAX_TAPS:
        lead = -(-padding_l // OCTET.value)
        reach = taps + lead * OCTET.value - padding_l  # taps, and those between a window and them
        narrow = unit < OCTET.value  # accesses, and each address takes registers
        block = DOT_SHORT if narrow or reach <= DOT_SHORT + 1 else DOT_LONG
        pieces = DOT_TILE // block
        tiling = Tiling.of(rows, length, block, pieces)
        launch |= {
            "padding": padding_l,
            "lead_octets": lead,
            "bands": -(-reach // block),
            "LOOP": reach > block + 1,
            "N": block,
            "BLOCKS": pieces,
            "parts": min(tiling.tiles, max(1, DOT_PROGRAMS // heads)),
            "num_warps": 2 * DOT_WARPS if narrow else DOT_WARPS,
        }
        kernel, programs = _dot_kernel, heads * launch["parts"]
    else:
        width = VECTOR_BYTES // dtype.itemsize
        band = BAND_FP64 if dtype == torch.float64 else BAND
        lead = -(-padding_l // width)
        tiling = Tiling.of(rows, length, width, FMA_PIECES)
        launch |= {
            "lead_pieces": lead,
            "SHIFT": lead * width - padding_l,
            "REST": taps % band,
            "LOOP": taps >= band,
            "BAND": band,
            "V": width,
            "PIECES": FMA_PIECES,
            "ACC": tl.float64 if dtype == torch.float64 else tl.float32,
            "num_warps": FMA_WARPS,
        }
        kernel, programs = _fma_kernel, heads * tiling.tiles
    launch |= {"tiles": tiling.tiles, "tiles_wide": tiling.tiles_wide}
    launch |= {"WIDE": tiling.wide, "BIG": tiling.big}
    return Launch(kernel, (programs,), launch)
