"""How the kernels for rows of a few positions move them: the variant "short".

Such rows begin anywhere, but a program takes several that together begin at 16 bytes. It reads them
as one run of words of 4 or 8 bytes. As many rows as a word has positions are a group, and a group
has as many whole words as a row has positions, whatever their number is. The run is transposed in
shared memory, word by word, so that a thread holds whole groups. Then the maximum and the sum of a
row need no other thread. The length of a row is a compile-time constant. So it is known at compile
time to which row each position of a thread belongs, and the words of the block beyond the group
cost nothing. 3 fp16 take 41 us on an H200, 31 % less than transposed by single positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from warpcall_kernels._softmax.constants import (
    SHORT_COLUMNS,
    SHORT_THREAD_WORDS,
    SHORT_WARPS,
    SHORT_WIDE_COLUMNS,
)
from warpcall_kernels._softmax.rows import RowLayout
from warpcall_kernels.op.launch import VECTOR_BYTES

# By the bytes of a position, of a word, or of the masks of a word.
BITS = {1: tl.uint8, 2: tl.uint16, 4: tl.uint32, 8: tl.uint64}


class RowRun(NamedTuple):
    """The rows of a program, which are one run of words.

    As many rows as a word has positions are a group, and they have as many words as a row has
    positions. Blocks have powers of two of groups and of words, so a run may have fewer groups than
    its block.
    """

    taken: int  # groups of the run
    groups: int  # groups of the block
    length: int  # words of the block that is read
    per: int  # positions of a word, and rows of a group
    warps: int

    def constants(self, layout: RowLayout) -> dict[str, Any]:
        """What a kernel is compiled for."""
        return {
            "WORD": BITS[self.per * layout.itemsize],
            "BITS": BITS[layout.itemsize],
            "GROUP": layout.group,
            "COLUMNS": layout.columns,
            "TAKEN": self.taken * self.per,
            "PER": self.per,
            "GROUPS": self.groups,
            "BLOCK": triton.next_power_of_2(layout.columns),
            "RUN": self.length,
            "num_warps": self.warps,
        }


def is_run(layout: RowLayout) -> bool:
    """Whether rows are short, begin anywhere, and lie without gaps from 16 aligned bytes on."""
    operands = (*layout.operands, layout.out)
    return (
        1 < layout.columns <= SHORT_COLUMNS
        and layout.narrow
        and all(strides.row == layout.columns for strides in operands)
        and all(n % layout.group == 0 for s in operands for n in (s.outer, s.inner))
        and all(stride == 1 for stride in layout.column_strides)
        and not any(layout.addresses)
    )


def plan_run(layout: RowLayout) -> RowRun:
    """The run that a program takes: the one with the least work for each row."""
    columns = layout.columns
    word_bytes = 8 if columns <= SHORT_WIDE_COLUMNS else 4
    per = max(1, word_bytes // layout.itemsize)
    threads = 32 * SHORT_WARPS
    words = triton.next_power_of_2(columns)
    groups = threads * max(1, SHORT_THREAD_WORDS // words)
    length = triton.next_power_of_2(groups * columns)
    # A run must begin at 16 bytes.
    even = max(1, VECTOR_BYTES // (per * layout.itemsize))
    fewer = length // 2 // columns // even * even
    whole = RowRun(groups, groups, length, per, SHORT_WARPS)
    half = RowRun(fewer, groups, length // 2, per, SHORT_WARPS)
    return min(whole, half, key=lambda run: (2 * groups * columns + run.length) / run.taken)


@triton.jit
def read_run(
    ptr: tl.tensor,
    positions: tl.tensor,
    FULL: tl.constexpr,
    WORD: tl.constexpr,
    BITS: tl.constexpr,
    PER: tl.constexpr,
    RUN: tl.constexpr,
) -> tl.tensor:
    """A run of words, of which the last one may not be whole unless FULL."""
    run = tl.arange(0, RUN)
    if FULL:
        ptrs = ptr.to(tl.pointer_type(WORD), bitcast=True) + run
        words = tl.load(ptrs, mask=run < positions // PER, other=0)
    else:
        words = tl.zeros([RUN], WORD)
        ptrs = ptr.to(tl.pointer_type(BITS), bitcast=True)
        for i in tl.static_range(PER):
            at = run * PER + i
            bits = tl.load(ptrs + at, mask=at < positions, other=0)
            words |= bits.to(WORD) << (i * BITS.primitive_bitwidth)
    return words


@triton.jit
def write_run(
    ptr: tl.tensor,
    words: tl.tensor,
    positions: tl.tensor,
    FULL: tl.constexpr,
    WORD: tl.constexpr,
    BITS: tl.constexpr,
    PER: tl.constexpr,
    RUN: tl.constexpr,
) -> None:
    run = tl.arange(0, RUN)
    if FULL:
        ptrs = ptr.to(tl.pointer_type(WORD), bitcast=True) + run
        tl.store(ptrs, words, mask=run < positions // PER)
    else:
        ptrs = ptr.to(tl.pointer_type(BITS), bitcast=True)
        for i in tl.static_range(PER):
            at = run * PER + i
            bits = (words >> (i * BITS.primitive_bitwidth)).to(BITS)
            tl.store(ptrs + at, bits, mask=at < positions)


@triton.jit
def to_groups(
    run: tl.tensor, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr
) -> tl.tensor:
    """[BLOCK, GROUPS]: a thread gets all words of a group of rows."""
    flat = tl.arange(0, BLOCK * GROUPS)
    word = tl.minimum(flat // GROUPS, COLUMNS - 1)
    group = tl.minimum(flat % GROUPS, run.shape[0] // COLUMNS - 1)
    return tl.reshape(tl.gather(run, group * COLUMNS + word, axis=0), (BLOCK, GROUPS))


@triton.jit
def to_run(
    words: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    RUN: tl.constexpr,
) -> tl.tensor:
    run = tl.arange(0, RUN)
    group, word = tl.minimum(run // COLUMNS, GROUPS - 1), run % COLUMNS
    return tl.gather(tl.reshape(words, (BLOCK * GROUPS,)), word * GROUPS + group, axis=0)


@triton.jit
def unpack(
    words: tl.tensor,
    i: tl.constexpr,
    BITS: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """Position i of each word."""
    bits = (words >> (i * BITS.primitive_bitwidth)).to(BITS)
    return bits.to(DTYPE, bitcast=True).to(ACC)


@triton.jit
def pack(
    x: tl.tensor,
    i: tl.constexpr,
    WORD: tl.constexpr,
    BITS: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """A word with x, rounded, as position i, and 0 elsewhere."""
    return x.to(DTYPE).to(BITS, bitcast=True).to(WORD) << (i * BITS.primitive_bitwidth)


@triton.jit
def of_each_row(each: tl.tensor, row: tl.tensor, PER: tl.constexpr) -> tl.tensor:
    """The item of a tuple, one for each row of a group, that belongs to the row."""
    x = each[0][None, :]
    for r in tl.static_range(1, PER):
        x = tl.where(row >= r, each[r][None, :], x)
    return x
