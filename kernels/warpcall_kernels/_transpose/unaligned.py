"""Transposition by aligned words where rows do not begin at words.

A thread owns a block of x: the columns of one word of 8 bytes, and twice as many rows. Of each row it
reads the two aligned words that hold its columns and shifts them into one; it transposes these in
registers into words that run down the columns; and of each two of those it shifts out the word that
lies aligned in the output. Shifts are counted from where rows begin, so any pitch will do. The words
then go through shared memory, so that neighbouring lanes write neighbouring words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from warpcall_kernels._transpose import strides
from warpcall_kernels._transpose.packed_words import (
    add,
    add_words,
    pieces,
    shift,
    stack,
    transpose_block,
    word,
)
from warpcall_kernels._transpose.strides import offset

WORD_BYTES = 8
GROUPS = tl.constexpr(2)  # of as many rows as a word has elements, that a thread owns
UNSPECIALIZED = (
    *("skew", "end", "size_i", "size_j", "tiles_i", "tiles_j"),
    *("stride_xj", "stride_outi"),
)  # no variant is compiled for these


@triton.jit
def _partial_word(
    x_ptr: tl.tensor,
    begin: tl.tensor,
    skew: tl.tensor,
    end: tl.tensor,
    needed: tl.tensor,
    PER: tl.constexpr,
) -> tl.tensor:
    """The word at element `begin`, counted as `end` is, of which only some lies in x; 0 unless needed."""
    word = tl.full([], 0, tl.int64)
    if needed:
        BITS: tl.constexpr = 64 // PER
        for e in tl.static_range(PER):
            at = begin + e
            element = tl.load(x_ptr + (at - skew), (at >= skew) & (at < end), other=0)
            word |= (element.to(tl.int64) & ((1 << BITS) - 1)) << (e * BITS)
    return word


@triton.jit
def _load_words(
    words_ptr: tl.tensor,
    begins: tl.tensor,
    first_row: tl.tensor,
    size_j: tl.tensor,
    last: tl.tensor,
    head: tl.tensor,
    tail: tl.tensor,
    N: tl.constexpr,
    LOG: tl.constexpr,
    COLS: tl.constexpr,
    SKEW_X: tl.constexpr,
    HEAD: tl.constexpr,
    INNER: tl.constexpr,
) -> tl.tensor:
    """Of N rows each thread's word, and the next where SKEW_X."""
    read = ()
    for k in tl.static_range(N):
        at = (begins[k] >> LOG)[:, None] + tl.arange(0, COLS)[None, :]
        if INNER:
            read = read + (tl.load(words_ptr + at),)  # type: ignore[assignment]  # noqa: RUF005
            if SKEW_X:
                read = read + (tl.load(words_ptr + at + 1),)  # type: ignore[assignment]  # noqa: RUF005
        else:
            exists = ((first_row + k >= 0) & (first_row + k < size_j))[:, None]
            other = tl.where(at == 0, head, tail) if HEAD else tail
            inside = exists & (at < last) & (at > 0) if HEAD else exists & (at < last)
            read = read + (tl.load(words_ptr + at, inside, other=other),)  # type: ignore[assignment]  # noqa: RUF005
            if SKEW_X:
                inside = exists & (at + 1 < last)
                read = read + (tl.load(words_ptr + at + 1, inside, other=tail),)  # type: ignore[assignment]  # noqa: RUF005
    return read


