"""How the convolution kernels walk rows in memory: which a program takes, and how it reads and writes them.

Positions are counted along a row; what lies outside of it is 0. Rows of odd lengths begin anywhere
within 16 bytes. Where those of all operands begin at the same places they are *skewed*: counted not
from their first position but from the multiple of 16 bytes at or before it, so that every access is
of a whole, aligned group of 16 bytes whatever the length. A convolution does not mind the shift.
A group at either end of a row has elements of its neighbours: what is read of them becomes 0, and
such a group is written one element at a time. Tiles away from the ends of their rows need no masks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels.op.launch import VECTOR_BYTES, LayoutKey

WASTE = 8  # a tile may hang over the end of its rows, or have idle pieces, by one part in so many
FEW_PIECES = 16  # pieces of a row from which on a power of two of them makes a tile wide enough
SKEW_BYTES = 32  # of a row, from which on it has more whole groups than ends
INT32_REACH = 2**31 - 2**20  # positions, with room for a window beyond the last

# How a block of rows is read and written.
BOUNDS_CHECKED = tl.constexpr(0)  # rows that begin at multiples of UNIT
INTERIOR = tl.constexpr(1)  # rows away from their ends
SKEWED = tl.constexpr(2)  # skewed rows
SKEWED_TAIL = tl.constexpr(
    3
)  # skewed rows, the last of which ends within the last group of the tensor


class Alignment(NamedTuple):
    """Where the rows of some tensors of one shape begin.

    Args:
        unit: elements, a power of two and up to 16 bytes, that divides their length and all begins.
        skew: the elements in 16 bytes if they are skewed, else 0.
        tail: of skewed rows, whether the last ends within a group that crosses the end of a tensor.
    """

    unit: int
    skew: int
    tail: bool

    @staticmethod
    def of(*tensors: LayoutKey) -> Alignment:
        """Skewed are rows that begin at the same places within groups as those of the result."""
        (batches, channels, length), _, dtype, _ = tensors[0]
        group = VECTOR_BYTES // dtype.itemsize
        unit = _common_divisor(*tensors)
        apart = Alignment(unit, 0, False)
        if unit == group or length * dtype.itemsize < SKEW_BYTES:
            return apart
        tail = batches * channels * length % group != 0
        for _, strides, _, address in tensors:
            further = (  # than in a contiguous tensor, as the result is
                strides[0] - channels * length if batches > 1 else 0,
                strides[1] - length if channels > 1 else 0,
            )
            span = (batches - 1) * strides[0] + (channels - 1) * strides[1] + length
            congruent = strides[2] == 1 and not address and not any(s % group for s in further)
            if not congruent or (any(further) and (tail or span % group)):
                return apart
        return Alignment(unit, group, tail)

    def whole(self, dtype: torch.dtype) -> bool:
        """Whether rows are read 16 bytes at a time."""
        return max(self.unit, self.skew) * dtype.itemsize == VECTOR_BYTES


def _common_divisor(*tensors: LayoutKey) -> int:
    itemsize = tensors[0][2].itemsize
    bits = VECTOR_BYTES // itemsize
    for (batches, channels, length), strides, _, address in tensors:
        if length > 1 and strides[2] != 1:
            return 1
        bits |= length | address // itemsize
        bits |= strides[0] if batches > 1 else 0
        bits |= strides[1] if channels > 1 else 0
    return bits & -bits


class Tiling(NamedTuple):
    """How the rows of a head are cut: tiles of `wide` pieces of each of some rows."""

    wide: int
    tiles_wide: int
    tiles: int
    big: bool  # more rows, or positions, than 32 bits count

    @staticmethod
    def of(rows: int, positions: int, piece: int, pieces: int, whole: bool) -> Tiling:
        """Tiles of `pieces` pieces, as wide as does not waste much at the end of a row.

        Few pieces, if they are read whole, are taken as they are: neighbours stay together.
        """
        in_row = -(-positions // piece)
        wide = pieces
        while wide > 1 and -(-in_row // wide) * wide * WASTE > in_row * (WASTE + 1):
            wide //= 2
        if whole and wide < in_row < FEW_PIECES and pieces % in_row * (WASTE + 1) <= pieces:
            wide = in_row
        tiles_wide = -(-in_row // wide)
        big = max(rows, positions) >= INT32_REACH
        return Tiling(wide, tiles_wide, tiles_wide * -(-rows // (pieces // wide)), big)


def last_stride(x: LayoutKey) -> int | None:
    """The stride along the last dim, None for 1; an empty or single position has any."""
    return None if x[1][-1] == 1 or x[0][-1] == 1 else x[1][-1]


@triton.jit
def tile_of(
    tile: tl.tensor,
    head: tl.tensor,
    rows: tl.tensor,
    group: tl.tensor,
    channels: tl.tensor,
    units: tl.tensor,
    tiles_wide: tl.tensor,
    UNIT: tl.constexpr,
    BIG: tl.constexpr,
) -> tl.tensor:
    """A tile of a head: its number among the rows and along them, and what its rows are."""
    high, wide = tile // tiles_wide, tile % tiles_wide
    length = units * UNIT  # so that the compiler knows what divides it, and how wide it may load
    if BIG:
        high, wide, length = high.to(tl.int64), wide.to(tl.int64), units.to(tl.int64) * UNIT
    return high, wide, head, rows, group, channels, units, length


@triton.jit
def is_interior(
    tile: tl.tensor,
    before: tl.tensor,
    after: tl.tensor,
    SKEW: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
) -> tl.tensor:
    """Whether a tile, and so many positions `before` and `after` it, are within rows, however skewed."""
    high, wide, _head, rows, _group, _channels, _units, length = tile
    first = wide * (WIDE * PIECE)
    inner = (first - before >= SKEW) & (first + (WIDE * PIECE) + after <= length)
    return inner & ((high + 1) * (PIECES // WIDE) <= rows) & (PIECES % WIDE == 0)


@triton.jit
def locate(
    tile: tl.tensor,
    first: tl.tensor,
    TAKEN: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """TAKEN pieces of a tile from its `first`: batch [TAKEN], channel, first position in the row, and
    `rows`, what it takes to read and write these.

    A tile spans WIDE pieces of each of PIECES // WIDE rows; the rows of a head are all its channels
    of all batches. `rows` is which are live, and their end; of skewed ones for each, and the first
    position, and the end of the groups that can be read whole; with SKEWED_TAIL access, and whether there
    are others.
    """
    high, wide, head, count, group, channels, units, length = tile
    piece = first + tl.arange(0, TAKEN)
    row = high * (PIECES // WIDE) + piece // WIDE
    start = (wide * WIDE + piece % WIDE) * PIECE
    batch, channel = row // group, head * group + row % group
    live = row < count
    if PIECES % WIDE:
        live = live & (piece < PIECES // WIDE * WIDE)
    if ACCESS < SKEWED:
        return batch, channel, start, (live, length)
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        GROUP: tl.constexpr = SKEW // UNIT
        at = (batch * channels + channel) * units
        begin = (at % GROUP).to(length.dtype) * UNIT
        end = tl.where(live, begin + length, 0)
        whole = (end + (SKEW - 1)) // SKEW * SKEW
        if ACCESS == SKEWED_TAIL:
            left = (count // group * channels * units - at // GROUP * GROUP) // GROUP * SKEW
            whole = tl.minimum(whole, left).to(length.dtype)
            others = tl.max((whole < end).to(tl.int32)) != 0
            return batch, channel, start, (live, end, begin, whole, others)
        else:  # noqa: RET505
            return batch, channel, start, (live, end, begin, whole)


@triton.jit
def row_ptrs(ptr: tl.tensor, at: tl.tensor, UNIT: tl.constexpr, SKEW: tl.constexpr) -> tl.tensor:
    """Where position 0 of rows is that begin `at`, in units, in a tensor."""
    if SKEW:
        return ptr + at // (SKEW // UNIT) * SKEW
    else:  # noqa: RET505
        return ptr + at * UNIT


@triton.jit
def out_ptrs(
    ptr: tl.tensor,
    tile: tl.tensor,
    batch: tl.tensor,
    channel: tl.tensor,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
) -> tl.tensor:
    """As `row_ptrs`, in the result, which is contiguous."""
    _high, _wide, _head, _count, _group, channels, units, length = tile
    at = batch * channels + channel
    if SKEW:
        return row_ptrs(ptr, at * units, UNIT, SKEW)
    else:  # noqa: RET505
        return ptr + at * length


@triton.jit
def in_rows(start: tl.tensor, rows: tl.tensor, N: tl.constexpr, ACCESS: tl.constexpr) -> tl.tensor:
    """Of [blocks, N] positions from `start`, which are of the rows."""
    i = tl.arange(0, N)[None, :]
    if ACCESS < SKEWED:
        t = start[:, None] + i
        return rows[0][:, None] & (t >= 0) & (t < rows[1])
    else:  # noqa: RET505  # Triton needs the else
        return (i >= (rows[2] - start)[:, None]) & (i < (rows[1] - start)[:, None])


@triton.jit
def load_block(
    x_ptrs: tl.tensor,
    start: tl.tensor,
    rows: tl.tensor,
    stride_xt: tl.tensor,
    N: tl.constexpr,
    ACCESS: tl.constexpr,
    TYPE: tl.constexpr,
) -> tl.tensor:
    """[blocks, N]: of each row N elements from `start`; 0 outside of the row.

    `stride_xt` is None where neighbours are neighbours in memory: only so does the compiler know it.
    """
    t = start[:, None] + tl.arange(0, N)[None, :]
    inside = in_rows(start, rows, N, ACCESS)
    ptrs = x_ptrs[:, None] + (t if stride_xt is None else t.to(tl.int64) * stride_xt)
    if ACCESS == INTERIOR:
        x = tl.load(ptrs).to(TYPE)
    elif ACCESS == BOUNDS_CHECKED:
        x = tl.load(ptrs, mask=inside, other=0.0).to(TYPE)
    else:
        x = tl.load(ptrs, mask=(t >= 0) & (t < rows[3][:, None]), other=0.0)
        if ACCESS == SKEWED_TAIL:  # noqa: SIM102  # no other access has a fifth
            if rows[4]:
                others = inside & (t >= rows[3][:, None])
                x = tl.where(others, tl.load(ptrs, mask=others, other=0.0), x)
        x = tl.where(inside, x.to(TYPE), 0.0)
    return x


@triton.jit
def store_block(
    out_ptrs: tl.tensor,
    out: tl.tensor,
    start: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    SKEW: tl.constexpr,
    ACCESS: tl.constexpr,
) -> None:
    """Round [blocks, N] and write it to contiguous rows."""
    t = start[:, None] + tl.arange(0, N)[None, :]
    out = out.to(out_ptrs.dtype.element_ty)
    if ACCESS == INTERIOR:
        tl.store(out_ptrs[:, None] + t, out)
    elif ACCESS == BOUNDS_CHECKED:
        inside = rows[0][:, None] & (t < rows[1])  # t is not below 0
        tl.store(out_ptrs[:, None] + t, out, mask=inside)
    else:
        ptrs = out_ptrs[:, None] + t
        begin = ((rows[2] + (SKEW - 1)) // SKEW * SKEW)[:, None]
        end = (rows[1] // SKEW * SKEW)[:, None]
        tl.store(ptrs, out, mask=(t >= begin) & (t < end))
        tl.store(ptrs, out, mask=in_rows(start, rows, N, ACCESS) & ((t < begin) | (t >= end)))
