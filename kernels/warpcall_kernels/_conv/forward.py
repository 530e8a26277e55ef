"""How conv is launched: its variant, and the arguments of its kernel. Conv-backward uses it, too.

| variant | taken when | why | measured on an H200 | file |
| --- | --- | --- | --- | --- |
| FMA | fp32, fp64, and up to FMA_MAX_TAPS taps | a thread owns a piece of 16 bytes; the taps are unrolled multiply-adds of registers | 16 % less than DOT at 15 taps | forward_kernels.py |
| DOT | more taps of fp16 or bf16 | a window of x times the banded Toeplitz matrix of the filter runs on tensor cores, so that 31 taps cost as much as 3 | | forward_kernels.py |
| BANDS | some 34 to 257 taps of fp16 or bf16 | the same, but a program builds the matrix once, and loads each block of x once for several blocks of outputs | 34 to 83 % less than DOT at all of 35 to 257 taps, 18 to 74 % less of rows of odd lengths | forward_bands.py |

FMA and DOT read rows with one ACCESS of `_conv/rows.py`: skewed rows unless DOT loops over bands,
and aligned rows without masks away from their ends (FMA).

The constants were measured on an H200 (compute capability 9.0, 132 multiprocessors). Every other
GPU uses them, too: all tiles fit the registers and the shared memory of compute capabilities 8.0 to
12.0, so another GPU may lose speed, never correctness. Times in comments are from an H200;
docs/benchmarks/h200-constants.md has those of the values that lost.
"""

from __future__ import annotations

import functools
from enum import StrEnum
from typing import Any

import torch
import triton
import triton.language as tl

from warpcall_kernels._conv.filters import NARROW, OCTET, SOFTMAX_STEP, check_filter
from warpcall_kernels._conv.forward_bands import _bands_kernel
from warpcall_kernels._conv.forward_kernels import _dot_kernel, _fma_kernel
from warpcall_kernels._conv.tiling import Alignment, Tiling, dot_pieces, fitting_blocks, last_stride
from warpcall_kernels.op.launch import VECTOR_BYTES, Launch, Layout, LayoutKey, multiprocessors

# Taps of fp16 and bf16 up to which FMA is faster. [32, 512, 512] bf16, 15 taps: 14.0 us, 16 % less
# than DOT.
FMA_MAX_TAPS = 16

# A tile of FMA: pieces, 4 for each thread, and warps. [8, 1024, 2048] fp32, 31 taps: 47 us, 24 %
# less than with 2 warps.
FMA_PIECES = 128
FMA_WARPS = 1
# Parts of a tile at the ends of skewed rows, taken one after another to save registers. Few taps of
# fp32 are taken whole. [16, 256, 4099] bf16, 15 taps: 45.5 us, 15 % less than whole.
FMA_SPLIT = 2
# Tiles along an aligned row from which on interior tiles are read without masks. [4, 1024, 8192] bf16,
# 15 taps: 41.4 us, 5 % less than with masks.
INTERIOR_TILES = 2
BAND = 32  # taps that are unrolled; a longer filter is a loop over bands and an unrolled rest
BAND_FP64 = 16  # the same of fp64, whose weights take two registers
# Taps that are unrolled at the ends of skewed rows; it divides both bands. [16, 256, 4099] bf16, 15 taps:
# 37.9 us, 17 % less than with 8.
END_BAND = 16

DOT_TILE = 2048  # outputs of a program: 64 blocks of 32
DOT_WARPS = 2  # [32, 512, 512] bf16, 31 taps: 15.3 us, 7 % less than with 4 warps and 4096 outputs
# Programs for each multiprocessor. More would build more Toeplitz matrices.
DOT_PROGRAMS = 8
DOT_SHORT = 32  # N of up to 33 taps, in one dot; its Toeplitz matrix is half full at 31 taps
DOT_LONG = 64  # N of longer filters, in a loop over half as many windows as with 32
# As FMA_SPLIT; with SKEWED_TAIL access the second. [16, 256, 4099] bf16, 31 taps: 38.2 us, 12 %
# less than in 4 parts; [15, 255, 4099]: 43.5 us, 22 % less than in 2 parts.
DOT_SPLIT, DOT_SPLIT_TAIL = 2, 4