@triton.jit
def _transpose_words(
    read: tl.tensor,
    begins: tl.tensor,
    downs: tl.tensor,
    SKEW_X: tl.constexpr,
    SKEW_OUT: tl.constexpr,
    PER: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> tl.tensor:
    """Words down the columns [COLS * PER, ROWS * GROUPS], as they lie aligned in the output.

    Args:
        read: what `_load_words` returns.
        begins: of each row, where it begins; it is shifted by what is left over words.
        downs: of each column of a word, how many rows below the first its first word begins.
    """
    BITS: tl.constexpr = 64 // PER
    columns = ()
    for g in tl.static_range(GROUPS + 1 if SKEW_OUT else GROUPS):
        rows = ()
        for k in tl.static_range(g * PER, g * PER + PER):
            if SKEW_X:
                bits = ((begins[k] & (PER - 1)) * BITS).to(tl.uint32)[:, None]
                rows = rows + shift(pieces(read[2 * k]), pieces(read[2 * k + 1]), bits, BITS)
            else:
                rows = rows + pieces(read[k])
        columns = columns + transpose_block(rows, PER)
    words = ()
    for c in tl.static_range(PER):
        bits = (downs[c] * BITS).to(tl.uint32)[None, :]
        for k in tl.static_range(c, GROUPS * PER, PER):
            column = columns[2 * k : 2 * k + 2]
            if SKEW_OUT:
                column = shift(column, columns[2 * (k + PER) : 2 * (k + PER) + 2], bits, BITS)
            words = words + (word(column),)  # type: ignore[assignment]  # noqa: RUF005
    tile = tl.reshape(stack(words, ROWS, COLS, PER * GROUPS), (ROWS, COLS, PER, GROUPS))
    return tl.reshape(tl.permute(tile, (1, 2, 0, 3)), (COLS * PER, ROWS * GROUPS))


@triton.jit
def _move_elements(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    b_ptr: tl.tensor,
    from_x: tl.tensor,
    to_out: tl.tensor,
    exists: tl.tensor,
    TYPE: tl.constexpr,
    ACC: tl.constexpr,
) -> None:
    """Single elements."""
    moved = tl.load(x_ptr + from_x, exists)
    if b_ptr is not None:
        moved = add(moved, tl.load(b_ptr + to_out, exists), TYPE, ACC)
    tl.store(out_ptr + to_out, moved, exists)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def unaligned_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    b_ptr: tl.tensor,
    skew: tl.tensor,
    end: tl.tensor,
    size_i: tl.tensor,
    size_j: tl.tensor,
    tiles_i: tl.tensor,
    tiles_j: tl.tensor,
    stride_xj: tl.tensor,
    stride_outi: tl.tensor,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM: tl.constexpr,
    HEAD: tl.constexpr,
    SKEW_X: tl.constexpr,
    SKEW_OUT: tl.constexpr,
    WIDE: tl.constexpr,
    TYPE: tl.constexpr,
    ACC: tl.constexpr,
    PER: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    """Transpose i, the input's inner dim, with j, the output's; and add b, which lies as the output.

    Args:
        x_ptr, b_ptr, out_ptr: of integers as wide as an element; TYPE is what b and x are added as.
        skew: elements from the start of a word to x.
        end: elements from there to the end of x.
        HEAD: whether x begins inside a word.
        SKEW_X, SKEW_OUT: whether rows of x, and of the output, do.
        PER: elements of a word.
        ROWS, COLS: threads down the rows of x, and along them.
    """
    LOG: tl.constexpr = 1 + (PER > 2) + (PER > 4)  # PER is 2, 4 or 8
    DOWN: tl.constexpr = ROWS * GROUPS
    WIDTH: tl.constexpr = COLS * PER
    N: tl.constexpr = (GROUPS + 1 if SKEW_OUT else GROUPS) * PER
    pid = tl.program_id(0)
    final = pid >= tl.num_programs(0) - tiles_i * tiles_j
    if WIDE:
        pid = pid.to(tl.int64)  # and strides: so is all that is multiplied by them
        stride_xj, stride_outi = stride_xj.to(tl.int64), stride_outi.to(tl.int64)
    tile_j = pid % tiles_j
    pid = pid // tiles_j
    tile_i = pid % tiles_i
    rest = pid // tiles_i
    first_j = tile_j * (DOWN * PER)
    past_j = first_j + (DOWN + 1) * PER
    inner = (first_j > 0) & (past_j < size_j) & ((tile_i + 1) * WIDTH <= size_i)
    x_begin = skew + offset(rest, sizes, x_strides, NDIM, 1) + tile_i * WIDTH
    out_begin = offset(rest, sizes, out_strides, NDIM, 1)

    row = first_j + tl.arange(0, ROWS) * (GROUPS * PER)
    begins = ()
    for k in tl.static_range(N):
        begins = begins + (x_begin + (row + k) * stride_xj,)  # type: ignore[assignment]  # noqa: RUF005
    last = end // PER  # whole words end here
    tail = _partial_word(x_ptr, last * PER, skew, end, final & (past_j >= size_j), PER)
    head = _partial_word(x_ptr, 0, skew, end, first_j <= 0, PER) if HEAD else tail
    words_ptr = (x_ptr - skew).to(tl.pointer_type(tl.int64))
    # The branch also keeps the compiler from waiting for some words before it has asked for all.
    if inner:
        read = _load_words(
            words_ptr, begins, row, size_j, last, head, tail, N, LOG, COLS, SKEW_X, HEAD, True
        )
    else:
        read = _load_words(
            words_ptr, begins, row, size_j, last, head, tail, N, LOG, COLS, SKEW_X, HEAD, False
        )

    i = tile_i * WIDTH + tl.arange(0, WIDTH)
    begin = out_begin + i * stride_outi
    down = -begin & (PER - 1)
    nth = tl.arange(0, DOWN)[None, :]
    at = ((begin + down + first_j) >> LOG)[:, None] + nth
    whole = (i < size_i)[:, None] & (first_j + down[:, None] + (nth + 1) * PER <= size_j)
    if b_ptr is not None:
        b = tl.load(b_ptr.to(tl.pointer_type(tl.int64)) + at, whole)

    downs = ()
    for c in tl.static_range(PER):
        column = tile_i * WIDTH + tl.arange(0, COLS) * PER + c
        downs = downs + (-(out_begin + column * stride_outi) & (PER - 1),)  # type: ignore[assignment]  # noqa: RUF005
    words = _transpose_words(read, begins, downs, SKEW_X, SKEW_OUT, PER, ROWS, COLS)
    if b_ptr is not None:
        words = add_words(words, b, PER, x_ptr.dtype.element_ty, TYPE, ACC)
    out_words = out_ptr.to(tl.pointer_type(tl.int64))
    if inner:
        tl.store(out_words + at, words)
    else:
        tl.store(out_words + at, words, whole)
        # What columns have before their first whole word, and after their last.
        across = offset(rest, sizes, x_strides, NDIM, 1) + i
        over = (begin + size_j) & (PER - 1)
        for e in tl.static_range(PER - 1):
            exists = (i < size_i) & (e < down) & (tile_j == 0)
            _move_elements(
                x_ptr, out_ptr, b_ptr, across + e * stride_xj, begin + e, exists, TYPE, ACC
            )
            lone = size_j - 1 - e
            exists = (i < size_i) & (e < over) & (tile_j == tiles_j - 1)
            _move_elements(
                x_ptr, out_ptr, b_ptr, across + lone * stride_xj, begin + lone, exists, TYPE, ACC
            )


# What equal types are added as, and by which type; bool by "or".
TERMS = {
    torch.float16: (tl.float16, tl.float32),
    torch.bfloat16: (tl.bfloat16, tl.float32),
    torch.float32: (tl.float32, tl.float32),
    torch.int32: (tl.int32, tl.int32),
    torch.int16: (tl.int16, tl.int16),
    torch.int8: (tl.int8, tl.int8),
    torch.uint8: (tl.int8, tl.int8),
    torch.bool: (tl.int8, None),
}
# By itemsize: threads down the rows and along the columns, and registers that one may have, None for any number.
# Shares of a copy on an H200, of the tiles for any pitch in brackets: u8 [5003, 4999] 80 % (71), added 85 (50);
# bf16 [4097, 8191] 83 (73), added 88 (74); fp32 [7919, 7907] 89 (82), added 96 (82). Others: (8, 32) bf16 67 %, fp32 66;
# (16, 16) without a limit takes 78 registers: 79; (32, 16) bf16 77; (16, 16) u8 80, two groups for one 71, bf16 four
# groups 81, added 69. Tiles that overlap, so that runs of the output begin at 32 bytes: bf16 81, u8 72; at 128: 57.
THREADS: dict[int, tuple[int, int, int | None]] = {
    1: (8, 16, None),
    2: (16, 16, 64),
    4: (16, 32, None),
}
# With fewer tiles, or fewer elements on a side, the tiles for any pitch are as fast or faster: of u8 [2049, 2051] and
# fp32 [1025, 1027], both 257 tiles, they take 0.95 and 0.98 of the time, of fp16 [1021, 127, 131] added 0.61; of
# bf16 [2049, 2051], 513 tiles, 1.04, of bf16 [64, 333, 777] 1.04, added 1.08.
MIN_TILES = 396  # 3 for each multiprocessor of an H200
MIN_SIDE = 256


def arrange(
    i: strides.Dim,
    j: strides.Dim,
    rest: Sequence[strides.Dim],
    itemsize: int,
    begin: int,
    add: torch.dtype | None = None,
    b_begin: int = 0,
) -> tuple[int, dict[str, Any]] | None:
    """Programs and arguments of a launch, or None where this variant does not apply.

    Args:
        i: the input's inner dim, with its strides in x and in the output.
        j: the output's inner dim.
        rest: all others.
        itemsize: bytes of an element.
        begin: elements from an address that 16 bytes divide to x.
        add: the type of b, which lies as the output, and of x; without it nothing is added.
        b_begin: elements from an address that 16 bytes divide to b.
    """
    (size_i, (stride_xi, stride_outi)), (size_j, (stride_xj, _)) = i, j
    if itemsize > 4 or stride_xi != 1 or min(size_i, size_j) < MIN_SIDE:
        return None
    rows, cols, registers = THREADS[itemsize]
    per = WORD_BYTES // itemsize
    height, width = rows * GROUPS.value * per, cols * per
    programs = math.prod(n for n, _ in rest)
    x_steps = [stride_xj, *(s[0] for n, s in rest if n > 1)]
    out_steps = [stride_outi, *(s[1] for _, s in rest)]
    skew = begin % per
    skew_x, skew_out = (math.gcd(per, *steps) < per for steps in ([skew, *x_steps], out_steps))
    if (
        b_begin % per
        or not (skew_x or skew_out)
        or size_i * size_j * programs < MIN_TILES * height * width
    ):
        return None
    if min(x_steps) < size_i:  # where x overlaps itself, any program may read its ends
        return None
    tiles_i, tiles_j = triton.cdiv(size_i, width), triton.cdiv(size_j, height)
    element, accumulator = TERMS[add] if add is not None else (None, None)
    return tiles_i * tiles_j * programs, {
        **({} if add is not None else {"b_ptr": None}),
        "skew": skew,
        "end": skew + strides.reach(*zip(*((n, s[0]) for n, s in (i, j, *rest)), strict=True)),
        "size_i": size_i,
        "size_j": size_j,
        "tiles_i": tiles_i,
        "tiles_j": tiles_j,
        "stride_xj": stride_xj,
        "stride_outi": stride_outi,
        "sizes": tuple(n for n, _ in rest),
        "x_strides": tuple(s[0] for _, s in rest),
        "out_strides": tuple(s[1] for _, s in rest),
        "NDIM": len(rest),
        "HEAD": skew > 0,
        "SKEW_X": skew_x,
        "SKEW_OUT": skew_out,
        "TYPE": element,
        "ACC": accumulator,
        "PER": per,
        "ROWS": rows,
        "COLS": cols,
        "num_warps": rows * cols // 32,
        **({} if registers is None else {"maxnreg": registers}),
    }
