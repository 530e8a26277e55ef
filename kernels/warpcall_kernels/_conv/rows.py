"""How the convolution kernels read and write rows: which rows a program takes, and where they
begin.

Positions are counted along a row. Positions outside of the row hold 0. Rows of odd lengths may
begin anywhere in a group of 16 bytes. If the rows of all operands begin at the same places in their
groups, they are read as *skewed* rows: positions are counted from the multiple of 16 bytes at or
before the first element, so that every access is a whole, aligned group of 16 bytes whatever the
length. The shift does not change a convolution. A group at either end of a row also holds elements
of the neighbouring rows: these are replaced by 0 after a load, and such a group is stored element
by element. Tiles that lie away from the ends of their rows (interior tiles) need no masks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels.op.launch import VECTOR_BYTES, LayoutKey

WASTE = 8  # at most one part in WASTE of a tile may lie past the end of its rows, or be idle
FEW_PIECES = 16  # rows of fewer pieces may make a tile whose width is no power of two
SKEW_BYTES = 32  # shorter rows have fewer whole groups than ends, and are not read as skewed rows
INT32_REACH = (
    2**31 - 2**20
)  # positions that 32 bits count, with a margin for a window past the last

# ACCESS: how a kernel reads and writes a block of rows.
BOUNDS_CHECKED = tl.constexpr(
    0
)  # rows begin at multiples of UNIT, and masks end accesses at the row
INTERIOR = tl.constexpr(1)  # the block lies away from the ends of its rows, and needs no masks
SKEWED = tl.constexpr(2)  # skewed rows: whole groups, masked at the ends of the row
SKEWED_TAIL = tl.constexpr(3)  # the same, where the last group of a tensor crosses its end


class Alignment(NamedTuple):
    """Where the rows of some tensors of one shape begin.

    Args:
        unit: elements, a power of two of at most 16 bytes, that divide the length of a row and the
            offset of each row in each tensor.
        skew: the elements of 16 bytes if the rows are read as skewed rows, else 0.
        tail: whether the rows are skewed and the last of them ends inside a group of 16 bytes that
            crosses the end of the tensor. Such a group cannot be read whole.
    """

    unit: int
    skew: int
    tail: bool

    @staticmethod
    def of(*tensors: LayoutKey) -> Alignment:
        """The alignment of these tensors.

        The rows are skewed if in each tensor every row begins at the same place in its group of 16
        bytes as that row of the result, which is contiguous.
        """
        (batches, channels, length), _, dtype, _ = tensors[0]
        group = VECTOR_BYTES // dtype.itemsize
        unit = _common_divisor(*tensors)
        not_skewed = Alignment(unit, 0, False)
        if unit == group or length * dtype.itemsize < SKEW_BYTES:
            return not_skewed
        tail = batches * channels * length % group != 0
        for _, strides, _, address in tensors:
            gaps = (  # elements between batches, and between rows, that a contiguous tensor lacks
                strides[0] - channels * length if batches > 1 else 0,
                strides[1] - length if channels > 1 else 0,
            )
            congruent = strides[2] == 1 and not address and not any(gap % group for gap in gaps)
            # The kernels compute where the tensor ends as if it were contiguous.
            if not congruent or (any(gaps) and tail):
                return not_skewed
        return Alignment(unit, group, tail)

    def whole(self, dtype: torch.dtype) -> bool:
        """Whether rows are read 16 bytes at a time."""
        return max(self.unit, self.skew) * dtype.itemsize == VECTOR_BYTES


def _common_divisor(*tensors: LayoutKey) -> int:
    """The greatest power of two, up to 16 bytes, that divides the length and the offsets of all
    rows.
    """
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
    """How the rows of a head are cut into tiles.

    Args:
        wide: pieces of each row in a tile.
        tiles_wide: tiles along a row.
        tiles: tiles in all.
        big: whether numbers of rows or positions need 64 bits.
    """

    wide: int
    tiles_wide: int
    tiles: int
    big: bool

    @staticmethod
    def of(rows: int, positions: int, piece: int, pieces: int, whole: bool) -> Tiling:
        """Tiles of `pieces` pieces, as wide as possible without much waste at the end of a row.

        If a row has few pieces that are read 16 bytes at a time, a tile is as wide as the row, so
        that neighbouring lanes read neighbouring groups.
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


