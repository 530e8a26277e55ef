"""How a permutation is launched: the layout reduced, one of two kernels chosen, their arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from warpcall_kernels import _dims
from warpcall_kernels._dims import contiguous_strides, offset
from warpcall_kernels._torch import Launch

WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}  # what is moved, by its size
# Tiles by size of a word: (i, j, warps), where rows of the output begin at 16 bytes and where not. Medians on
# an H200 of bf16: [8192, 8192] 69.4 us with 128 x 128, 72.1 with 64 x 64; [24300, 11520] 297 us with
# 64 x 256, 342 with 128 x 128, 432 with 64 x 64.
TILES = {1: (128, 128, 8), 2: (128, 128, 8), 4: (64, 64, 8), 8: (32, 32, 4)}
TILES_ODD = {1: (128, 128, 8), 2: (64, 256, 8), 4: (64, 64, 8), 8: (32, 32, 4)}
# And where there would be fewer than FEW tiles. [512, 512] bf16: 2.4 us, with 128 x 128 3.5.
TILES_SMALL = {1: (64, 64, 4), 2: (32, 64, 4), 4: (32, 32, 4), 8: (32, 32, 4)}
FEW = 132  # multiprocessors of an H200
RUN_BYTES = 256  # of the output that a tile writes in one run, with a third dim where j is shorter
ROWS_BYTES = 16384  # that a program gathers: 4 accesses of 16 bytes in flight a thread
ROWS_WORDS = 4096  # and no more than so many words: each row costs its indices
ROWS_WARPS = 8
PLAIN = ("rows", "units", "stride_xc")
PLAIN_TILE = (
    *("size_o", "tiles_o", "tiles_i", "tiles_j"),
    *("stride_xo", "stride_xi", "stride_xj", "stride_oo", "stride_oi"),
)  # no variant is compiled for these: ALIGN says what divides them; of tuples Triton makes some


@triton.jit(do_not_specialize=PLAIN)
def _rows_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.int64,
    col_tiles: tl.tensor,
    units: tl.tensor,
    stride_xc: tl.int64,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    NDIM: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    """Gather rows that both sides hold whole; of the output they are the linear index."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    row = pid // col_tiles * ROWS + tl.arange(0, ROWS)
    col = pid % col_tiles * COLS + tl.arange(0, COLS)
    columns = units * ALIGN  # so that the compiler knows what divides it
    inside = (row < rows)[:, None] & (col < columns)[None, :]
    begin = tl.multiple_of(offset(row, sizes, x_strides, NDIM), ALIGN)
    across = col if EVEN else col * stride_xc
    words = tl.load(x_ptr + begin[:, None] + across[None, :], mask=inside)
    tl.store(out_ptr + tl.multiple_of(row * columns, ALIGN)[:, None] + col[None, :], words, inside)


