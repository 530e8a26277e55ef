"""How the rows of a call are aligned and cut into tiles; `_conv/rows.py` reads and writes them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from warpcall_kernels.op.launch import VECTOR_BYTES, LayoutKey

WASTE = 8  # at most one part in WASTE of a tile may lie past the end of its rows, or be idle
FEW_PIECES = 16  # rows of fewer pieces may make a tile whose width is no power of two
DOT_PIECES = 16  # of a tile, the fewest that a dot takes
FEW_BLOCKS = 64  # of a head: with fewer, tiles have as few pieces
SKEW_BYTES = 32  # shorter rows have fewer whole groups than ends, and are not read as skewed rows
INT32_REACH = (
    2**31 - 2**20
)  # positions that 32 bits count, with a margin for a window past the last


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

    def one_batch(self, pieces: int, group: int) -> bool:
        """Whether the rows of a tile of `pieces` pieces divide the `group` channels of a head."""
        return group % (pieces // self.wide) == 0


def dot_pieces(rows: int, length: int, n: int, blocks: int, programs: int, usual: int) -> int:
    """How many pieces a tile of a kernel with dots has: `usual`, or the fewest that a dot takes where
    a head has few pieces.

    [1, 512, 2439] fp16 and 512 heads, 63 taps: conv 21.5 us, 56.7 with 64 pieces; conv-backward of
    [3, 104, 283] bf16 and 2 heads, 38 taps: 11.3 us, 13.2 with 32.

    Args:
        rows: of a head.
        n, blocks: a piece is so many blocks of n positions.
        programs: of a head, at most.
    """
    pieces = rows * -(-length // (n * blocks))
    few = pieces * blocks < FEW_BLOCKS or pieces < DOT_PIECES * programs
    return DOT_PIECES if few else usual


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
