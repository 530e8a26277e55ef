"""How isin is launched: all compared with all, or a set that is built and asked; chosen from layouts."""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._isin.hash_set import HEADER
from warpcall_kernels._isin.kernels import (
    build_kernel,
    build_small_kernel,
    compare_kernel,
    probe_kernel,
    range_kernel,
)
from warpcall_kernels.op.declaration import TensorLike, dtype_name
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import Launch, Layout, LayoutKey

# Crossovers. A comparison costs an H200 one instruction, 1.5e13 of them a second; building the
# smallest set costs some 5 us.
COMPARE_N = 32  # test elements that are compared with whatever the number of elements
COMPARE_PAIRS = 1 << 26  # comparisons that cost less than a set
COMPARE_MAX_N = 1 << 10  # beyond it the loop of a block is longer than building a set
SMALL_N = 1 << 12  # test elements that one program inserts
SMALL_SLOTS = 16  # slots a test element then: nearly every key is alone; 2000 int32 fit into an L1
LARGE_SLOTS = 4  # slots a test element otherwise: a load of 1/8 to 1/4
MIN_SLOTS = 32
# Test elements of 32-bit types from which all 2^32 bits are the smaller set.
FULL_BITMAP_N = 1 << 25
ACCESS_BYTES = 8  # of a bucket: what one thread reads at once
# Elements of a program that builds or asks a large set: few wait for the last of them. 2^24 int32 in
# 2^20 on an H200: 200 us; 240 with 512 elements; 985 with 1024 and 4 warps.
SET_BLOCK = 128
SET_WARPS = 2
UNROLL = 8  # test elements compared between two branches of the loop
FILTERED_BYTES = 1 << 26  # of a hash set, from which most of it is not in the L2
FILTER_SLOTS = 32  # for each word of its filter: 4 to 8 bits a test element
HELD_WORDS = 1024  # of the filter of a small set, which programs hold; with 256 2^24 in 64 take 65 us, not 53
HELD_WARPS = 8  # 4 elements a thread; 2^24 int32 in 64 on an H200: 53 us, with 16 a thread 85
# Blocks that a program asks for one after the other, where that leaves enough programs: 2^24 int64 in 2^20 on an
# H200 260 us, one by one 278.
SET_BLOCKS = 4
ALL_WARPS = 132 * 64  # that an H200 holds: so many there are in any case
SHORT_BLOCK = 128  # elements of a program, one a thread, where there are fewer than SOME
SOME = 1 << 17
BLOCK = 1024  # elements of a program, 8 for each thread of 4 warps
LONG_BLOCK = 2048  # of a program of the compare kernel when there are many
MANY = 1 << 20  # elements that keep every multiprocessor busy in long blocks

# Multipliers of the hash, new in every process: test elements cannot be made to collide on purpose.
_FACTOR_32 = 2 * secrets.randbits(30) + 1
_FACTOR_64 = 2 * secrets.randbits(61) + (1 << 62) + 1

