"""How transpose-add is launched: its variant, and the arguments of its kernel.

The table of variants is in `_transpose/plan.py`. Transpose-add has four of them, UNALIGNED, TILES,
FLAT and COMPLEX.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from warpcall_kernels._transpose import constants, unaligned
from warpcall_kernels._transpose.complex_add import complex_add_kernel
from warpcall_kernels._transpose.flat import flat_add_kernel, whole_accesses
from warpcall_kernels._transpose.kernels import transpose_add_kernel
from warpcall_kernels._transpose.plan import Program, Variant, are_small, fit_tile
from warpcall_kernels._transpose.strides import (
    WORDS,
    Dim,
    alignment,
    broadcast_strides,
    contiguous_strides,
    division_arguments,
    merge,
    needs_int64,
    reach,
    reciprocal,
)
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.launch import Launch, Layout

A, B, OUT = 0, 1, 2  # the operands, as `Dim.strides` has them

# The types in which transpose-add adds, by the type of the result.
ACCUMULATORS = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), tl.float32),
    torch.float64: tl.float64,
    torch.int64: tl.int64,
    torch.int32: tl.int32,
    torch.int16: tl.int16,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
    torch.bool: tl.int8,
}

# What complex numbers are pairs of: as the kernel reads them.
PARTS = {torch.complex64: tl.float32, torch.complex128: tl.float64}


def plan_transpose_add(a: Layout, b: Layout, out: Meta) -> Launch:
    """Choose the launch of transpose-add, on (a, out, b); `out` is contiguous and not empty."""
    batch = out.shape[:-2]
    strides = (
        broadcast_strides(a.shape[:-2], a.strides[:-2], len(batch)),
        broadcast_strides(b.shape[:-2], b.strides[:-2], len(batch)),
        contiguous_strides(out.shape)[:-2],
    )
    dims = merge(batch, *strides) or [Dim(1, (0, 0, 0))]
    matrices = as_matrices(a, b, dims)
    variant = choose(out.dtype, matrices)
    if variant is Variant.UNALIGNED and matrices is not None:
        program = Program(
            unaligned.unaligned_kernel, matrices.programs, matrices.arguments(out.dtype)
        )
        words: tuple[Any, ...] = (WORDS[out.dtype.itemsize],) * 3
    else:
        program = _tiles(a, b, out, dims, variant)
        if variant is Variant.TILES and _is_of_small_matrices(program, out):
            program, variant = _flat(a, b, out), Variant.FLAT
        known = {torch.bool: tl.int8, **PARTS}
        words = tuple(known.get(dtype) for dtype in (a.dtype, out.dtype, b.dtype))
    parts = 2 if out.dtype.is_complex else 1
    elements = reach(a.shape, a.strides), reach(b.shape, b.strides), math.prod(out.shape)
    spans = [parts * span for span in elements]
    return Launch(
        program.kernel,
        (program.programs,),
        {**program.arguments, "WIDE": needs_int64(spans)},
        words,
        variant,
    )


def choose(dtype: torch.dtype, matrices: unaligned.Matrices | None) -> Variant:
    """The variant that is fastest for these operands, of which the sum has this dtype."""
    if dtype.is_complex:
        return Variant.COMPLEX
    if matrices is not None and matrices.applies():
        return Variant.UNALIGNED
    return Variant.TILES


def as_matrices(a: Layout, b: Layout, dims: Sequence[Dim]) -> unaligned.Matrices | None:
    """The operands as the unaligned variant takes them.

    None unless both have one dtype, and the rows and batches of b lie as those of the output.
    """
    (size_h, size_w), (ah, aw) = a.shape[-2:], a.strides[-2:]
    contiguous = b.strides[-2:] == (size_h, 1) and all(s[B] == s[OUT] for _, s in dims)
    if a.dtype != b.dtype or not contiguous:
        return None
    itemsize = a.dtype.itemsize
    return unaligned.Matrices(
        Dim(size_w, (aw, size_h)),
        Dim(size_h, (ah, 1)),
        [Dim(n, (s[A], s[OUT])) for n, s in dims],
        itemsize,
        a.address // itemsize,
        b.address // itemsize,
    )


def _tiles(a: Layout, b: Layout, out: Meta, dims: Sequence[Dim], variant: Variant) -> Program:
    """Transpose and add tile by tile."""
    size_h, size_w = a.shape[-2:]
    (ah, aw), (bw, bh) = a.strides[-2:], b.strides[-2:]
    itemsize = out.dtype.itemsize
    align_w = align_h = 1
    if aw == 1:
        begin = a.address // a.dtype.itemsize
        align_w = alignment(a.dtype.itemsize, [begin, size_w, ah, *(s[A] for _, s in dims)])
    if bh == 1:
        begin = b.address // b.dtype.itemsize
        widest = max(b.dtype.itemsize, itemsize)
        align_h = alignment(widest, [begin, size_h, bw, *(s[B] for _, s in dims)])
    square = _square(out, align_h)
    block_h, block_w = fit_tile(size_h, size_w, square.side, square.side)
    tiles_h, tiles_w = triton.cdiv(size_h, block_h), triton.cdiv(size_w, block_w)
    return Program(
        complex_add_kernel if variant is Variant.COMPLEX else transpose_add_kernel,
        tiles_h * tiles_w * math.prod(out.shape[:-2]),
        {
            "units_h": size_h // align_h,
            "units_w": size_w // align_w,
            "tiles_h": tiles_h,
            "tiles_h_reciprocal": reciprocal(tiles_h),
            "tiles_w": tiles_w,
            "tiles_w_reciprocal": reciprocal(tiles_w),
            "stride_ah": ah,
            "stride_aw": aw,
            "stride_bw": bw,
            "stride_bh": bh,
            "sizes": tuple(n for n, _ in dims),
            "a_strides": tuple(s[A] for _, s in dims),
            "b_strides": tuple(s[B] for _, s in dims),
            "out_strides": tuple(s[OUT] for _, s in dims),
            "NDIM": len(dims),
            "EVEN_A": aw == 1,
            "EVEN_B": bh == 1,
            "ALIGN_W": align_w,
            "ALIGN_H": align_h,
            **_types(a, b, out, variant),
            "BLOCK_H": block_h,
            "BLOCK_W": block_w,
            "num_warps": square.warps,
        },
    )


def _is_of_small_matrices(tiles: Program, out: Meta) -> bool:
    elements = tiles.arguments["BLOCK_H"] * tiles.arguments["BLOCK_W"]
    itemsize = out.dtype.itemsize
    return are_small(tiles, elements, itemsize, constants.SQUARES_SMALL[itemsize].side ** 2)


def _flat(a: Layout, b: Layout, out: Meta) -> Program:
    """Transpose and add element by element."""
    rank, total = len(out.shape), math.prod(out.shape)
    steps = contiguous_strides(out.shape)
    arguments: dict[str, Any] = {}
    turned = (*a.shape[:-2], a.shape[-1], a.shape[-2])
    a_strides = (*a.strides[:-2], a.strides[-1], a.strides[-2])
    for side, shape, strides in (("a", turned, a_strides), ("b", b.shape, b.strides)):
        merged = merge(out.shape, broadcast_strides(shape, strides, rank), steps)
        dims = merged or [Dim(1, (0, 0))]
        own = tuple(s[0] for _, s in dims)
        arguments |= division_arguments(tuple(n for n, _ in dims), own, f"{side}_")
        arguments[f"NDIM_{side.upper()}"] = len(dims)
        arguments[f"EVEN_{side.upper()}"] = own == (1,)
    del arguments["EVEN_A"]
    block = constants.FLAT_BYTES // out.dtype.itemsize
    return Program(
        flat_add_kernel,
        triton.cdiv(total, block),
        {
            **arguments,
            **whole_accesses(total, out.dtype.itemsize),
            **_types(a, b, out, Variant.FLAT),
            "BLOCK": block,
            "num_warps": constants.FLAT_WARPS,
        },
    )


def _square(out: Meta, align_h: int) -> constants.Square:
    """The tile that is fastest where `align_h` divides the rows of the output."""
    itemsize = out.dtype.itemsize
    if out.dtype.is_complex:
        return constants.SQUARES_COMPLEX[itemsize]
    square = (constants.SQUARES if align_h > 1 else constants.SQUARES_UNALIGNED)[itemsize]
    few = math.prod(out.shape) < constants.MIN_TILES * square.side**2
    return constants.SQUARES_SMALL[itemsize] if few else square


def _types(a: Layout, b: Layout, out: Meta, variant: Variant) -> dict[str, Any]:
    """The arguments that say how to add."""
    if variant is Variant.COMPLEX:
        return {"COMPLEX_A": a.dtype.is_complex, "COMPLEX_B": b.dtype.is_complex}
    return {
        "ACC": ACCUMULATORS[out.dtype],
        "FLOAT": out.dtype.is_floating_point,
        "LOGICAL": out.dtype == torch.bool,
    }