BANDS_N = 64  # N of BANDS
# Matrices that a program of BANDS may hold in shared memory, 8 KB each: those of 257 taps, or of 129
# with a softmax, which has two for each band. A program with as many takes one block at a time, so
# that all of it fits the 99 KiB of compute capability 8.9.
BANDS_MOST = 6
BANDS_SUPER, BANDS_PIECES, BANDS_WARPS, BANDS_STAGES = 2, 64, 4, 1
BANDS_PROGRAMS = 4  # at most, for each multiprocessor
BANDS_ROOM = 28  # matrices and blocks of x, 8 KB each, that a multiprocessor's shared memory holds


class Variant(StrEnum):
    """The variants of the table above."""

    FMA = "fma"
    DOT = "dot"
    BLOCKS = "blocks"  # of conv-backward only
    BANDS = "bands"


def choose(dtype: torch.dtype, taps: int) -> Variant:
    """The variant that is fastest for filters of so many taps."""
    return Variant.DOT if dtype in NARROW and taps > FMA_MAX_TAPS else Variant.FMA


def reach(taps: int, padding_l: int) -> int:
    """Positions of a window that a filter reaches, if windows begin at multiples of OCTET: its taps,
    and those before them.
    """
    return taps + -padding_l % int(OCTET.value)


@functools.lru_cache(maxsize=4096)
def plan(
    x: LayoutKey,
    weight: LayoutKey,
    bias: LayoutKey | None,
    padding_l: int | None,
    softmax_weight: bool,
    flip: bool = False,
) -> Launch:
    """The launch of conv, on (x, weight, bias or None, out); `out` is contiguous.

    Args:
        x, weight, bias: layouts of [B, C, T], [H, K] and [C], with any strides.
        padding_l: zeros to the left of each row; None means K - 1.
        softmax_weight: apply the softmax of each filter over its taps.
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
    reached = reach(taps, padding_l)
    variant = choose(dtype, taps)
    bands = -(-(BANDS_N - 1 + reached) // BANDS_N)
    matrices = bands * (2 if softmax_weight else 1)
    if variant is Variant.DOT and reached > DOT_SHORT + 1:
        variant = Variant.BANDS if matrices <= BANDS_MOST else Variant.DOT
        # BANDS does not read skewed rows, and in a loop over bands they are slower: [4, 256, 4099]
        # bf16, 100 taps 48.3 us, 7 % less unskewed.
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
    }
    if variant is not Variant.BANDS:
        launch |= {"SKEW": skew, "TAIL": tail}
    if variant is Variant.BANDS:
        blocks = fitting_blocks(length, BANDS_N, BANDS_SUPER if matrices < BANDS_MOST else 1)
        held = matrices + blocks + bands  # of a program: its matrices, a window and a result
        most = max(1, multiprocessors() * min(BANDS_PROGRAMS, BANDS_ROOM // held) // heads)
        pieces = dot_pieces(rows, length, BANDS_N, blocks, most, BANDS_PIECES)
        tiling = Tiling.of(rows, length, blocks * BANDS_N, pieces, whole)
        launch |= {
            "padding": padding_l,
            "lead_octets": lead,
            "BANDS": bands,
            "SUPER": blocks,
            "STAGES": BANDS_STAGES,
            "N": BANDS_N,
            "PIECES": pieces,
            "parts": min(tiling.tiles, most),
            "num_warps": BANDS_WARPS,
        }
        kernel, programs = _bands_kernel, heads * launch["parts"]
    elif variant is Variant.DOT:
        # Narrow accesses take registers for more addresses, and leave none for a long block.
        block = DOT_LONG if unit == OCTET.value and reached > DOT_SHORT + 1 else DOT_SHORT
        pieces = DOT_TILE // block
        tiling = Tiling.of(rows, positions, block, pieces, whole)
        launch |= {
            "padding": padding_l,
            "lead_octets": lead,
            "bands": -(-reached // block),
            "LOOP": reached > block + 1,
            "N": block,
            "BLOCKS": pieces,
            "parts": min(tiling.tiles, max(1, multiprocessors() * DOT_PROGRAMS // heads)),
            "SPLIT": DOT_SPLIT_TAIL if tail else DOT_SPLIT,
            "num_warps": 2 * DOT_WARPS if not whole or reached > block + 1 else DOT_WARPS,
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
    pieces = launch["BLOCKS"] if variant is Variant.DOT else launch["PIECES"]
    # [32, 512, 512] bf16, 15 taps, on an H100: 14.5 us, 4 % less than without. Not faster for fp32.
    aligned = dtype in NARROW and unit == OCTET.value
    launch["ONE_BATCH"] = aligned and tiling.one_batch(pieces, group)
    return Launch(kernel, (programs,), launch, variant=variant)