DTYPES = {
    torch.bool: tl.uint8,
    torch.uint8: tl.uint8,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


def check_dtypes(elements: TensorLike, test_elements: TensorLike) -> None:
    """Raise InvalidInput unless both are of a dtype that can be looked for."""
    for name, t in (("elements", elements), ("test_elements", test_elements)):
        if t.dtype not in DTYPES:
            allowed = ", ".join(map(dtype_name, DTYPES))
            raise InvalidInput(name, f"{name} must be one of {allowed}, got {dtype_name(t.dtype)}")


class Table(NamedTuple):
    """How a set lies in memory."""

    kind: str  # "bits", "hash", or "either", where the device decides
    slots: int  # words of the table, a power of two
    bucket: int  # slots that are read at once
    small: bool  # whether one program builds it
    itemsize: int  # bytes of a word
    filter_words: int  # of 32 bits, a power of two; 0 for no filter

    @classmethod
    def of(cls, common: Any, n: int) -> Table:
        """The table for n test elements of the Triton dtype `common`."""
        bits, small = common.primitive_bitwidth, n <= SMALL_N
        bucket = 1 if small or bits == 64 else ACCESS_BYTES // 4
        if bits <= 16 or (bits == 32 and n >= FULL_BITMAP_N):
            return cls("bits", max(MIN_SLOTS, (1 << bits) // 32), bucket, small, 4, 0)
        slots = max(MIN_SLOTS, triton.next_power_of_2(n * (SMALL_SLOTS if small else LARGE_SLOTS)))
        itemsize = 8 if bits == 64 else 4
        large = slots * itemsize > FILTERED_BYTES
        words = HELD_WORDS if small else slots // FILTER_SLOTS if large else 0
        kind = "hash" if common.is_floating() else "either"
        return cls(kind, slots, bucket, small, itemsize, words)

    @property
    def words(self) -> int:
        """Words of the workspace."""
        return HEADER + self.slots + self.filter_words * 4 // self.itemsize

    @property
    def shift(self) -> int:
        """What leaves, of 32 bits of hash, as many as number the buckets; all for 2^32 and more."""
        return max(0, 33 - (self.slots // self.bucket).bit_length())


class SetPlan(NamedTuple):
    """The launches that build a set in a workspace and ask it.

    Args:
        words: of type `word`, which the workspace holds; `zeroed` beforehand or not.
        find_range: on (test elements, workspace), where the device decides what kind of set it is.
        build: on (test elements, workspace).
        probe: on (elements, workspace, out).
    """

    words: int
    word: torch.dtype
    zeroed: bool
    find_range: Launch | None
    build: Launch
    probe: Launch


@functools.lru_cache(maxsize=4096)
def plan(elements: LayoutKey, test_elements: LayoutKey, invert: bool) -> Launch | SetPlan | None:
    """For contiguous tensors: compare all with all, on (elements, test elements, out), or a set.

    None if one of them is empty.
    """
    check_dtypes(Layout(*elements).meta, Layout(*test_elements).meta)
    dtypes = elements[2], test_elements[2]
    m, n = math.prod(elements[0]), math.prod(test_elements[0])
    if m == 0 or n == 0:
        return None
    common = DTYPES[torch.promote_types(*dtypes)]
    words = [tl.uint8 if d == torch.bool else None for d in dtypes]
    if n <= COMPARE_N or (n <= COMPARE_MAX_N and m * n <= COMPARE_PAIRS):
        block = LONG_BLOCK if m >= MANY else BLOCK if m >= SOME else SHORT_BLOCK
        arguments = {"m": m, "n": n, "INVERT": invert, "COMMON": common}
        arguments |= {"UNROLL": UNROLL, "BLOCK": block}
        return Launch(compare_kernel, (triton.cdiv(m, block),), arguments, (*words, None))
    return _set_plan(Table.of(common, n), common, m, n, invert, words)


def _set_plan(
    table: Table, common: Any, m: int, n: int, invert: bool, words: Sequence[Any]
) -> SetPlan:
    wide = common.primitive_bitwidth == 64
    shared = {
        "slots": table.slots,
        "factor": _FACTOR_64 if wide else _FACTOR_32,
        "shift": table.shift,
        "SET": table.kind,
        "BUCKET": table.bucket,
        "COMMON": common,
        "KEY": tl.uint64 if wide else tl.uint32,
        "filter_shift": 33 - table.filter_words.bit_length() if table.filter_words else 0,
        "FILTER": table.filter_words > 0,
    }
    held = table.filter_words if table.small else 0
    block, warps = SET_BLOCK, SET_WARPS
    if table.small:
        block, warps = BLOCK, HELD_WARPS if held else 4
    size = {"BLOCK": block, "num_warps": warps}
    blocks = SET_BLOCKS if not table.small and m * warps >= SET_BLOCKS * block * ALL_WARPS else 1
    probe = {**shared, **size, "m": m, "HELD": held, "INVERT": invert, "BLOCKS": blocks}
    find_range = None
    if table.small:
        small = {**shared, "n": n, "words": table.words, "BLOCK": 2 * BLOCK, "num_warps": 16}
        build = Launch(build_small_kernel, (1,), small, (words[1], None))
    else:
        if table.kind == "either":
            arguments = {"n": n, "COMMON": common, "KEY": shared["KEY"], "BLOCK": BLOCK}
            find_range = Launch(range_kernel, (triton.cdiv(n, BLOCK),), arguments, (words[1], None))
        build = Launch(
            build_kernel, (triton.cdiv(n, block),), {**shared, **size, "n": n}, (words[1], None)
        )
    return SetPlan(
        words=table.words,
        word=torch.uint64 if wide else torch.uint32,
        zeroed=not table.small,
        find_range=find_range,
        build=build,
        probe=Launch(
            probe_kernel, (triton.cdiv(m, block * blocks),), probe, (words[0], None, None)
        ),
    )
