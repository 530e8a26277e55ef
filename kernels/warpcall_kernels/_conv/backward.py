"""How conv-backward is launched: the gradients of x and of the filters in one pass.

    grad_x[b, c, s] = sum_j w[h, j] * g[b, c, s - j + padding_l]
    grad_weight[h, j] = sum over b, the channels c of h, and t of
        g[b, c, t] * x[b, c, t + j - padding_l]

A program takes some of the tiles of a head. For each tile it computes the gradient of x from a
window of g, as the forward kernels do. For the filter it sums products of g with a window of x:

| variant | taken when | why | measured on an H200 | file |
| --- | --- | --- | --- | --- |
| FMA | fp32, fp64, and few taps (see `choose`) | a thread owns a piece of a row, and a sum for each tap | 17 to 38 % less than DOT | backward_kernels.py |
| DOT | more taps of fp16 or bf16, of rows of more than SHORT_N positions that begin anywhere, if one product has all taps; and what BANDS does not take | G^T [N, blocks] times windows of X [blocks, 2 N] is a matrix with the sum of a tap along each diagonal, on tensor cores | 13 to 32 % less than FMA | backward_kernels.py |
| BLOCKS | up to 65 taps of other rows, with halos of up to BLOCK_HALOS positions | the same; each block of g and x is loaded once for both gradients, while the block before it is multiplied | 30 to 50 % less than DOT; 27 to 51 % less of rows that begin at 4 or 8 bytes | backward_blocks.py |
| BANDS | up to some 257 taps | a program holds the products of all taps; grad_x comes from a launch of its own | 50 to 56 % less than DOT | backward_bands.py |

At its end a program stores its sums. `_reduce_kernel` then adds those of all programs in one order,
so that the same inputs give the same bits. How many programs there are depends on the number of
multiprocessors. `fma_work.py` has those of FMA. On GPUs that can (see `overlaps_launches`)
`_reduce_kernel` is launched while they run, and waits for them: [64, 512, 32], 3 taps: 5.3 us, 12 %
less than without. BLOCKS, and FMA of aligned rows of fp16 and bf16, are also launched before the
kernel before them has ended, and wait for it; that kernel may be the reduction of the call before.
[64, 512, 32], 3 taps: 4.8 us, 9 % less than without. FMA of fp32 was slower so. A filter with more
taps than a program sums is cut into bands. Of such a filter, and with BANDS, grad_x comes from a
launch of its own, by `_conv/forward.py`, which also says for which GPUs the constants were
measured.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._conv.backward_bands import _bands_kernel
from warpcall_kernels._conv.backward_blocks import _blocks_kernel
from warpcall_kernels._conv.backward_kernels import _dot_kernel, _fma_kernel
from warpcall_kernels._conv.call import Call
from warpcall_kernels._conv.filters import NARROW, OCTET, SOFTMAX_STEP
from warpcall_kernels._conv.fma_work import programs_of, work_of
from warpcall_kernels._conv.forward import Variant, reach
from warpcall_kernels._conv.reduce_kernel import plan_reduce
from warpcall_kernels._conv.tiling import Alignment, Tiling, dot_pieces, fitting_blocks, last_stride
from warpcall_kernels.op.launch import (
    VECTOR_BYTES,
    Launch,
    LayoutKey,
    multiprocessors,
    overlaps_launches,
    waiting,
)

BAND = 32  # taps that a program sums, each in a register of a thread
BAND_FP64 = 16  # the same of fp64, whose sums take two registers
# Parts of a tile at the ends of skewed rows, taken one after another to save registers. [16, 256,
# 4099] bf16, 1 tap: 39.7 us, 15 % less than whole; [8, 1024, 2047] fp32, 3 taps: 64.5 us, 13 %
# less.
SPLIT_NARROW, SPLIT = 4, 2
# Taps of fp16 and bf16 up to which FMA is faster: of rows that are read by less than 16 bytes at a
# time, and of skewed rows. Skewed [8, 510, 4093] bf16, 9 taps: 57 us, 38 % less than DOT.
FMA_MAX_TAPS, FMA_MAX_TAPS_SKEWED = 8, 12
# The same of aligned rows, of filters that reach to one side of a position and to both. [4, 1024,
# 8192] bf16, 7 taps with a padding of 3: 66.8 us by BLOCKS, 13 % less than by FMA.
FMA_MAX_TAPS_ALIGNED, FMA_MAX_TAPS_CENTRED = 7, 6
# Filters of up to FMA_MAX_TAPS_FEW taps go to FMA, too, if taps times elements of x are at most
# FMA_FEW, or FMA_FEW_SHORT of rows that are one block: BLOCKS takes 7.4 us and longer, or 5.5 us. [8,
# 512, 256] bf16, 9 taps: 5.5 us, 30 % less than by BLOCKS.
FMA_MAX_TAPS_FEW, FMA_FEW, FMA_FEW_SHORT = 16, 1 << 25, 1 << 23
DOT_BLOCK = 32  # N: up to 33 diagonals from one product of two tiles
DOT_BLOCKS = 64  # [8, 1024, 2048] bf16, 31 taps: 48 us, 24 % less than with 128
DOT_WARPS = 4
# Most programs for each multiprocessor, as all constants below with PROGRAMS in their name.
DOT_PROGRAMS = 8
# Most registers of a thread of DOT for skewed rows, and twice as many programs as then run at once. With
# a softmax there is no limit, under which they would spill. [16, 256, 4099] bf16, 31 taps: 84.9 us, 9 %
# less than with 8 programs.
DOT_REGISTERS, DOT_PROGRAMS_SKEWED = 168, 6
BLOCK_N = 64  # N of BLOCKS
LEAST_HALO = 16  # the least inner size of a dot
# A tile of BLOCKS, and tiles that are loaded or multiplied at a time. [8, 1024, 2048] bf16, 31 taps:
# 34.5 us, 18 % less than with two blocks in a piece, 24 % less than with 2 tiles at a time.
BLOCK_SUPER, BLOCK_PIECES, BLOCK_WARPS, BLOCK_STAGES, BLOCK_PROGRAMS = 1, 64, 4, 3, 2
# Pieces of a tile of rows that are not read whole. [64, 256, 300] fp16, 31 taps: 20.4 us, 29 % less than with 64
# pieces, and 51 % less than by DOT.
BLOCK_PIECES_UNALIGNED = 32
# Most positions of both halos, and how many tiles are loaded or multiplied at a time with so many.
# [4, 512, 4096] bf16, 64 taps: 28.6 us, 42 % less than by DOT; with halos of 96 positions BANDS takes
# 10 % less than BLOCKS.
BLOCK_HALOS, WIDE_STAGES = 64, 2
# N of rows that are one block, and their tile. [64, 512, 32] bf16, 31 taps: 6.2 us, 3 % less than
# with 128 pieces.
SHORT_N, SHORT_PIECES, SHORT_PROGRAMS = 32, 64, 4
# Most matrices of sums that a program of BANDS holds, which are those of 257 taps, and its tile.
# [4, 512, 4096] bf16, 257 taps: 48.6 us, 56 % less than by DOT.
BANDS_MOST = 5
BANDS_PIECES, BANDS_WARPS, BANDS_PROGRAMS = 64, 4, 2
# Tiles that are loaded or multiplied at a time, with up to BANDS_FEW matrices and with more. [4, 512,
# 4096] bf16, 127 taps, on an H100: 38.6 us, 16 % less than with 2 and more programs.
BANDS_FEW, BANDS_STAGES_FEW, BANDS_STAGES = 3, 3, 2


def choose(call: Call) -> Variant:
    """The variant that is fastest for such rows and filters."""
    if call.dtype not in NARROW:
        return Variant.FMA
    short = call.length <= SHORT_N
    if call.align.unit != OCTET.value:
        if call.taps <= (FMA_MAX_TAPS_SKEWED if call.align.skew else FMA_MAX_TAPS):
            return Variant.FMA
        if call.align.unit == 1 and not short and _fits_dot(call):
            return Variant.DOT
    else:
        if call.taps <= (FMA_MAX_TAPS_CENTRED if call.centred else FMA_MAX_TAPS_ALIGNED):
            return Variant.FMA
        products = call.taps * call.heads * call.rows * call.length
        if call.taps <= FMA_MAX_TAPS_FEW and products <= (FMA_FEW_SHORT if short else FMA_FEW):
            return Variant.FMA
    halos = _halo(call.padding) + _halo(call.mirrored)
    if call.taps <= BLOCK_N + 1 and (short or halos <= BLOCK_HALOS):
        return Variant.BLOCKS
    return Variant.BANDS if _bands(call.taps, call.padding) <= BANDS_MOST else Variant.DOT


def _fits_dot(call: Call) -> bool:
    """Whether one product of two tiles has the diagonals of all taps, for both gradients."""
    return max(reach(call.taps, call.padding), reach(call.taps, call.mirrored)) <= DOT_BLOCK + 1


class Variation(NamedTuple):
    """The part of a plan that is different for each variant.

    Args:
        kernel: the kernel, which stores sums of taps and, if `fused`, grad_x.
        fused: whether it computes grad_x, too.
        bands: how many programs share the taps of a tile.
        tiling: how the rows of a head are cut into tiles.
        piece: positions of a piece of a row.
        programs: most programs in all.
        constants: arguments of this kernel only, and options.
    """

    kernel: Any
    fused: bool
    bands: int
    tiling: Tiling
    piece: int
    programs: int
    constants: dict[str, Any]


def _fma(call: Call) -> Variation:
    dtype, align = call.dtype, call.align
    width = VECTOR_BYTES // dtype.itemsize
    wide, narrow = dtype == torch.float64, dtype in NARROW
    positions = call.length + (align.skew - align.unit if align.skew else 0)
    lead, lead_g = -(-call.padding // width), -(-call.mirrored // width)
    band = min(call.taps, BAND_FP64 if wide else BAND)
    bands = triton.cdiv(call.taps, band)
    fused = bands == 1
    work = work_of(call, band)
    own = work.groups * width
    tiling = Tiling.of(call.rows, positions, own, work.pieces, call.whole)
    aligned, overlaps = align.unit == width, overlaps_launches()
    constants = {
        "bands": bands,
        "lead_pieces": lead,
        "COUNT": band,
        "SLOTS": triton.next_power_of_2(band),
        "SHIFT": lead * width - call.padding,
        "FUSED": fused,
        "LEAD_G": lead_g if fused else 0,
        "SHIFT_G": lead_g * width - call.mirrored if fused else 0,
        "V": width,
        "OWN": own,
        "PIECES": work.pieces,
        "ACC": tl.float64 if wide else tl.float32,
        "SKEW": align.skew,
        "TAIL": align.tail,
        "SPLIT": SPLIT_NARROW if narrow else SPLIT,
        "num_warps": work.warps,
        "PDL": overlaps,
        "WAIT": overlaps and narrow and aligned,
        **({"launch_pdl": True} if overlaps and narrow and aligned else {}),
        "ONE_BATCH": not narrow and aligned and tiling.one_batch(work.pieces, call.group),
        **({"maxnreg": work.registers} if work.limited else {}),
    }
    programs = work.programs
    if aligned and work.groups == 1 and fused:
        programs = programs_of(programs, call.heads, tiling.tiles)
    return Variation(_fma_kernel, fused, bands, tiling, own, programs, constants)


def _dot(call: Call) -> Variation:
    align = call.align
    positions = call.length + (align.skew - align.unit if align.skew else 0)
    fused = _fits_dot(call)
    bands = 1 if fused else triton.cdiv(reach(call.taps, call.padding), DOT_BLOCK)
    constants = {
        "bands": bands,
        "padding": call.padding,
        "lead_octets": triton.cdiv(call.padding, OCTET.value),
        "FUSED": fused,
        "SKEW": align.skew,
        "TAIL": align.tail,
        "N": DOT_BLOCK,
        "BLOCKS": DOT_BLOCKS,
        "num_warps": DOT_WARPS if call.whole else 2 * DOT_WARPS,  # with fewer, addresses spill
        **({"maxnreg": DOT_REGISTERS} if align.skew and not call.softmax else {}),
    }
    tiling = Tiling.of(call.rows, positions, DOT_BLOCK, DOT_BLOCKS, call.whole)
    programs = multiprocessors() * (DOT_PROGRAMS_SKEWED if align.skew else DOT_PROGRAMS)
    return Variation(_dot_kernel, fused, bands, tiling, DOT_BLOCK, programs, constants)


def _blocks(call: Call) -> Variation:
    alone = call.length <= SHORT_N
    n = SHORT_N if alone else BLOCK_N
    blocks = 1 if alone else fitting_blocks(call.length, n, BLOCK_SUPER)
    programs = multiprocessors() * (SHORT_PROGRAMS if alone else BLOCK_PROGRAMS)
    pieces = SHORT_PIECES
    if not alone:
        usual = BLOCK_PIECES if call.whole else BLOCK_PIECES_UNALIGNED
        own = max(1, programs // call.heads)
        pieces = dot_pieces(call.rows, call.length, n, blocks, own, usual)
    tiling = Tiling.of(call.rows, call.length, n * blocks, pieces, call.whole)
    left = 0 if alone else _halo(call.padding)
    right = 0 if alone else _halo(call.mirrored)
    constants = {
        "padding": call.padding,
        "LEFT": left,
        "RIGHT": right,
        "SLOTS": max(LEAST_HALO, triton.next_power_of_2(call.taps)),
        "N": n,
        "SUPER": blocks,
        "PIECES": pieces,
        "ONCE": tiling.tiles <= max(1, programs // call.heads),
        "STAGES": WIDE_STAGES if left + right >= BLOCK_HALOS else BLOCK_STAGES,
        "ONE_BATCH": tiling.one_batch(pieces, call.group),
        "num_warps": BLOCK_WARPS,
        **waiting(),
    }
    return Variation(_blocks_kernel, True, 1, tiling, n * blocks, programs, constants)


def _long(call: Call) -> Variation:
    bands = _bands(call.taps, call.padding)
    tiling = Tiling.of(call.rows, call.length, BLOCK_N, BANDS_PIECES, call.whole)
    constants = {
        "padding": call.padding,
        "LEAD": -(-call.padding // BLOCK_N),
        "BANDS": bands,
        "N": BLOCK_N,
        "PIECES": BANDS_PIECES,
        "STAGES": BANDS_STAGES_FEW if bands <= BANDS_FEW else BANDS_STAGES,
        "ONE_BATCH": tiling.one_batch(BANDS_PIECES, call.group),
        "num_warps": BANDS_WARPS,
        "PDL": overlaps_launches(),
    }
    programs = multiprocessors() * BANDS_PROGRAMS
    return Variation(_bands_kernel, False, 1, tiling, BLOCK_N, programs, constants)


def _bands(taps: int, padding_l: int) -> int:
    """How many blocks of x meet a block of g, if windows begin at multiples of a block."""
    return 1 - (-padding_l // BLOCK_N) - (-(taps - 1 - padding_l) // BLOCK_N)


def _halo(positions: int) -> int:
    """The width of a halo of so many positions: 0, or a power of two that a dot can take."""
    return max(LEAST_HALO, triton.next_power_of_2(positions)) if positions else 0


VARIATIONS = {
    Variant.FMA: _fma,
    Variant.DOT: _dot,
    Variant.BLOCKS: _blocks,
    Variant.BANDS: _long,
}


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
    align = Alignment.of(x, g)
    unit = align.unit
    call = Call(
        dtype, batches * group, group, length, heads, taps, padding_l, softmax_weight, align
    )
    variant = choose(call)
    if variant in (Variant.BLOCKS, Variant.BANDS):  # they do not read skewed rows
        align = align._replace(skew=0, tail=False)
        call = call._replace(align=align)
    own = VARIATIONS[variant](call)
    parts = min(own.tiling.tiles, max(1, own.programs // (heads * own.bands)))
    arguments: dict[str, Any] = {
        "rows": call.rows,
        "group": group,
        "channels": channels,
        "units": length // unit,
        "tiles": own.tiling.tiles,
        "tiles_wide": own.tiling.tiles_wide,
        "taps": taps,
        "parts": parts,
        "stride_gb": g_strides[0] // unit,
        "stride_gc": g_strides[1] // unit,
        "stride_gt": last_stride(g),
        "stride_xb": x_strides[0] // unit,
        "stride_xc": x_strides[1] // unit,
        "stride_xt": last_stride(x),
        "stride_wh": w_strides[0],
        "stride_wk": w_strides[1],
        "SOFTMAX": own.fused and softmax_weight,
        "STEP": min(SOFTMAX_STEP, triton.next_power_of_2(taps)),
        "UNIT": unit,
        "EVEN": length % own.piece == 0 and not align.skew,
        "WIDE": own.tiling.wide,
        "BIG": own.tiling.big,
    }
    taken = {name: arguments[name] for name in own.kernel.arg_names if name in arguments}
    arguments = own.constants | taken
    main = Launch(own.kernel, (heads * parts * own.bands,), arguments, variant=variant)
    # Programs of several tiles end one after another, and make room for those of the next call.
    # [32, 512, 512] bf16, 31 taps: 18.7 us, 7 % less than with a launch after the last of them.
    early = variant is Variant.BLOCKS and not own.constants["ONCE"]
    reduce = plan_reduce(
        (heads, taps),
        parts,
        w_strides,
        wide=dtype == torch.float64,
        softmax=softmax_weight,
        early=early,
    )
    return BackwardPlan(own.fused, (heads, parts, taps), main, reduce)
