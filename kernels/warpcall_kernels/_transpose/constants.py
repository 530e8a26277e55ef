"""The constants that choose variants and tiles of permute and transpose-add.

They were measured on an H200 (compute capability 9.0, 132 multiprocessors). Every other GPU uses
them, too: all tiles fit into the registers and the shared memory of compute capabilities 8.0 to
12.0, so a GPU that wants other values loses speed, never correctness. On a GPU with fewer
multiprocessors the variants for few tiles are taken for somewhat larger tensors than is best there.

`python -m bench.kernels tune permute transpose-add` measures them again. Times below are from an
H200; docs/benchmarks/h200-constants.md has those of the values that lost.
"""

from __future__ import annotations

from typing import NamedTuple


class TileSize(NamedTuple):
    """A tile of a permutation: elements along i and along j, and the warps of its program."""

    i: int
    j: int
    warps: int


class Square(NamedTuple):
    """A square tile of transpose-add: elements along a side, and the warps of its program."""

    side: int
    warps: int


class Threads(NamedTuple):
    """How a program of the unaligned variant is shaped.

    Args:
        down: threads down the rows of x.
        across: threads along the rows of x.
        registers: the most registers of a thread, or None for no limit.
    """

    down: int
    across: int
    registers: int | None


# Tiles of a permutation, by the bytes of a word, where rows of the output begin at multiples of 16
# bytes. [8192, 8192] bf16: 69 us, 4 % less than (64, 64, 8).
TILES = {
    1: TileSize(128, 128, 8),
    2: TileSize(128, 128, 8),
    4: TileSize(64, 64, 8),
    8: TileSize(32, 32, 4),
}
# The same where rows of the output begin at multiples of 2 or more words, but not of 16 bytes.
# [24300, 11520] bf16: 297 us, 13 % less than (128, 128, 8).
TILES_FEW_WORDS = {
    1: TileSize(128, 128, 8),
    2: TileSize(64, 256, 8),
    4: TileSize(64, 64, 8),
    8: TileSize(32, 32, 4),
}
# The same where rows of the output begin at any word. [31, 37, 41, 43, 7] fp16: 32 us, 14 % less
# than (64, 256, 8).
TILES_ONE_WORD = {
    1: TileSize(32, 256, 8),
    2: TileSize(64, 128, 8),
    4: TileSize(32, 128, 8),
    8: TileSize(32, 32, 4),
}
# The same where there would be fewer than MIN_TILES tiles. [512, 512] bf16: 2.4 us, 31 % less than
# (128, 128, 8).
TILES_SMALL = {
    1: TileSize(64, 64, 4),
    2: TileSize(32, 64, 4),
    4: TileSize(32, 32, 4),
    8: TileSize(32, 32, 4),
}
MIN_TILES = 132  # one for each multiprocessor of an H200

# Bytes of the output that a tile should write in one run. Where j is shorter, a further dim joins
# it.
RUN_BYTES = 256
# Bytes that a program of the rows variant gathers: 4 accesses of 16 bytes in flight for each
# thread.
ROWS_BYTES = 16384
ROWS_WORDS = 4096  # and the most words, because each row costs the computation of its offset
ROWS_WARPS = 8
# Rows with fewer words, and with any stride between them, are gathered word by word.
NARROW_WORDS = 8

# Tiles of transpose-add, by the bytes of an output element, where rows of the output begin at
# multiples of 2 or more elements. [24300, 11520] bf16: 400 us, at least 3 % less than with side 64.
SQUARES = {1: Square(128, 8), 2: Square(128, 8), 4: Square(64, 8), 8: Square(32, 8)}
# The same where they begin at any element. [4097, 8191] bf16: 69 us, at least 7 % less than others.
SQUARES_UNALIGNED = {1: Square(64, 8), 2: Square(32, 4), 4: Square(32, 4), 8: Square(32, 8)}
# The same where there would be fewer than MIN_TILES tiles. [512, 512] bf16: 2.1 us, 34 % less than
# side 128.
SQUARES_SMALL = {1: Square(64, 8), 2: Square(32, 4), 4: Square(32, 4), 8: Square(32, 8)}

# Programs of the unaligned variant, by the bytes of an element. [4097, 8191] bf16: 83 % of the
# speed of a copy, where the tiles variant reaches 73 %; u8 80 and 71 %, fp32 89 and 82 %.
THREADS = {1: Threads(8, 16, None), 2: Threads(16, 16, 64), 4: Threads(16, 32, None)}
# With fewer tiles, or with fewer elements on a side, the tiles variant is as fast or faster: for u8
# [2049, 2051], which has 257 tiles, it takes 0.95 of the time.
UNALIGNED_MIN_TILES = 396  # 3 for each multiprocessor of an H200
UNALIGNED_MIN_SIDE = 256
