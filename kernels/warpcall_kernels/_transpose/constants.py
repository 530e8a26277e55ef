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


class Staged(NamedTuple):
    """A tile of the staged variant.

    Args:
        elements: the most elements.
        warps: of a program.
        per: elements that a thread stores at once, 1 or 2.
        units: times as many elements that a thread loads at once.
    """

    elements: int
    warps: int
    per: int = 1
    units: int = 1


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
# The same where there would be fewer than MIN_TILES tiles. [512, 512] bf16 on an H100: 2.27 us, 6 %
# less than (32, 64, 4).
TILES_SMALL = {
    1: TileSize(64, 64, 4),
    2: TileSize(32, 32, 4),
    4: TileSize(32, 16, 2),
    8: TileSize(32, 32, 4),
}
MIN_TILES = 132  # one for each multiprocessor of an H200

# Bytes of the output that a tile should write in one run. Where j is shorter, a further dim joins
# it.
RUN_BYTES = 256
# Tiles with fewer bytes, because the dims on both sides are small, take longer to start than to move: [1048576, 4, 4]
# fp32 takes 724 us by tiles, and 36 word by word.
FLAT_TILE_BYTES = 4096
# Bytes that a program of the flat and of the chunks variant moves, and its warps.
FLAT_BYTES, FLAT_WARPS = 4096, 4
# Larger tiles are not taken either if their lanes are so many times their words, there are so many of them, and a
# program of the flat variant reads at most so many bytes for each that it moves; if they have so few words, or words
# of so few bytes that are stored one by one. [32, 3, 8, 2, 169, 8, 2, 8] fp32 (0, 2, 4, 6, 3, 5, 7, 1): 66 us, where
# tiles take 171; [60, 3, 8, 2, 10, 8, 4, 8] bf16: 16.6 and 26.8. Of 60 other permutations with fuller or fewer tiles,
# 46 took 1.04 to 7.6 times as long word by word.
FLAT_GAIN, FLAT_TILE_WORDS, FLAT_NARROW, FLAT_READ = 1.3, 700, 2, 1.2
# Dims but for the inner one of bytes from which on rows that fill their lanes are not taken byte by byte. [4, 12, 5,
# 104, 3, 467] uint8 (3, 0, 4, 1, 2, 5): 32.3 us by rows, 37.5 byte by byte; other rows take 0.5 to 0.99 of the time.
FLAT_BYTE_DIMS = 4
FLAT_MIN_TILES = 792  # 6 for each multiprocessor of an H200
CHUNK_BYTES, CHUNK_WARPS = 8192, 4
# Bytes that a program of the rows variant gathers, and its warps: one access of 16 bytes for each
# thread. BSHD to BHSD of [32, 1024, 16, 64] bf16: 33.9 us, 4 % less than four accesses by 8 warps.
ROWS_BYTES, ROWS_WARPS = 2048, 4
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
# The same for complex numbers. [3001, 2003] complex64 and fp32: 35.3 us, 3 % less than (32, 8).
SQUARES_COMPLEX = {8: Square(64, 8), 16: Square(32, 4)}

# Programs of the unaligned variant, by the bytes of an element. [4097, 8191] bf16: 83 % of the
# speed of a copy, where the tiles variant reaches 73 %; u8 80 and 71 %, fp32 89 and 82 %.
THREADS = {1: Threads(8, 16, None), 2: Threads(16, 16, 64), 4: Threads(16, 32, None)}
# With fewer tiles, or with fewer elements on a side, the tiles variant is as fast or faster: for u8
# [2049, 2051], which has 257 tiles, it takes 0.95 of the time.
UNALIGNED_MIN_TILES = 396  # 3 for each multiprocessor of an H200
UNALIGNED_MIN_SIDE = 256

# Threads of a program of the channels variant, each of which has 16 bytes of each plane.
# [256, 224, 224, 3] u8: 22.3 us, where tiles take 39.7.
CHANNELS_THREADS = 64
# With more channels, and with an even number of aligned channels of 2 bytes, tiles are as fast or
# faster: [2097152, 4] fp16 takes 10.8 us by tiles, and 11.8 by channels.
CHANNELS_MOST = 6
# No smaller tensors and planes have been timed.
CHANNELS_MIN_BYTES = 8 << 20
CHANNELS_MIN_PIXELS = 8192

# Tiles of the staged variant, by the bytes of a word. [31, 37, 41, 43, 7] fp16: 19.4 us, 13 % less
# than with single elements.
STAGED_TILES = {2: Staged(8192, 4, 2, 2)}
# The same for rows that are scattered. [127, 131, 137, 5] fp32: 27.5 us, 6 % less than with bank
# conflicts.
STAGED_ROWS = {4: Staged(4096, 8, 1, 1)}
STAGED_MIN_TILES = 396  # 3 for each multiprocessor of an H200
STAGED_RUN_BYTES = 128  # the shortest runs of a tile in x and in the output
# The lanes that tiles need, at least, as a multiple of those that the staged variant needs: a lane
# of it takes more instructions.
STAGED_GAIN = 1.4
# Rows are scattered if they are shorter than this, and neighbours in x lie so far apart in the
# output that no program of the rows variant reads both.
STAGED_ROW_BYTES = 32
STAGED_FAR_BYTES = 1 << 16
