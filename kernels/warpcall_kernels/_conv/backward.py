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

from warpcall_kernels._conv.backward_kernels import _dot_kernel, _fma_kernel, _reduce_kernel
from warpcall_kernels._conv.filters import NARROW, OCTET, SOFTMAX_STEP
from warpcall_kernels._conv.rows import Alignment, Tiling, last_stride
from warpcall_kernels.op.launch import VECTOR_BYTES, Launch, LayoutKey

BAND = 32  # taps that a program sums: as many registers a thread
BAND_FP64 = 16  # a sum takes two registers
# Of a tile: 4 a thread of two-byte types read whole, 2 of others. [8, 1024, 2048] on an H200, bf16, 7 taps 31 us, with 2 a
# thread 39; fp32 54, and 61 with 4; as many programs as are busy at once, with twice as many bf16 is level.
PIECES = 256
WARPS_NARROW, WARPS = 2, 4
# Where skewed rows end, parts of a tile, one after another: fewer registers. [8, 1024, 2047], fp32, 3 taps on an H200
# 64.5 us, whole 74.5, in 4 parts 93; [16, 256, 4099], bf16, 1 tap 39.7, whole 46.5.
SPLIT_NARROW, SPLIT = 4, 2
# A thread, at most, of fp16 and bf16 for skewed rows, for FEW_TAPS and others: more programs at once. [16, 256, 4099],
# bf16 on an H200: 7 taps 58 us, without 73; 31 taps 94, without 114. fp32 of 31 taps is slower by 7 %, and has none.
FEW_TAPS, REGISTERS_FEW, REGISTERS = 7, 128, 168
# Of more taps of SKEWED_TAIL rows by FMA: of 8 and 9 Triton 3.6's compiler spills some if it may choose.
REGISTERS_TAIL = 240
PARTS = 1056  # programs in all, 8 for each of 132 multiprocessors, where rows suffice
# Of fp16 and bf16: more are less work as a product. bf16 on an H200: skewed [8, 510, 4093], 9 taps 57.3 us, as a product
# 92.4; [16, 256, 4099], 15 taps 107.9 and 93.5. Read whole [32, 512, 512], 15 taps 35.1 and 42.5; [4, 1024, 8192] 103.6 and
# 88.7. By elements [16, 256, 4099], 15 taps 204 and 139.
FMA_MAX_TAPS, FMA_MAX_TAPS_SKEWED, FMA_MAX_TAPS_SHORT = 8, 12, 16
SHORT = 512  # positions in a row, at most, read whole
DOT_BLOCK = 32  # N: up to 33 diagonals from one product of two tiles
DOT_BLOCKS = 64  # [8, 1024, 2048], bf16, 31 taps on an H200 48 us, with 128 63
DOT_WARPS = 4
REDUCE = 4096  # sums that are read at once
MAX_SOFTMAX_TAPS = 4096  # of which the gradient of the softmax holds a whole filter


class BackwardPlan(NamedTuple):
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


def plan(
    g: LayoutKey, x: LayoutKey, weight: LayoutKey, padding_l: int, softmax_weight: bool
) -> BackwardPlan:
    """The launches for g and x [B, C, T], weight [H, K], of any strides, none of them empty."""
    (batches, channels, length), x_strides, dtype, _ = x
    (heads, taps), w_strides, *_ = weight
    g_strides = g[1]
    group = channels // heads
    rows = batches * group
    align = Alignment.of(x, g)
    unit, skew, tail = align
    positions = length + skew - unit if skew else length
    whole = align.whole(dtype)
    wide = dtype == torch.float64
    acc = tl.float64 if wide else tl.float32
    mirrored = taps - 1 - padding_l  # of grad_x, whose filters are reversed
    most = FMA_MAX_TAPS_SHORT if whole and length <= SHORT else FMA_MAX_TAPS
    dot = dtype in NARROW and taps > (FMA_MAX_TAPS_SKEWED if skew else most)
    width = DOT_BLOCK if dot else VECTOR_BYTES // dtype.itemsize
    tiling = Tiling.of(rows, positions, width, DOT_BLOCKS if dot else PIECES, whole)
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
            "num_warps": DOT_WARPS if whole else 2 * DOT_WARPS,  # or addresses spill
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
            "SPLIT": SPLIT_NARROW if dtype in NARROW else SPLIT,
            "num_warps": WARPS_NARROW if dtype in NARROW and whole else WARPS,
        }
    if skew and dtype in NARROW and not softmax_weight:  # it spills under a limit
        limit = REGISTERS if dot or not tail else REGISTERS_TAIL
        own["maxnreg"] = REGISTERS_FEW if taps <= FEW_TAPS else limit
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
        "stride_gt": last_stride(g),
        "stride_xb": x_strides[0] // unit,
        "stride_xc": x_strides[1] // unit,
        "stride_xt": last_stride(x),
        "stride_wh": w_strides[0],
        "stride_wk": w_strides[1],
        "UNIT": unit,
        "SKEW": skew,
        "TAIL": tail,
        "FUSED": fused,
        "SOFTMAX": fused and softmax_weight,
        "STEP": min(SOFTMAX_STEP, triton.next_power_of_2(taps)),
        "EVEN": length % width == 0 and not skew,
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
    return BackwardPlan(fused, (heads, parts, taps), both, reduce)
