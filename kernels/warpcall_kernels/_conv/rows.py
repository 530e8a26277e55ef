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

import triton
import triton.language as tl

# ACCESS: how a kernel reads and writes a block of rows.
BOUNDS_CHECKED = tl.constexpr(
    0
)  # rows begin at multiples of UNIT, and masks end accesses at the row
INTERIOR = tl.constexpr(1)  # the block lies away from the ends of its rows, and needs no masks
SKEWED = tl.constexpr(2)  # skewed rows: whole groups, masked at the ends of the row
SKEWED_TAIL = tl.constexpr(3)  # the same, where the last group of a tensor crosses its end


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


class Place(NamedTuple):
    """The rows of some pieces: batches, and channels `channel + further`.

    With ONE_BATCH, `batch` and `channel` are one number for all pieces, and `further` is the same in
    each tile. Most of an address is then computed once a tile, or once a program, and not for each
    piece. Without it `further` is 0.
    """

    batch: tl.tensor
    channel: tl.tensor
    further: tl.tensor


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
    ONE_BATCH: tl.constexpr,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """`Place` and first position of each of TAKEN pieces of a tile, from `first`; their `Bounds`.

    A tile spans WIDE pieces of each of PIECES // WIDE rows. The rows of a head are all its channels
    in all batches. ONE_BATCH says that the rows of a tile divide the channels of a head.
    """
    piece = first + tl.arange(0, TAKEN)
    start = (tile.wide * WIDE + piece % WIDE) * PIECE
    row = tile.high * (PIECES // WIDE)
    if ONE_BATCH:
        channel = tile.head * tile.group + row % tile.group
        place = Place(row // tile.group, channel, (piece // WIDE).to(tl.int64))
        live = piece < PIECES
    else:
        row += piece // WIDE
        place = Place(row // tile.group, tile.head * tile.group + row % tile.group, 0)
        live = row < tile.rows
    if PIECES % WIDE:
        live = live & (piece < PIECES // WIDE * WIDE)
    if ACCESS < SKEWED:
        return place, start, Bounds(live, tile.length, 0, 0, 0)
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        GROUP: tl.constexpr = SKEW // UNIT
        at = (place.batch * tile.channels + place.channel + place.further) * tile.units
        begin = (at % GROUP).to(tile.length.dtype) * UNIT
        end = tl.where(live, begin + tile.length, 0)
        whole = (end + (SKEW - 1)) // SKEW * SKEW
        if ACCESS == SKEWED_TAIL:
            units = tile.rows // tile.group * tile.channels * tile.units  # of the tensor
            left = (units - at // GROUP * GROUP) // GROUP * SKEW
            whole = tl.minimum(whole, left).to(tile.length.dtype)
            has_tail = tl.max((whole < end).to(tl.int32)) != 0
            return place, start, Bounds(live, end, begin, whole, has_tail)
        else:  # noqa: RET505
            return place, start, Bounds(live, end, begin, whole, 0)


@triton.jit
def aligned_tile(
    number: tl.tensor,
    head: tl.tensor,
    rows: tl.tensor,
    group: tl.tensor,
    channels: tl.tensor,
    units: tl.tensor,
    tiles_wide: tl.tensor,
    UNIT: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    ONE_BATCH: tl.constexpr,
    BIG: tl.constexpr,
) -> tl.tensor:
    """A tile of rows that begin at multiples of UNIT, and what `locate` says of all its pieces."""
    tile = tile_of(number, head, rows, group, channels, units, tiles_wide, UNIT, BIG)
    place, start, bounds = locate(
        tile, 0, PIECES, PIECE, PIECES, WIDE, ONE_BATCH, UNIT, 0, BOUNDS_CHECKED
    )
    return tile, place, start, bounds


@triton.jit
def within_rows(start: tl.tensor, bounds: Bounds) -> tl.tensor:
    """`bounds` without the pieces that begin past the end of their row: they then load nothing."""
    return Bounds(bounds.live & (start < bounds.end), bounds.end, 0, 0, 0)


@triton.jit
def row_ptrs(
    ptr: tl.tensor, place: Place, strides: Strides, UNIT: tl.constexpr, SKEW: tl.constexpr
) -> tl.tensor:
    """Pointers to position 0 of the rows of a `Place`."""
    at = place.batch * strides.batch + place.channel * strides.channel
    if SKEW:
        return ptr + (at + place.further * strides.channel) // (SKEW // UNIT) * SKEW
    else:  # noqa: RET505
        return ptr + at * UNIT + place.further * (strides.channel * UNIT)


@triton.jit
def out_ptrs(
    ptr: tl.tensor, tile: Tile, place: Place, UNIT: tl.constexpr, SKEW: tl.constexpr
) -> tl.tensor:
    """Pointers to position 0 of rows of the result, which is contiguous."""
    at = place.batch * tile.channels + place.channel
    if SKEW:
        return ptr + (at + place.further) * tile.units // (SKEW // UNIT) * SKEW
    else:  # noqa: RET505
        return ptr + at * tile.length + place.further * tile.length


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
def prefetch(ptrs: tl.tensor, start: tl.tensor, bounds: Bounds, stride: tl.tensor) -> None:
    """Ask the L2 for the first line of each piece, whose row begins at `ptrs`. Nothing waits for it.

    Rows whose elements are not neighbours are left alone.
    """
    if stride is None:
        live = bounds.live & (start < bounds.end)
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
            "=r,l,r",
            [(ptrs + start).to(tl.int64), live.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


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
