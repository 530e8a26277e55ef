"""The unaligned variant of a transposition: aligned words, where rows do not begin at words.

A thread owns a block of x: the columns of one word of 8 bytes, and twice as many rows. From each row it
loads the two aligned words that hold its columns, and shifts them into one. It transposes these words
in registers into words that run down the columns. From each two of those it shifts out the word that
lies aligned in the output. Every shift is computed from where its row begins, so any pitch will do.
The words then go through shared memory, so that neighbouring lanes store neighbouring words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._transpose import constants
from warpcall_kernels._transpose.packed_words import (
    add,
    add_words,
    pieces,
    shift,
    stack,
    transpose_block,
    word,
)
from warpcall_kernels._transpose.strides import Dim, offset, reach

WORD_BYTES = 8
GROUPS = tl.constexpr(
    2
)  # groups of rows that a thread owns, each of as many rows as a word has elements
# Arguments that Triton does not compile variants for.
UNSPECIALIZED = (
    *("skew", "end", "size_i", "size_j", "tiles_i", "tiles_j"),
    *("stride_xj", "stride_outi"),
)


@triton.jit
def _partial_word(
    x_ptr: tl.tensor,
    begin: tl.tensor,
    skew: tl.tensor,
    end: tl.tensor,
    needed: tl.tensor,
    PER: tl.constexpr,
) -> tl.tensor:
    """The word at element `begin`, of which only a part lies in x; 0 unless it is needed.

    `begin` and `end` are counted from the start of the word that x begins in.
    """
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
    """Load the word of each thread in each of N rows and, with SKEW_X, the next word."""
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
        begins: where each row begins, in elements; its offset inside a word is the shift.
        downs: for each column of a word, how many rows below the first its first aligned word begins.
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
    """Move single elements, and add b to them if there is one."""
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
    """Transpose i, the inner dim of x, with j, that of the output, and add b, which lies as the output.

    Args:
        x_ptr, b_ptr, out_ptr: pointers to integers as wide as an element; TYPE is the type to add them in.
        skew: elements from the start of a word to x.
        end: elements from there to the end of x.
        HEAD: whether x begins inside a word.
        SKEW_X, SKEW_OUT: whether rows of x, or of the output, begin inside a word.
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
        pid = pid.to(tl.int64)  # with 64-bit strides all products with them have 64 bits
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
    last = end // PER  # words from here on are not whole
    tail = _partial_word(x_ptr, last * PER, skew, end, final & (past_j >= size_j), PER)
    head = _partial_word(x_ptr, 0, skew, end, first_j <= 0, PER) if HEAD else tail
    words_ptr = (x_ptr - skew).to(tl.pointer_type(tl.int64))
    # The branch also keeps the compiler from waiting for some loads before it has issued all of them.
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
        # The elements of columns before their first whole word, and after their last.
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


# The type that elements have in an addition, and the type of their sum, by dtype. bool is added by "or".
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


class Skews(NamedTuple):
    """Where rows begin inside a word.

    Args:
        begin: elements from the start of a word to x.
        x: whether any row of x begins inside a word.
        out: whether any row of the output does.
    """

    begin: int
    x: bool
    out: bool


class Matrices(NamedTuple):
    """Matrices that are transposed, and perhaps added to.

    Args:
        i: the inner dim of x, with its strides in x and in the output.
        j: the inner dim of the output.
        rest: all other dims.
        itemsize: bytes of an element.
        begin: elements from an address that 16 bytes divide to x.
        b_begin: elements from such an address to b, which is added and lies as the output.
    """

    i: Dim
    j: Dim
    rest: Sequence[Dim]
    itemsize: int
    begin: int
    b_begin: int = 0

    @property
    def per(self) -> int:
        """Elements of a word."""
        return WORD_BYTES // self.itemsize

    @property
    def tile(self) -> tuple[int, int]:
        """The rows and the columns of x that a program transposes."""
        threads = constants.THREADS[self.itemsize]
        groups: int = GROUPS.value
        return threads.down * groups * self.per, threads.across * self.per

    @property
    def batches(self) -> int:
        return math.prod(dim.size for dim in self.rest)

    @property
    def programs(self) -> int:
        height, width = self.tile
        tiles: int = triton.cdiv(self.i.size, width) * triton.cdiv(self.j.size, height)
        return tiles * self.batches

    def skews(self) -> Skews:
        begin = self.begin % self.per
        x = begin, self.j.strides[0], *(dim.strides[0] for dim in self.rest if dim.size > 1)
        out = self.i.strides[1], *(dim.strides[1] for dim in self.rest)
        return Skews(begin, *(math.gcd(self.per, *steps) < self.per for steps in (x, out)))

    def applies(self) -> bool:
        """Whether this variant can transpose these matrices, and is faster than tiles."""
        i, j = self.i, self.j
        least = constants.UNALIGNED_MIN_SIDE
        if self.itemsize > 4 or i.strides[0] != 1 or min(i.size, j.size) < least:
            return False
        if self.b_begin % self.per:  # words of b would not lie as those of the output
            return False
        skews = self.skews()
        if not (skews.x or skews.out):
            return False
        height, width = self.tile
        if i.size * j.size * self.batches < constants.UNALIGNED_MIN_TILES * height * width:
            return False
        # Only the programs of the last batch load the words that lie only partly in x. If rows overlap,
        # other programs would need these words, too.
        pitches = (j.strides[0], *(dim.strides[0] for dim in self.rest if dim.size > 1))
        return min(pitches) >= i.size

    def arguments(self, added: torch.dtype | None = None) -> dict[str, Any]:
        """The arguments of `unaligned_kernel`; `added` is the dtype of b and of x, None if there is no b."""
        i, j, rest = self.i, self.j, self.rest
        threads = constants.THREADS[self.itemsize]
        height, width = self.tile
        skews = self.skews()
        element, accumulator = TERMS[added] if added is not None else (None, None)
        dims = (i, j, *rest)
        return {
            **({} if added is not None else {"b_ptr": None}),
            "skew": skews.begin,
            "end": skews.begin + reach([d.size for d in dims], [d.strides[0] for d in dims]),
            "size_i": i.size,
            "size_j": j.size,
            "tiles_i": triton.cdiv(i.size, width),
            "tiles_j": triton.cdiv(j.size, height),
            "stride_xj": j.strides[0],
            "stride_outi": i.strides[1],
            "sizes": tuple(dim.size for dim in rest),
            "x_strides": tuple(dim.strides[0] for dim in rest),
            "out_strides": tuple(dim.strides[1] for dim in rest),
            "NDIM": len(rest),
            "HEAD": skews.begin > 0,
            "SKEW_X": skews.x,
            "SKEW_OUT": skews.out,
            "TYPE": element,
            "ACC": accumulator,
            "PER": self.per,
            "ROWS": threads.down,
            "COLS": threads.across,
            "num_warps": threads.down * threads.across // 32,
            **({} if threads.registers is None else {"maxnreg": threads.registers}),
        }
