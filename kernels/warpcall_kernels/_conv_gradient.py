"""The gradient of a filter: partial sums in registers, added in a fixed order.

grad_weight[h, j] = sum over b, the channels c of h, and t of grad_output[b, c, t] *
x[b, c, t + j - padding_l]. A program sums its share of a head's rows for up to MAX_BAND taps, a sum
a register, and writes them at its end; what the programs wrote is added by torch, in one order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpcall_kernels._conv import (
    PLAIN,
    UNALIGNED,
    Tiling,
    common_unit,
    load_block,
    locate,
    pack,
    step_of,
    unpack,
    window,
)
from warpcall_kernels._torch import on_device

MIN_BAND, MAX_BAND = 8, 32  # taps that a program sums: as many registers a piece
MAX_BAND_FP64 = 16  # a sum takes two registers
PIECES = 128  # two a thread; at [8, 1024, 2048], bf16, 7 taps on an H200 49 us, with 4 warps 61
WARPS = 2
PARTS = 2048  # programs in all, some 15 for each of 132 multiprocessors, where rows suffice


@triton.jit(do_not_specialize=PLAIN, do_not_specialize_on_alignment=UNALIGNED)
def _grad_weight_kernel(
    g_ptr: tl.tensor,
    x_ptr: tl.tensor,
    part_ptr: tl.tensor,
    rows: tl.tensor,
    group: tl.tensor,
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
    UNIT: tl.constexpr,
    SHIFT: tl.constexpr,
    EVEN: tl.constexpr,
    BAND: tl.constexpr,
    V: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    BIG: tl.constexpr,
    ACC: tl.constexpr,
) -> None:
    band = tl.program_id(0) % bands
    part = tl.program_id(0) // bands % parts
    head = tl.program_id(0) // bands // parts
    length = units * UNIT  # so that the compiler knows what divides it, and how wide it may load
    COUNT: tl.constexpr = (BAND + SHIFT + 2 * V - 2) // V
    # The window begins SHIFT elements before what the band's first tap meets, at a multiple of V.
    lead = band * BAND - lead_pieces * V
    acc = tl.zeros((PIECES, BAND), ACC)
    for tile in range(part, tiles, parts):
        batch, channel, start, live = locate(
            tile, head, rows, group, tiles_wide, V, PIECES, WIDE, BIG
        )
        live = live & (start < length)
        g_ptrs = g_ptr + (batch * stride_gb + channel * stride_gc) * UNIT
        x_ptrs = x_ptr + (batch * stride_xb + channel * stride_xc) * UNIT
        g = unpack(load_block(g_ptrs, start, live, length, stride_gt, V).to(ACC), PIECES, V)
        x = window(x_ptrs, start + lead, live, length, stride_xt, COUNT, PIECES, V, ACC)
        sums = ()
        for j in tl.static_range(BAND):
            total = tl.zeros((PIECES,), ACC)
            for i in tl.static_range(V):
                term = g[i] * x[i + j + SHIFT]
                if not EVEN:  # past the end of a row g is 0, but x may be NaN
                    term = tl.where(start + i < length, term, 0.0)
                total += term
            sums = sums + (total,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
        acc += pack(sums, PIECES, BAND)
    j = band * BAND + tl.arange(0, BAND)
    at = (head * parts + part).to(tl.int64) * taps + j
    tl.store(part_ptr + at, tl.sum(acc, axis=0), mask=j < taps)


def sum_grad_weight(g: Tensor, x: Tensor, heads: int, taps: int, padding: int) -> Tensor:
    """The sums [H, K] for filters as they are applied, in fp32 (fp64 for fp64)."""
    batches, channels, length = x.shape
    group = channels // heads
    rows = batches * group
    width = 16 // x.dtype.itemsize
    unit = common_unit(x, g)
    tiling = Tiling.of(rows, length, width, PIECES)
    wide = x.dtype == torch.float64
    most = MAX_BAND_FP64 if wide else MAX_BAND
    band = min(max(MIN_BAND, triton.next_power_of_2(taps)), most)
    bands = triton.cdiv(taps, band)
    parts = min(tiling.tiles, max(1, PARTS // (heads * bands)))
    partial = torch.empty(
        heads, parts, taps, dtype=torch.float64 if wide else torch.float32, device=x.device
    )
    with on_device(x):
        _grad_weight_kernel[(heads * parts * bands,)](
            g,
            x,
            partial,
            rows=rows,
            group=group,
            units=length // unit,
            tiles=tiling.tiles,
            tiles_wide=tiling.tiles_wide,
            taps=taps,
            lead_pieces=-(-padding // width),
            parts=parts,
            bands=bands,
            stride_gb=g.stride(0) // unit,
            stride_gc=g.stride(1) // unit,
            stride_gt=step_of(g),
            stride_xb=x.stride(0) // unit,
            stride_xc=x.stride(1) // unit,
            stride_xt=step_of(x),
            UNIT=unit,
            SHIFT=-padding % width,
            EVEN=length % width == 0,
            BAND=band,
            V=width,
            PIECES=PIECES,
            WIDE=tiling.wide,
            BIG=tiling.big,
            ACC=tl.float64 if wide else tl.float32,
            num_warps=WARPS,
        )
    return partial.sum(1)
