"""Which rows a program of masked softmax or its backward takes, and where they begin.

The dims before the last are rows. They are merged as far as the strides of all operands allow. One
merged dim is cut into tiles of rows, and at most two others remain; a program works out its place
in these once, in scalars. An operand that is broadcast along a dim has a stride of zero there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import triton

from warpcall_kernels._softmax import constants
from warpcall_kernels._transpose.strides import merge
from warpcall_kernels.op.launch import VECTOR_BYTES

OUTER_DIMS = 2  # merged dims that a program is placed in besides the one cut into tiles
MAX_GRID_Y = 65535  # CUDA's limit on the second and third axis of a grid


class Variant(StrEnum):
    """The kernels of the family; the table in `_softmax/__init__.py` says when each is chosen."""

    TILE = "tile"
    SHORT = "short"
    LONG = "long"
    SPLIT = "split"


class Strides(NamedTuple):
    """Elements from one row of an operand to the next, along the three dims of `Rows`."""

    outer: int
    inner: int
    row: int


@dataclass(frozen=True, slots=True)
class Rows:
    """How a launch walks the rows of its operands.

    Args:
        count: rows along the dim that is cut into tiles.
        inner: size of the inner of the two other dims.
        outer: product of the sizes of both.
        strides: of each operand.
    """

    count: int
    inner: int
    outer: int
    strides: tuple[Strides, ...]

    @property
    def total(self) -> int:
        """All rows of the call."""
        return self.count * self.outer

    def grid(self, rows: int) -> tuple[int, int, int]:
        """Tiles of `rows` rows, by the indices in the other dims, split where CUDA needs it."""
        z = triton.cdiv(self.outer, MAX_GRID_Y)  # first, so that fewer than z programs are idle
        return triton.cdiv(self.count, rows), triton.cdiv(self.outer, z), z


class Tile(NamedTuple):
    """What a program holds: the rows and positions of its block, and its warps."""

    rows: int
    block: int
    warps: int


class RowLayout(NamedTuple):
    """How the rows of a call lie in memory; lengths and steps are in positions of a row.

    Mask and lengths are in `rows` only.
    """

    rows: Rows
    columns: int
    itemsize: int
    align: int  # what divides where rows begin, and how long they are
    operands: tuple[Strides, ...]  # of what is read
    out: Strides
    column_strides: tuple[int, ...]  # of what is read; the result is contiguous
    addresses: tuple[int, ...]  # of what is read, modulo 16 bytes; the result begins at 16 bytes
    skewed: bool = False  # whether the ends of rows are read apart from their groups of 16 bytes

    @property
    def group(self) -> int:
        """Positions of 16 bytes, the widest access."""
        return VECTOR_BYTES // self.itemsize

    @property
    def access(self) -> int:
        """Positions that are read by one access, without the ends of skewed rows."""
        return self.group if self.skewed else self.align

    @property
    def whole(self) -> int:
        """Positions of a row that lie in whole accesses."""
        return self.columns // self.access * self.access

    @property
    def narrow(self) -> bool:
        """Whether rows begin at other places than multiples of 8 bytes.

        Whole rows could then be read by narrow accesses only.
        """
        return self.align * self.itemsize <= constants.NARROW_BYTES

    def skew(self, least_bytes: int, long_bytes: int) -> RowLayout:
        """The same rows, skewed if that is possible and worth it.

        It is for rows of `least_bytes` that are narrow, and for rows of more than `long_bytes` that are
        not, for only rows with groups of 16 bytes can be shared by programs. The rows of all operands
        must have their whole groups at the same positions.
        """
        nbytes = self.columns * self.itemsize
        long = nbytes > long_bytes and self.align < self.group
        skewed = (
            ((self.narrow and nbytes >= max(least_bytes, VECTOR_BYTES)) or long)
            and all(stride == 1 for stride in self.column_strides)
            and not any(self.addresses)
            and congruent(self.operands, self.out, self.group)
        )
        return self._replace(skewed=skewed)

    def arguments(self, tile: Tile, *other_strides: int) -> dict[str, Any]:
        """The arguments that all kernels have, for programs with such a tile.

        Args:
            other_strides: elements between positions of mask and bias.
        """
        rows = self.rows
        return {
            "columns": self.columns,
            "outer": rows.outer,
            "inner": rows.inner,
            "count": rows.count,
            "out_strides": self.out,
            "WIDE": is_wide(rows, tile, self.columns, (*self.column_strides, *other_strides)),
            "num_warps": tile.warps,
        }


def held_bytes(columns: int, itemsize: int, held: int = 1) -> int:
    """Bytes of a row, of `held` operands, as a block of a power of two of positions."""
    block: int = triton.next_power_of_2(columns)
    return block * itemsize * held


def held_tile(columns: int, itemsize: int, rows: Rows, held: int = 1) -> Tile:
    """The tile that holds whole rows: fewer of them if there would be few programs."""
    nbytes = held_bytes(columns, itemsize, held)
    per_warp = constants.TILE_BYTES
    spread = max(1, rows.total // constants.TILE_PROGRAMS)
    rows_of_tile = min(per_warp // nbytes, 1 << (spread.bit_length() - 1))
    taken = min(max(1, rows_of_tile), triton.next_power_of_2(rows.count))
    warps = max(1, min(constants.MAX_WARPS, nbytes // per_warp), nbytes // (2 * per_warp))
    return Tile(taken, triton.next_power_of_2(columns), warps)


def plan_rows(
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    shared: int | None,
    row_bytes: int,
    beside: Sequence[int] = (),
    least_shared: int | None = None,
) -> Rows | None:
    """Merge dims and choose the one to cut into tiles.

    Args:
        sizes: sizes of the row dims, none of them zero.
        strides: strides of each operand along those dims.
        shared: the index of the operand whose rows are worth loading once for several others, or
            None.
        row_bytes: of a row of x.
        beside: operands whose rows must lie side by side in the dim that is cut into tiles.
        least_shared: rows that must have the same row of the shared operand; None for those of a mask.

    Returns:
        The plan, or None when more than three dims remain, or no dim has its rows side by side.
    """
    merged = merge(sizes, *strides)
    if len(merged) > OUTER_DIMS + 1:
        return None
    least = constants.MIN_SHARED if least_shared is None else least_shared
    tiled: int | None = _tile_dim(merged, shared, row_bytes, least)
    if beside:
        tiled = _dim_beside(merged, beside)
    if tiled is None:
        return None
    nothing = (1, (0,) * len(strides))
    last = merged.pop(tiled) if merged else nothing
    outer, inner = [nothing] * (OUTER_DIMS - len(merged)) + merged
    return Rows(
        count=last[0],
        inner=inner[0],
        outer=outer[0] * inner[0],
        strides=tuple(map(Strides, outer[1], inner[1], last[1])),
    )


def _dim_beside(merged: Sequence[tuple[int, tuple[int, ...]]], beside: Sequence[int]) -> int | None:
    """The dim in which rows of all these operands lie side by side."""
    for i, (size, strides) in enumerate(merged):
        if size >= constants.LEAST_BESIDE and all(strides[operand] == 1 for operand in beside):
            return i
    return None


def beside_tile(columns: int, itemsize: int, rows: Rows, *, all_so: bool = True) -> Tile | None:
    """The tile of rows that lie side by side; None if they are copied first, which is faster.

    Args:
        columns: positions of a row.
        rows: of the call.
        all_so: whether the rows of all operands lie so.
    """
    row_bytes = held_bytes(columns, itemsize)
    wanted = max(constants.BESIDE_BYTES // itemsize * row_bytes, constants.LEAST_BESIDE_TILE)
    taken = min(wanted // row_bytes, triton.next_power_of_2(rows.count))
    nbytes = taken * row_bytes
    most = constants.BESIDE_TILE_BYTES if all_so else constants.BESIDE_OTHERS_BYTES[itemsize]
    if rows.total < constants.BESIDE_PROGRAMS * taken:
        most = min(most, constants.BESIDE_FEW_BYTES)
    filled = min(taken, rows.count) * columns * itemsize
    if nbytes > most or filled < constants.MIN_FILLED_BYTES:
        return None
    block = triton.next_power_of_2(columns)
    return Tile(taken, block, max(1, nbytes // constants.TILE_BYTES))


def _tile_dim(
    merged: Sequence[tuple[int, tuple[int, ...]]],
    shared: int | None,
    row_bytes: int,
    least_shared: int,
) -> int:
    """The innermost dim along which the shared operand repeats, or else the longest.

    Where short rows repeat the mask of few others only, a tile along that dim would be almost empty.
    The innermost dim that fills a tile is taken then.
    """
    filling = [
        i for i, (size, _) in enumerate(merged) if size * row_bytes >= constants.MIN_FILLED_BYTES
    ]
    repeats = [
        i
        for i, (size, strides) in enumerate(merged)
        if shared is not None and strides[shared] == 0 and size >= least_shared
    ]
    worthwhile = [i for i in repeats if i in filling] or (filling if repeats else [])
    longest = max(range(len(merged)), key=lambda i: (merged[i][0], i), default=0)
    return worthwhile[-1] if worthwhile else longest


def row_index_strides(rank: int) -> tuple[int, ...]:
    """Strides of the "operand" that holds each row's index q along the last row dim."""
    return (0,) * (rank - 1) + (1,)


def is_wide(rows: Rows, tile: Tile, columns: int, column_strides: Sequence[int]) -> bool:
    """Whether an offset from a program's first row may not fit 32 bits.

    Positions past the end of a row count, too: a program numbers those of whole blocks before it
    leaves them out, and so they count with a step of at least 1.
    """
    steps = max(strides.row for strides in rows.strides)
    positions = -(-columns // tile.block) * tile.block
    return tile.rows * steps + positions * max(1, *column_strides) >= 2**31


def congruent(operands: Sequence[Strides], out: Strides, group: int) -> bool:
    """Whether rows of all operands begin at the same places within groups of so many positions."""
    return all((a - b) % group == 0 for s in operands for a, b in zip(s, out, strict=True))