@triton.jit(do_not_specialize=PLAIN_TILE)
def _tile_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    size_o: tl.tensor,
    units_i: tl.tensor,
    units_j: tl.tensor,
    tiles_o: tl.tensor,
    tiles_i: tl.tensor,
    tiles_j: tl.tensor,
    stride_xo: tl.tensor,
    stride_xi: tl.tensor,
    stride_xj: tl.tensor,
    stride_oo: tl.tensor,
    stride_oi: tl.tensor,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN_X: tl.constexpr,
    ALIGN_OUT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
) -> None:
    """Transpose i, the input's inner dim, with j, the output's; o is a third dim in the tile."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    j = pid % tiles_j * BLOCK_J + tl.arange(0, BLOCK_J)
    pid = pid // tiles_j
    i = pid % tiles_i * BLOCK_I + tl.arange(0, BLOCK_I)
    pid = pid // tiles_i
    o = pid % tiles_o * BLOCK_O + tl.arange(0, BLOCK_O)
    rest = pid // tiles_o
    x_ptr += tl.multiple_of(offset(rest, sizes, x_strides, NDIM), ALIGN_X)
    out_ptr += tl.multiple_of(offset(rest, sizes, out_strides, NDIM), ALIGN_OUT)
    # The compiler knows what divides these sizes, and so how wide a masked access may be.
    exist_o, exist_i, exist_j = o < size_o, i < units_i * ALIGN_X, j < units_j * ALIGN_OUT

    across = i if EVEN else i * stride_xi
    x_at = tl.multiple_of(o * stride_xo, ALIGN_X)[:, None, None] + (
        tl.multiple_of(j * stride_xj, ALIGN_X)[None, :, None] + across[None, None, :]
    )
    inside = exist_o[:, None, None] & (exist_j[None, :, None] & exist_i[None, None, :])
    words = tl.load(x_ptr + x_at, mask=inside)
    out_at = tl.multiple_of(o * stride_oo, ALIGN_OUT)[:, None, None] + (
        tl.multiple_of(i * stride_oi, ALIGN_OUT)[None, :, None] + j[None, None, :]
    )
    inside = exist_o[:, None, None] & (exist_i[None, :, None] & exist_j[None, None, :])
    tl.store(out_ptr + out_at, tl.permute(words, (0, 2, 1)), mask=inside)


def plan(
    sizes: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int],
    itemsize: int,
    address: int,
) -> Launch | None:
    """Choose the launch for a layout; None is a plain copy.

    Args:
        sizes: of x, none of them zero.
        strides: of x, in elements.
        dims: what goes where, normalised.
        address: of x's first element, modulo 16.
    """
    shape = [sizes[d] for d in dims]
    merged = _dims.merge(shape, [strides[d] for d in dims], contiguous_strides(shape))
    merged, word = _widen(merged, itemsize, address)
    if not merged or (len(merged) == 1 and merged[0][1][0] == 1):
        return None
    spans = (_dims.reach([n for n, _ in merged], [s[k] for _, s in merged]) for k in (0, 1))
    wide = max(spans) >= _dims.INT32_REACH
    i = min(range(len(merged)), key=lambda d: (merged[d][1][0] or math.inf, -d))
    arrange = _rows if i == len(merged) - 1 else functools.partial(_tiles, i=i)
    kernel, programs, arguments = arrange(merged, word, address // word)
    return Launch(kernel, (programs,), {**arguments, "WIDE": wide}, (WORDS[word], WORDS[word]))


def _widen(merged: list[_dims.Dim], itemsize: int, address: int) -> tuple[list[_dims.Dim], int]:
    """Take pairs of neighbours as one word while they stay neighbours; words of up to 8 bytes."""
    if itemsize == 16:  # two words of 8 bytes, an inner dim that is kept
        doubled: list[_dims.Dim] = [(n, (sx * 2, so * 2)) for n, (sx, so) in merged]
        merged = [*doubled, (2, (1, 1))]
        merged = _dims.merge([n for n, _ in merged], *zip(*(s for _, s in merged), strict=True))
        return merged, 8
    word = itemsize
    while word < 8 and merged and address % (2 * word) == 0:
        *outer, (n, inner) = merged
        if inner != (1, 1) or n % 2 or any(step % 2 for _, steps in outer for step in steps):
            break
        halved: list[_dims.Dim] = [(size, (sx // 2, so // 2)) for size, (sx, so) in outer]
        merged = [*halved, (n // 2, (1, 1))] if n > 2 else halved
        word *= 2
    return merged, word


def _rows(merged: list[_dims.Dim], word: int, begin: int) -> tuple[Any, int, dict[str, Any]]:
    """The launch that gathers rows along the last dim."""
    *outer, (columns, (step, _)) = merged
    outer = outer or [(1, (0, 0))]
    rows = math.prod(n for n, _ in outer)
    align = _dims.alignment(word, [begin, columns, *(s[0] for _, s in outer)]) if step == 1 else 1
    cols = min(triton.next_power_of_2(columns), ROWS_BYTES // word // 4)
    block = min(ROWS_BYTES // word, ROWS_WORDS) // cols
    col_tiles = triton.cdiv(columns, cols)
    return (
        _rows_kernel,
        triton.cdiv(rows, block) * col_tiles,
        {
            "rows": rows,
            "col_tiles": col_tiles,
            "units": columns // align,
            "stride_xc": step,
            "sizes": tuple(n for n, _ in outer),
            "x_strides": tuple(s[0] for _, s in outer),
            "NDIM": len(outer),
            "EVEN": step == 1,
            "ALIGN": align,
            "ROWS": block,
            "COLS": cols,
            "num_warps": ROWS_WARPS,
        },
    )


def _tiles(
    merged: list[_dims.Dim], word: int, begin: int, i: int
) -> tuple[Any, int, dict[str, Any]]:
    """The launch that transposes dim `i` with the last one."""
    *rest, (size_j, (xj, _)) = merged
    size_i, (xi, oi) = rest.pop(i)
    # The third dim is the one that goes on where a row of the tile ends, on either side.
    o = next((d for d, (_, (xo, oo)) in enumerate(rest) if oo == size_j or xo == size_i * xi), -1)
    size_o, (xo, oo) = rest.pop(o) if rest else (1, (0, 0))
    rest = rest or [(1, (0, 0))]

    align_out = _dims.alignment(word, [size_j, oo, oi, *(s[1] for _, s in rest)])
    tile_i, tile_j, warps = (TILES if align_out * word == 16 else TILES_ODD)[word]
    if math.prod(n for n, _ in merged) < FEW * tile_i * tile_j:
        tile_i, tile_j, warps = TILES_SMALL[word]
    block_i = min(triton.next_power_of_2(size_i), tile_i)
    block_j = min(triton.next_power_of_2(size_j), tile_i * tile_j // block_i)
    if block_j < tile_j:
        block_i = min(triton.next_power_of_2(size_i), tile_i * tile_j // block_j)
    if oo == size_j and block_j * word < RUN_BYTES // 2:
        block_i = min(block_i, max(tile_i // 2, tile_i * tile_j * word // RUN_BYTES))
    block_o = min(triton.next_power_of_2(size_o), tile_i * tile_j // (block_i * block_j))
    align_x = _dims.alignment(word, [begin, size_i, xo, xj, *(s[0] for _, s in rest)])
    align_x = align_x if xi == 1 else 1
    tiles_o, tiles_i = triton.cdiv(size_o, block_o), triton.cdiv(size_i, block_i)
    tiles_j = triton.cdiv(size_j, block_j)
    return (
        _tile_kernel,
        tiles_o * tiles_i * tiles_j * math.prod(n for n, _ in rest),
        {
            "size_o": size_o,
            "units_i": size_i // align_x,
            "units_j": size_j // align_out,
            "tiles_o": tiles_o,
            "tiles_i": tiles_i,
            "tiles_j": tiles_j,
            "stride_xo": xo,
            "stride_xi": xi,
            "stride_xj": xj,
            "stride_oo": oo,
            "stride_oi": oi,
            "sizes": tuple(n for n, _ in rest),
            "x_strides": tuple(s[0] for _, s in rest),
            "out_strides": tuple(s[1] for _, s in rest),
            "NDIM": len(rest),
            "EVEN": xi == 1,
            "ALIGN_X": align_x,
            "ALIGN_OUT": align_out,
            "BLOCK_O": block_o,
            "BLOCK_I": block_i,
            "BLOCK_J": block_j,
            "num_warps": warps,
        },
    )
