"""How the FMA variant of conv-backward is cut into programs.

A program takes one tile after another, and all programs have about as many. If not all of them run
at once, the last ones begin when the first ones end, and the call takes up to twice as long. How
many run at once depends on the registers of a thread. So these are limited, and there are as many
programs as the multiprocessors then run. [32, 512, 512] fp32, 8 taps: 28.6 us, 19 % less than with
1056 programs, of which 924 ran at once.
"""

from __future__ import annotations

from typing import NamedTuple

from warpcall_kernels._conv.call import Call
from warpcall_kernels._conv.tiling import Tiling
from warpcall_kernels.op.launch import VECTOR_BYTES, multiprocessors

LANE_REGISTERS = 2048  # of a multiprocessor, for each thread of a warp: 65,536 in all


class Work(NamedTuple):
    """What a program takes.

    Args:
        taps: the most taps that this is for.
        registers: the most registers of a thread.
        pieces: pieces of a tile.
        warps: of a program.
        groups: groups of 16 bytes in a piece.
        times: how many times as many programs there are as run at once.
        limited: whether the compiler may not use more registers.
    """

    taps: int
    registers: int
    pieces: int = 256
    warps: int = 4
    groups: int = 1
    times: int = 1
    limited: bool = True

    @property
    def programs(self) -> int:
        """Most programs in all."""
        at_once = LANE_REGISTERS // (self.registers * self.warps)
        return self.times * at_once * multiprocessors()


# Rows that are read whole, by the bytes of an element. [8, 1024, 2048] fp32, 10 taps: 58.9 us, 20 %
# less than without a limit and with 1056 programs. [4, 1024, 8192], 31 taps: 152 us, 22 % less than
# with one group in a piece.
WHOLE: dict[int, tuple[Work, ...]] = {
    2: (Work(13, 96, 128, 2), Work(16, 128, 128, 2)),
    4: (
        Work(9, 80, 128, 2),
        Work(13, 96, 128, 2),
        Work(16, 128, 128, 2),
        Work(32, 128, 128, 4, groups=2, limited=False),
    ),
    8: (Work(4, 96, 128, 2), Work(8, 128, 128, 2), Work(16, 255, times=2)),
}
# Up to 7 taps of fp16 and bf16, or 6 of filters that reach to both sides, where there is a tile of this
# size for each program. A limit of 128 registers, which they take without one, costs 3 %. [8, 1024,
# 2048] bf16, 7 taps: 29.3 us, 16 % less than with smaller tiles.
MANY_TILES = Work(7, 128, 256, 2, limited=False)
MANY_TILES_CENTRED = Work(6, 128, 256, 2, limited=False)

# Skewed rows. [8, 1024, 2047] fp32, 7 taps: 71.7 us, 26 % less than without a limit and with 1056
# programs. [16, 256, 4099] bf16, 9 taps: 57.6 us, 27 % less than with 168 registers.
SKEWED: dict[int, tuple[Work, ...]] = {
    2: (Work(9, 128, 256, 2), Work(12, 168, 256, 2)),
    4: (Work(9, 80), Work(12, 96), Work(32, 128, times=2, limited=False)),
    8: (Work(4, 80), Work(8, 128, times=2), Work(16, 168)),
}
# Skewed rows of fp16 and bf16 with SKEWED_TAIL access, which takes more registers. [15, 255, 4099],
# 10 taps: 75.8 us, 13 % less than with 240 registers and 1056 programs.
SKEWED_TAIL = (Work(7, 128, 256, 2), Work(11, 168, 256, 2), Work(12, 240, 256, 2))

# Rows that are read by less than 16 bytes at a time. Rows of [8, 1024, 2048] fp32 without their first
# element, 3 taps, on an H100: 99.0 us, 20 % less than without a limit and with 1056 programs.
UNALIGNED: dict[int, tuple[Work, ...]] = {
    2: (Work(32, 128, times=2, limited=False),),
    4: (
        Work(4, 80, 128, 2),
        Work(8, 96, 128, 2),
        Work(16, 128, 128, 2),
        Work(32, 128, times=2, limited=False),
    ),
    8: (Work(16, 128, times=2, limited=False),),
}


def work_of(call: Call, band: int) -> Work:
    """What a program takes, for `band` taps of each filter."""
    works: tuple[Work, ...]
    itemsize = call.dtype.itemsize
    many = MANY_TILES_CENTRED if call.centred else MANY_TILES
    if not call.whole:
        works = UNALIGNED[itemsize]
    elif call.align.skew:
        works = SKEWED_TAIL if itemsize == 2 and call.align.tail else SKEWED[itemsize]
    elif itemsize == 2 and band <= many.taps and _tiles(call, many) > many.programs:
        return many
    else:
        works = WHOLE[itemsize]
    return next(work for work in works if band <= work.taps)


def _tiles(call: Call, work: Work) -> int:
    """How many tiles the aligned rows of all heads have."""
    own = work.groups * VECTOR_BYTES // call.dtype.itemsize
    return call.heads * Tiling.of(call.rows, call.length, own, work.pieces, call.whole).tiles


def programs_of(most: int, heads: int, tiles: int) -> int:
    """How many programs share the `tiles` tiles of each head, if there may be `most` in all.

    Where some would have two tiles and others one, all have two: the call takes as long as the
    slowest of them. [16, 512, 264] bf16, 3 taps: 8.1 us, 17 % less than with 1056 programs.
    """
    parts = max(1, most // heads)
    return heads * (-(-tiles // 2) if parts < tiles < 2 * parts else min(parts, tiles))
