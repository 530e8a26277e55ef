"""How conv-backward is launched: the gradients of x and of the filters in one pass.

    grad_x[b, c, s] = sum_j w[h, j] * g[b, c, s - j + padding_l] grad_weight[h, j] = sum over b, the
    channels c of h, and t of g[b, c, t] * x[b, c, t + j - padding_l]

A program takes some of the tiles of a head. For each tile it computes the gradient of x from a
window of g, as the forward kernels do. For the filter it sums products of g with a window of x:

| variant | taken when | why | measured on an H200 | file |
| --- | --- | --- | --- | --- |
| FMA | fp32, fp64, and few taps (see `choose`) | a thread owns a piece of a row, and a sum for each tap | 17 to 38 % less than DOT | backward_kernels.py |
| DOT | more taps of fp16 or bf16 | G^T [N, blocks] times windows of X [blocks, 2 N] is a matrix with the sum of a tap along each diagonal, on tensor cores | 13 to 32 % less than FMA | backward_kernels.py |

At its end a program stores its sums. `_reduce_kernel` then adds those of all programs in one order,
so that the same inputs give the same bits. A filter with more taps than a program sums is cut into
bands; grad_x then comes from a launch of its own, by `_conv/forward.py`, which also says for which
GPUs the constants were measured.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._conv.backward_kernels import _dot_kernel, _fma_kernel
from warpcall_kernels._conv.filters import NARROW, OCTET, SOFTMAX_STEP
from warpcall_kernels._conv.forward import Variant
from warpcall_kernels._conv.reduce_kernel import _reduce_kernel
from warpcall_kernels._conv.rows import Alignment, Tiling, last_stride
from warpcall_kernels.op.launch import VECTOR_BYTES, Launch, LayoutKey

BAND = 32  # taps that a program sums, each in a register of a thread
BAND_FP64 = 16  # the same of fp64, whose sums take two registers
# Pieces of a tile of FMA, and warps. Two-byte types that are read whole have 4 pieces a thread,
# others 2. [8, 1024, 2048] bf16, 7 taps: 31 us, 21 % less than with 2; fp32 54 us, 11 % less than
# with 4.
PIECES = 256
WARPS_NARROW, WARPS = 2, 4
# Parts of a tile at the ends of skewed rows, taken one after another to save registers. [16, 256,
# 4099] bf16, 1 tap: 39.7 us, 15 % less than whole; [8, 1024, 2047] fp32, 3 taps: 64.5 us, 13 %
# less.
SPLIT_NARROW, SPLIT = 4, 2
# Most registers of a thread for skewed rows of fp16 and bf16, of up to FEW_TAPS taps and of others,
# so that more programs run at once. [16, 256, 4099] bf16, 7 taps: 58 us, 21 % less than without a
# limit.
FEW_TAPS, REGISTERS_FEW, REGISTERS = 7, 128, 168
# The same for more taps with SKEWED_TAIL access by FMA. Without it Triton 3.6 spills at 8 and 9
# taps.
REGISTERS_TAIL = 240
PARTS = 1056  # programs in all, 8 for each of 132 multiprocessors, if there are enough rows
# Taps of fp16 and bf16 up to which FMA is faster: of rows read whole or by elements, of skewed
# rows, and of rows of at most SHORT positions that are read whole. Skewed [8, 510, 4093] bf16, 9
# taps: 57 us, 38 % less than DOT.
FMA_MAX_TAPS, FMA_MAX_TAPS_SKEWED, FMA_MAX_TAPS_SHORT = 8, 12, 16
SHORT = 512
DOT_BLOCK = 32  # N: up to 33 diagonals from one product of two tiles
DOT_BLOCKS = 64  # [8, 1024, 2048] bf16, 31 taps: 48 us, 24 % less than with 128
DOT_WARPS = 4
REDUCE = 4096  # sums that are loaded at once
MAX_SOFTMAX_TAPS = 4096  # taps of the longest filter that the gradient of the softmax holds whole


def choose(dtype: torch.dtype, taps: int, length: int, align: Alignment) -> Variant:
    """The variant that is fastest for such rows and filters of so many taps."""
    short = align.whole(dtype) and length <= SHORT
    most = FMA_MAX_TAPS_SHORT if short else FMA_MAX_TAPS
    most = FMA_MAX_TAPS_SKEWED if align.skew else most
    return Variant.DOT if dtype in NARROW and taps > most else Variant.FMA


class BackwardPlan(NamedTuple):
    """The launches of a backward pass.

    Args:
        fused: whether `main` computes grad_x; otherwise it needs a launch of its own.
        sums: the shape of the workspace, [H, parts, K].
        main: the launch on (g, x, weight, grad_x, sums).
        reduce: the launch on (sums, weight, grad_weight), or None where torch reduces the sums.
    """

    fused: bool
    sums: tuple[int, int, int]
    main: Launch
    reduce: Launch | None


def plan(
    g: LayoutKey, x: LayoutKey, weight: LayoutKey, padding_l: int, softmax_weight: bool
) -> BackwardPlan:
    """The launches for g and x [B, C, T] and weight [H, K], with any strides and not empty."""
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
    mirrored = taps - 1 - padding_l  # the padding for grad_x, whose filters are reversed
    variant = choose(dtype, taps, length, align)
    dot = variant is Variant.DOT
    width = DOT_BLOCK if dot else VECTOR_BYTES // dtype.itemsize
    tiling = Tiling.of(rows, positions, width, DOT_BLOCKS if dot else PIECES, whole)
    if dot:
        lead, lead_g = -(-padding_l // OCTET.value), -(-mirrored // OCTET.value)
        reach = taps + lead * OCTET.value - padding_l
        fused = max(reach, taps + lead_g * OCTET.value - mirrored) <= DOT_BLOCK + 1
        bands = 1 if fused else triton.cdiv(reach, DOT_BLOCK)
        kernel: Any = _dot_kernel
        own = {
            "padding": padding_l,
            "lead_octets": lead,
            "N": DOT_BLOCK,
            "BLOCKS": DOT_BLOCKS,
            "num_warps": DOT_WARPS if whole else 2 * DOT_WARPS,  # with fewer, addresses spill
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
    if skew and dtype in NARROW and not softmax_weight:  # which spills under a limit
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
    main = Launch(kernel, (heads * parts * bands,), arguments, variant=variant)
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
    return BackwardPlan(fused, (heads, parts, taps), main, reduce)
