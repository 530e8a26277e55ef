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

from warpcall_kernels._conv.filters import NARROW, OCTET, SOFTMAX_STEP, check_filter
from warpcall_kernels._conv.forward_kernels import _dot_kernel, _fma_kernel
from warpcall_kernels._conv.rows import Alignment, Tiling, last_stride
from warpcall_kernels.op.launch import VECTOR_BYTES, Launch, Layout, LayoutKey

# Of fp16 and bf16: 2 + K instructions an element, against some 6 of the dot and its way through shared
# memory; [32, 512, 512], bf16, 15 taps on an H200 14.0 us, by the dot 16.6.
FMA_MAX_TAPS = 16

FMA_PIECES = 128  # a tile: 4 pieces a thread; at [8, 1024, 2048], fp32, 31 taps on an H200 47 us,
FMA_WARPS = 1  # with 2 warps 62; at 7 taps of bf16 they are level
# Where skewed rows end, parts of a tile, one after another: fewer registers. [16, 256, 4099], bf16, 15 taps on an H200
# 45.5 us (END_BAND 8), whole 53.5, in 4 parts 49.2; few taps of fp32 are taken whole: [8, 1024, 2047], 3 taps 39.9 us,
# in 2 parts 41.2.
FMA_SPLIT = 2
# Tiles along aligned rows from which on those away from the ends are read without masks. On an H200 [4, 1024, 8192],
# bf16, 15 taps 41.4 us, with masks 43.6; fp32, 31 taps 85.6 and 92.0; [8, 1024, 2048] 46.0 and 48.4; few taps are level.
INTERIOR_TILES = 2
BAND = 32  # taps unrolled; a longer filter is a loop over bands and an unrolled rest
BAND_FP64 = 16  # a weight takes two registers
END_BAND = 16  # taps unrolled where skewed rows end, a divisor of both; 15 taps as above 37.9 us, with 8 45.5

DOT_TILE = 2048  # outputs a program: 64 blocks of 32
DOT_WARPS = 2  # [32, 512, 512], bf16, 31 taps on an H200 15.3 us, with 4 warps of 4096 outputs 16.4
DOT_PROGRAMS = 1056  # in all, 8 for each of 132 multiprocessors, as each builds its matrix
DOT_SHORT = 32  # N for up to 33 taps, in one dot: the Toeplitz matrix is half full at 31
DOT_LONG = 64  # N for longer filters, in a loop: half as many windows as with 32
# As FMA_SPLIT; [16, 256, 4099], bf16, 31 taps on an H200 38.2 us, in 4 parts 43.3. SKEWED_TAIL rows: [15, 255, 4099] 43.5, in 2 55.5.
DOT_SPLIT, DOT_SPLIT_TAIL = 2, 4


@functools.lru_cache(maxsize=4096)
def plan(
    x: LayoutKey,
    weight: LayoutKey,
    bias: LayoutKey | None,
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
    bias_meta = None if bias is None else Layout(*bias).meta
    padding_l = check_filter("x", Layout(*x).meta, Layout(*weight).meta, bias_meta, padding_l)
    (batches, channels, length), x_strides, dtype, _ = x
    (heads, taps), w_strides, *_ = weight
    group = channels // heads
    rows = batches * group
    align = Alignment.of(x)
    lead = -(-padding_l // OCTET.value)
    reach = taps + lead * OCTET.value - padding_l  # taps, and those between a window and them
    dot = dtype in NARROW and taps > FMA_MAX_TAPS
    # In a loop over bands skewed rows are slower: [4, 256, 4099], bf16, 100 taps on an H200 51.9 us, as they are 48.3.
    if dot and reach > DOT_SHORT + 1:
        align = align._replace(skew=0, tail=False)
    unit, skew, tail = align
    positions = length + skew - unit if skew else length
    whole = align.whole(dtype)
    launch: dict[str, Any] = {
        "rows": rows,
        "group": group,
        "channels": channels,
        "units": length // unit,
        "taps": taps,
        "stride_xb": x_strides[0] // unit,
        "stride_xc": x_strides[1] // unit,
        "stride_xt": last_stride(x),
        "stride_wh": w_strides[0],
        "stride_wk": w_strides[1],
        "stride_bias": 0 if bias is None else bias[1][0],
        "FLIP": flip,
        "SOFTMAX": softmax_weight,
        "STEP": min(SOFTMAX_STEP, triton.next_power_of_2(taps)),
        "UNIT": unit,
        "SKEW": skew,
        "TAIL": tail,
    }
    if dot:
        # Of narrow accesses each address takes registers.
        block = DOT_LONG if unit == OCTET.value and reach > DOT_SHORT + 1 else DOT_SHORT
        pieces = DOT_TILE // block
        tiling = Tiling.of(rows, positions, block, pieces, whole)
        launch |= {
            "padding": padding_l,
            "lead_octets": lead,
            "bands": -(-reach // block),
            "LOOP": reach > block + 1,
            "N": block,
            "BLOCKS": pieces,
            "parts": min(tiling.tiles, max(1, DOT_PROGRAMS // heads)),
            "SPLIT": DOT_SPLIT_TAIL if tail else DOT_SPLIT,
            "num_warps": 2 * DOT_WARPS if not whole or reach > block + 1 else DOT_WARPS,
        }
        kernel, programs = _dot_kernel, heads * launch["parts"]
    else:
        width = VECTOR_BYTES // dtype.itemsize
        band = BAND_FP64 if dtype == torch.float64 else BAND
        lead = -(-padding_l // width)
        tiling = Tiling.of(rows, positions, width, FMA_PIECES, whole)
        launch |= {
            "lead_pieces": lead,
            "SHIFT": lead * width - padding_l,
            "REST": taps % band,
            "LOOP": taps >= band,
            "BAND": band,
            "V": width,
            "PIECES": FMA_PIECES,
            "ACC": tl.float64 if dtype == torch.float64 else tl.float32,
            "HAS_INTERIOR": bool(skew) or (unit == width and tiling.tiles_wide >= INTERIOR_TILES),
            "SPLIT": FMA_SPLIT if skew and (dtype in NARROW or taps > END_BAND) else 1,
            "END_BAND": END_BAND if skew else band,
            "num_warps": FMA_WARPS,
        }
        kernel, programs = _fma_kernel, heads * tiling.tiles
    launch |= {"tiles": tiling.tiles, "tiles_wide": tiling.tiles_wide}
    launch |= {"WIDE": tiling.wide, "BIG": tiling.big}
    return Launch(kernel, (programs,), launch)