def fitting_blocks(length: int, n: int, most: int) -> int:
    """How many blocks of `n` positions a piece of a row has: a power of two, as many as `most` if
    the end of a row wastes little.
    """
    blocks = most
    while blocks > 1 and -(-length // (blocks * n)) * blocks * n * WASTE > length * (WASTE + 1):
        blocks //= 2
    return blocks


def last_stride(x: LayoutKey) -> int | None:
    """The stride along the last dim; None if it is 1, or if rows have one position, with any
    stride.
    """
    return None if x[1][-1] == 1 or x[0][-1] == 1 else x[1][-1]


class Strides(NamedTuple):
    """The strides of an operand, in UNITs; `position`, in elements, is None if it is 1."""

    batch: tl.tensor
    channel: tl.tensor
    position: tl.tensor


class Tile(NamedTuple):
    """One tile of the rows of a head."""

    high: tl.tensor  # its number across the rows
    wide: tl.tensor  # its number along the rows
    head: tl.tensor
    rows: tl.tensor  # rows of a head: its channels in all batches
    group: tl.tensor  # channels of a head
    channels: tl.tensor  # channels of a batch
    units: tl.tensor  # length of a row in UNITs
    length: tl.tensor  # length of a row in elements


class Bounds(NamedTuple):
    """What it takes to read and write pieces of rows. An ACCESS that does not need a field has 0.

    (Triton 3.6 cannot return None in a tuple.)

    `end` is one number for all rows unless they are skewed, else one for each piece, as are the
    others.
    """

    live: tl.tensor  # whether the row of each piece exists
    end: tl.tensor  # the position behind the last of the row
    begin: tl.tensor  # SKEWED: the first position of the row, counted from its first group
    whole_end: tl.tensor  # SKEWED: the position behind the groups that can be read whole
    has_tail: tl.tensor  # SKEWED_TAIL: whether elements of any row lie behind those groups


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
    """The tile with number `tile` among those of a head."""
    high, wide = tile // tiles_wide, tile % tiles_wide
    length = units * UNIT  # the compiler knows that UNIT divides it, and so how wide it may load
    if BIG:
        high, wide, length = high.to(tl.int64), wide.to(tl.int64), units.to(tl.int64) * UNIT
    return Tile(high, wide, head, rows, group, channels, units, length)


@triton.jit
def is_interior(
    tile: Tile,
    before: tl.tensor,
    after: tl.tensor,
    SKEW: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
) -> tl.tensor:
    """Whether a tile, with `before` and `after` more positions on its sides, lies within its rows."""
    first = tile.wide * (WIDE * PIECE)
    inner = (first - before >= SKEW) & (first + (WIDE * PIECE) + after <= tile.length)
    return inner & ((tile.high + 1) * (PIECES // WIDE) <= tile.rows) & (PIECES % WIDE == 0)


@triton.jit
def locate(
    tile: Tile,
    first: tl.tensor,
    TAKEN: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """Batch, channel and first position of each of TAKEN pieces of a tile, from `first`; their
    `Bounds`.

    A tile spans WIDE pieces of each of PIECES // WIDE rows. The rows of a head are all its channels
    in all batches.
    """
    piece = first + tl.arange(0, TAKEN)
    row = tile.high * (PIECES // WIDE) + piece // WIDE
    start = (tile.wide * WIDE + piece % WIDE) * PIECE
    batch, channel = row // tile.group, tile.head * tile.group + row % tile.group
    live = row < tile.rows
    if PIECES % WIDE:
        live = live & (piece < PIECES // WIDE * WIDE)
    if ACCESS < SKEWED:
        return batch, channel, start, Bounds(live, tile.length, 0, 0, 0)
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        GROUP: tl.constexpr = SKEW // UNIT
        at = (batch * tile.channels + channel) * tile.units
        begin = (at % GROUP).to(tile.length.dtype) * UNIT
        end = tl.where(live, begin + tile.length, 0)
        whole = (end + (SKEW - 1)) // SKEW * SKEW
        if ACCESS == SKEWED_TAIL:
            units = tile.rows // tile.group * tile.channels * tile.units  # of the tensor
            left = (units - at // GROUP * GROUP) // GROUP * SKEW
            whole = tl.minimum(whole, left).to(tile.length.dtype)
            has_tail = tl.max((whole < end).to(tl.int32)) != 0
            return batch, channel, start, Bounds(live, end, begin, whole, has_tail)
        else:  # noqa: RET505
            return batch, channel, start, Bounds(live, end, begin, whole, 0)


@triton.jit
def row_ptrs(ptr: tl.tensor, at: tl.tensor, UNIT: tl.constexpr, SKEW: tl.constexpr) -> tl.tensor:
    """Pointers to position 0 of the rows that begin `at` UNITs behind `ptr`."""
    if SKEW:
        return ptr + at // (SKEW // UNIT) * SKEW
    else:  # noqa: RET505
        return ptr + at * UNIT


@triton.jit
def out_ptrs(
    ptr: tl.tensor,
    tile: Tile,
    batch: tl.tensor,
    channel: tl.tensor,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
) -> tl.tensor:
    """Pointers to position 0 of rows of the result, which is contiguous."""
    at = batch * tile.channels + channel
    if SKEW:
        return row_ptrs(ptr, at * tile.units, UNIT, SKEW)
    else:  # noqa: RET505
        return ptr + at * tile.length


@triton.jit
def in_rows(start: tl.tensor, bounds: Bounds, N: tl.constexpr, ACCESS: tl.constexpr) -> tl.tensor:
    """[blocks, N]: whether each of N positions from `start` on lies within its row."""
    i = tl.arange(0, N)[None, :]
    if ACCESS < SKEWED:
        t = start[:, None] + i
        return bounds.live[:, None] & (t >= 0) & (t < bounds.end)
    else:  # noqa: RET505  # Triton needs the else
        return (i >= (bounds.begin - start)[:, None]) & (i < (bounds.end - start)[:, None])


@triton.jit
def load_block(
    x_ptrs: tl.tensor,
    start: tl.tensor,
    bounds: Bounds,
    stride_xt: tl.tensor,
    N: tl.constexpr,
    ACCESS: tl.constexpr,
    TYPE: tl.constexpr,
) -> tl.tensor:
    """[blocks, N]: N elements of each row from `start` on; 0 outside of the row.

    `stride_xt` is None if it is 1. Only then does the compiler know that it may load several at
    once.
    """
    t = start[:, None] + tl.arange(0, N)[None, :]
    inside = in_rows(start, bounds, N, ACCESS)
    ptrs = x_ptrs[:, None] + (t if stride_xt is None else t.to(tl.int64) * stride_xt)
    if ACCESS == INTERIOR:
        x = tl.load(ptrs).to(TYPE)
    elif ACCESS == BOUNDS_CHECKED:
        x = tl.load(ptrs, mask=inside, other=0.0).to(TYPE)
    else:
        x = tl.load(ptrs, mask=(t >= 0) & (t < bounds.whole_end[:, None]), other=0.0)
        if ACCESS == SKEWED_TAIL:  # noqa: SIM102  # otherwise has_tail is None
            if bounds.has_tail:
                tail = inside & (t >= bounds.whole_end[:, None])
                x = tl.where(tail, tl.load(ptrs, mask=tail, other=0.0), x)
        x = tl.where(inside, x.to(TYPE), 0.0)
    return x


@triton.jit
def load_near(
    ptrs: tl.tensor,
    start: tl.tensor,
    bounds: Bounds,
    stride: tl.tensor,
    OFFSET: tl.constexpr,
    N: tl.constexpr,
    TYPE: tl.constexpr,
) -> tl.tensor:
    """[blocks, N]: N elements of each row from `start + OFFSET` on; 0 outside of the row.

    `ptrs` point to the positions `start`, so that OFFSET is a part of the instruction. ACCESS is
    BOUNDS_CHECKED.
    """
    i = OFFSET + tl.arange(0, N)[None, :]
    t = start[:, None] + i
    inside = bounds.live[:, None] & (t >= 0) & (t < bounds.end)
    at = i if stride is None else i.to(tl.int64) * stride
    return tl.load(ptrs[:, None] + at, mask=inside, other=0.0).to(TYPE)


@triton.jit
def store_block(
    out_ptrs: tl.tensor,
    out: tl.tensor,
    start: tl.tensor,
    bounds: Bounds,
    N: tl.constexpr,
    SKEW: tl.constexpr,
    ACCESS: tl.constexpr,
) -> None:
    """Round [blocks, N] to the type of the result, and store it in rows of the result."""
    t = start[:, None] + tl.arange(0, N)[None, :]
    out = out.to(out_ptrs.dtype.element_ty)
    if ACCESS == INTERIOR:
        tl.store(out_ptrs[:, None] + t, out)
    elif ACCESS == BOUNDS_CHECKED:
        inside = bounds.live[:, None] & (t < bounds.end)  # t is never negative
        tl.store(out_ptrs[:, None] + t, out, mask=inside)
    else:
        ptrs = out_ptrs[:, None] + t
        begin = ((bounds.begin + (SKEW - 1)) // SKEW * SKEW)[:, None]
        end = (bounds.end // SKEW * SKEW)[:, None]
        tl.store(ptrs, out, mask=(t >= begin) & (t < end))
        ends = in_rows(start, bounds, N, ACCESS) & ((t < begin) | (t >= end))
        tl.store(ptrs, out, mask=ends)
