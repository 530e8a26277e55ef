"""How a permutation is launched: the layout reduced, one of three kernels chosen, their arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from warpcall_kernels._transpose import strides as _dims
from warpcall_kernels._transpose import unaligned
from warpcall_kernels._transpose.strides import WORDS, contiguous_strides, offset
from warpcall_kernels.op.launch import Launch

# Tiles by size of a word: (i, j, warps), where rows of the output begin at 16 bytes, at a few words, and at any
# one: what `_transpose/unaligned.py` leaves of those, such as several dims on a side, short ones and words of 8 bytes. Medians
# on an H200: bf16 [8192, 8192] 69.4 us with 128 x 128, 72.1 with 64 x 64; [24300, 11520] 297 us with 64 x 256, 342 with 128 x 128; fp32 [7919, 7907] 151 with 32 x 128, 179 with 64 x 64; u8 [5003, 4999]
# 24.8 with 32 x 256, 27.3 with 128 x 128; fp16 [31, 37, 41, 43, 7] 31.7 with 64 x 128, 36.8 with 64 x 256.
TILES = {1: (128, 128, 8), 2: (128, 128, 8), 4: (64, 64, 8), 8: (32, 32, 4)}
TILES_FEW_WORDS = {1: (128, 128, 8), 2: (64, 256, 8), 4: (64, 64, 8), 8: (32, 32, 4)}
TILES_ONE_WORD = {1: (32, 256, 8), 2: (64, 128, 8), 4: (32, 128, 8), 8: (32, 32, 4)}
# And where there would be fewer than MIN_TILES tiles. [512, 512] bf16: 2.4 us, with 128 x 128 3.5.
TILES_SMALL = {1: (64, 64, 4), 2: (32, 64, 4), 4: (32, 32, 4), 8: (32, 32, 4)}
MIN_TILES = 132  # multiprocessors of an H200
RUN_BYTES = 256  # of the output that a tile writes in one run, with a third dim where j is shorter
ROWS_BYTES = 16384  # that a program gathers: 4 accesses of 16 bytes in flight a thread
ROWS_WORDS = 4096  # and no more than so many words: each row costs its indices
ROWS_WARPS = 8
NARROW = 8  # words of a row of which less is gathered word by word
UNSPECIALIZED = ("rows", "units", "stride_xc")
UNSPECIALIZED_TILE = (
    *("units_i", "units_j", "tiles_i", "tiles_j", "stride_xi"),
    *("i_sizes", "i_factors", "i_shifts", "i_steps"),
    *("j_sizes", "j_factors", "j_shifts", "j_steps"),
)  # no variant is compiled for these: ALIGN says what divides them


@triton.jit
def _linear_to_offset(
    index: tl.tensor,
    sizes: tl.tensor,
    factors: tl.tensor,
    shifts: tl.tensor,
    steps: tl.tensor,
    NDIM: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
) -> tl.tensor:
    """Where linear indices over `sizes` lie, as `_dims.offset`, in 3 instructions a dim: see `division_arguments`."""
    total = index * steps[NDIM - 1]
    for d in tl.static_range(NDIM - 1, 0, -1):
        if WIDE:
            index = index // sizes[d]
        else:
            factor = factors[d].to(tl.uint32, bitcast=True)
            index = (tl.umulhi(index.to(tl.uint32), factor) >> shifts[d]).to(tl.int32)
        total += index * steps[d - 1]
    return tl.multiple_of(total, ALIGN)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _rows_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.int64,
    col_tiles: tl.tensor,
    units: tl.tensor,
    stride_xc: tl.int64,
    sizes: tl.tensor,
    factors: tl.tensor,
    shifts: tl.tensor,
    steps: tl.tensor,
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
    begin = _linear_to_offset(row, sizes, factors, shifts, steps, NDIM, ALIGN, WIDE)
    across = col if EVEN else col * stride_xc
    words = tl.load(x_ptr + begin[:, None] + across[None, :], mask=inside)
    tl.store(out_ptr + tl.multiple_of(row * columns, ALIGN)[:, None] + col[None, :], words, inside)


@triton.jit(do_not_specialize=UNSPECIALIZED_TILE)
def _tile_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    units_i: tl.tensor,
    units_j: tl.tensor,
    tiles_i: tl.tensor,
    tiles_j: tl.tensor,
    stride_xi: tl.tensor,
    i_sizes: tl.tensor,
    i_factors: tl.tensor,
    i_shifts: tl.tensor,
    i_steps: tl.tensor,
    j_sizes: tl.tensor,
    j_factors: tl.tensor,
    j_shifts: tl.tensor,
    j_steps: tl.tensor,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM_I: tl.constexpr,
    NDIM_J: tl.constexpr,
    NDIM: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN_X: tl.constexpr,
    ALIGN_OUT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
) -> None:
    """Transpose i, the input's inner dims, with j, the output's."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    j = pid % tiles_j * BLOCK_J + tl.arange(0, BLOCK_J)
    pid = pid // tiles_j
    i = pid % tiles_i * BLOCK_I + tl.arange(0, BLOCK_I)
    rest = pid // tiles_i
    x_ptr += offset(rest, sizes, x_strides, NDIM, ALIGN_X)
    out_ptr += offset(rest, sizes, out_strides, NDIM, ALIGN_OUT)
    # The compiler knows what divides these sizes, and so how wide a masked access may be.
    exist_i, exist_j = i < units_i * ALIGN_X, j < units_j * ALIGN_OUT

    across = i if EVEN else i * stride_xi
    along = _linear_to_offset(j, j_sizes, j_factors, j_shifts, j_steps, NDIM_J, ALIGN_X, WIDE)
    inside = exist_j[:, None] & exist_i[None, :]
    words = tl.load(x_ptr + (along[:, None] + across[None, :]), mask=inside)
    along = _linear_to_offset(i, i_sizes, i_factors, i_shifts, i_steps, NDIM_I, ALIGN_OUT, WIDE)
    inside = exist_i[:, None] & exist_j[None, :]
    tl.store(out_ptr + (along[:, None] + j[None, :]), tl.trans(words), mask=inside)


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
    align = _dims.alignment(word, [begin, columns, *(s[0] for _, s in outer)]) if step == 1 else 1
    if step == align == 1 and columns < NARROW:  # lanes of padding cost more than another division
        outer, columns = merged, 1
    cols = min(triton.next_power_of_2(columns), ROWS_BYTES // word // 4)
    rows = math.prod(n for n, _ in outer)
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
            **division_arguments(tuple(n for n, _ in outer), tuple(s[0] for _, s in outer)),
            "NDIM": len(outer),
            "EVEN": step == 1,
            "ALIGN": align,
            "ROWS": block,
            "COLS": cols,
            "num_warps": ROWS_WARPS,
        },
    )


def division_arguments(
    sizes: tuple[int, ...], strides: tuple[int, ...], side: str = ""
) -> dict[str, Any]:
    """What `_linear_to_offset` needs to walk dims by these strides, named for the `side`.

    With 2^(l-1) < size <= 2^l, n // size is the high word of n * factor, shifted right by l - 1, for any
    n below 2^31; the factor is 2^(31+l) / size, rounded up, here as a signed number. And n % size is
    n - n // size * size, so that an offset is a sum of quotients, each times a step.
    """
    # Of the first dim only the step is used: the rest is 0, so that no variant is compiled for it.
    lengths = [max(1, (size - 1).bit_length()) for size in sizes[1:]]
    factors = [-(-(1 << (31 + n)) // size) for size, n in zip(sizes[1:], lengths, strict=True)]
    below = [size * stride for size, stride in zip(sizes[1:], strides[1:], strict=True)]
    return {
        f"{side}sizes": (0, *sizes[1:]),
        f"{side}factors": (0, *(f - (1 << 32) if f >> 31 else f for f in factors)),
        f"{side}shifts": (0, *(n - 1 for n in lengths)),
        f"{side}steps": tuple(s - b for s, b in zip(strides, [*below, 0], strict=True)),
    }


def _tiles(
    merged: list[_dims.Dim], word: int, begin: int, i: int
) -> tuple[Any, int, dict[str, Any]]:
    """The launch that transposes dim `i`, and those that go on from it, with the last ones."""
    rest = list(merged)
    side_j = [rest.pop()]
    side_i = [rest.pop(i)]
    xi = side_i[0][1][0]
    size_i, size_j = side_i[0][0], side_j[0][0]
    while rest and min(size_i, size_j) * word < RUN_BYTES:
        on_i = next((d for d, (_, (xs, _)) in enumerate(rest) if xs == size_i * xi), -1)
        on_j = next((d for d, (_, (_, os)) in enumerate(rest) if os == size_j), -1)
        wants_i = on_i >= 0 and size_i * word < RUN_BYTES
        wants_j = on_j >= 0 and size_j * word < RUN_BYTES
        if wants_i and (not wants_j or size_i <= size_j):
            side_i.insert(0, rest.pop(on_i))
            size_i *= side_i[0][0]
        elif wants_j:
            side_j.insert(0, rest.pop(on_j))
            size_j *= side_j[0][0]
        else:
            break
    rest = rest or [(1, (0, 0))]
    i_strides, j_strides = tuple(s[1] for _, s in side_i), tuple(s[0] for _, s in side_j)

    if len(side_i) == len(side_j) == 1:
        by_words = unaligned.arrange(side_i[0], side_j[0], rest, word, begin)
        if by_words is not None:
            return unaligned.unaligned_kernel, *by_words
    align_out = _dims.alignment(word, [size_j, *i_strides, *(s[1] for _, s in rest)])
    odd = TILES_ONE_WORD if align_out == 1 else TILES_FEW_WORDS
    tile_i, tile_j, warps = (TILES if align_out * word == 16 else odd)[word]
    if math.prod(n for n, _ in merged) < MIN_TILES * tile_i * tile_j:
        tile_i, tile_j, warps = TILES_SMALL[word]
    block_i = min(triton.next_power_of_2(size_i), tile_i)
    block_j = min(triton.next_power_of_2(size_j), tile_i * tile_j // block_i)
    if block_j < tile_j:
        block_i = min(triton.next_power_of_2(size_i), tile_i * tile_j // block_j)
    align_x = _dims.alignment(word, [begin, size_i, *j_strides, *(s[0] for _, s in rest)])
    align_x = align_x if xi == 1 else 1
    tiles_i, tiles_j = triton.cdiv(size_i, block_i), triton.cdiv(size_j, block_j)
    return (
        _tile_kernel,
        tiles_i * tiles_j * math.prod(n for n, _ in rest),
        {
            "units_i": size_i // align_x,
            "units_j": size_j // align_out,
            "tiles_i": tiles_i,
            "tiles_j": tiles_j,
            "stride_xi": xi,
            **division_arguments(tuple(n for n, _ in side_i), i_strides, "i_"),
            **division_arguments(tuple(n for n, _ in side_j), j_strides, "j_"),
            "sizes": tuple(n for n, _ in rest),
            "x_strides": tuple(s[0] for _, s in rest),
            "out_strides": tuple(s[1] for _, s in rest),
            "NDIM_I": len(side_i),
            "NDIM_J": len(side_j),
            "NDIM": len(rest),
            "EVEN": xi == 1,
            "ALIGN_X": align_x,
            "ALIGN_OUT": align_out,
            "BLOCK_I": block_i,
            "BLOCK_J": block_j,
            "num_warps": warps,
        },
    )
