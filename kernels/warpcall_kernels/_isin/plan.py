"""How isin is launched: its variant, its set, and the arguments of its kernels.

| variant | taken when | why | file |
| --- | --- | --- | --- |
| COMPARE | up to COMPARE_N test elements, or few comparisons in all | elements stay in registers, and no set is built | kernels.py |
| BITMAP | types of 1 or 2 bytes, or 32-bit types with FULL_BITMAP_N test elements or more | a bit for every value of the type; no collisions | hash_set.py |
| HASH | other floats | a hash set, with a filter if it is small or much larger than the L2 | hash_set.py |
| EITHER | other integers | the device looks at the range of the test elements: a bitmap of that range if it fits into the table, else a hash set; so nothing waits for the GPU | hash_set.py |

Up to SMALL_N test elements, one program zeroes and builds the set (`build_small_kernel`); otherwise
a launch finds the range (EITHER only), and another builds. What each variant reaches is in
docs/benchmarks/h200.md, what the constants were chosen from in docs/benchmarks/h200-constants.md.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Sequence
from enum import StrEnum
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

# The constants were measured on an H200 (compute capability 9.0, 132 multiprocessors). Every other
# GPU uses them, too, and may lose speed by it, never correctness. `python -m bench.kernels tune
# isin` measures them again. Times are from an H200.

# Where COMPARE is faster. A comparison costs one instruction, of which an H200 executes 1.5e13 a
# second; building the smallest set costs some 5 us.
COMPARE_N = 32  # test elements up to which COMPARE is taken for any number of elements
COMPARE_PAIRS = 1 << 26  # comparisons up to which it is taken
# The most test elements then. With more, the loop of one block would take longer than building a
# set.
COMPARE_MAX_N = 1 << 10
UNROLL = 8  # test elements that are compared in one step of the loop
SHORT_BLOCK = 128  # elements of a program, one for each thread, if there are fewer than SOME
SOME = 1 << 17
BLOCK = 1024  # elements of a program, 8 for each thread of 4 warps
LONG_BLOCK = 2048  # the same if there are at least MANY, which keep all multiprocessors busy
MANY = 1 << 20

SMALL_N = 1 << 12  # test elements up to which one program builds the set
# Slots for each test element of a small set, nearly all of which are then alone in their bucket,
# and of a large one, which is filled to between 1/8 and 1/4.
SMALL_SLOTS, LARGE_SLOTS = 16, 4
MIN_SLOTS = 32
# Test elements of 32-bit types from which on a bitmap of all 2^32 values is smaller than a hash
# set.
FULL_BITMAP_N = 1 << 25
ACCESS_BYTES = 8  # bytes of a bucket, which a thread reads in one access

# A program that builds or probes a large set: its elements and warps. Few of its threads wait for
# the longest probe. 2^24 int32 in 2^20: 200 us, 17 % less than with 512 elements.
SET_BLOCK = 128
SET_WARPS = 2
# Blocks that a program probes one after the other if there are enough programs even so. 2^24 int64 in
# 2^20: 260 us, 6 % less than one block for each program.
SET_BLOCKS = 4
ALL_WARPS = 132 * 64  # warps that an H200 holds: there must be at least as many

# Bytes of a hash set from which on it has a filter, because most of it is not in the L2, and the
# slots for each word of that filter: 4 to 8 bits a test element.
FILTERED_BYTES = 1 << 26
FILTER_SLOTS = 32
# Words of the filter of a small set, which every program holds. 2^24 in 64: 53 us, 18 % less than
# with 256.
HELD_WORDS = 1024
# Warps of a program that holds it, for 4 elements a thread. 2^24 int32 in 64: 53 us, 38 % less than
# with 16 elements.
HELD_WARPS = 8

# Multipliers of the hash. Each process draws new ones, so that a caller cannot choose test elements
# that collide.
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
    """Raise InvalidInput unless both have one of the `DTYPES`."""
    for name, t in (("elements", elements), ("test_elements", test_elements)):
        if t.dtype not in DTYPES:
            allowed = ", ".join(map(dtype_name, DTYPES))
            raise InvalidInput(name, f"{name} must be one of {allowed}, got {dtype_name(t.dtype)}")


class Variant(StrEnum):
    """The variants of the table above; those of a set are also what SET is in the kernels."""

    COMPARE = "compare"
    BITMAP = "bits"
    HASH = "hash"
    EITHER = "either"


def choose(common: Any, m: int, n: int) -> Variant:
    """The variant for m elements and n test elements of the Triton dtype `common`."""
    if n <= COMPARE_N or (n <= COMPARE_MAX_N and m * n <= COMPARE_PAIRS):
        return Variant.COMPARE
    return set_variant(common, n)


def set_variant(common: Any, n: int) -> Variant:
    """The variant for n test elements if they become a set."""
    bits = common.primitive_bitwidth
    if bits <= 16 or (bits == 32 and n >= FULL_BITMAP_N):
        return Variant.BITMAP
    return Variant.HASH if common.is_floating() else Variant.EITHER


class Table(NamedTuple):
    """How a set lies in memory.

    Args:
        variant: BITMAP, HASH or EITHER.
        slots: words of the table, a power of two.
        bucket: slots that one access reads.
        small: whether one program builds the set.
        itemsize: bytes of a word.
        filter_words: 32-bit words of the filter, a power of two; 0 for no filter.
    """

    variant: Variant
    slots: int
    bucket: int
    small: bool
    itemsize: int
    filter_words: int

    @classmethod
    def of(cls, common: Any, n: int) -> Table:
        """The table for n test elements of the Triton dtype `common`."""
        variant = set_variant(common, n)
        bits, small = common.primitive_bitwidth, n <= SMALL_N
        bucket = 1 if small or bits == 64 else ACCESS_BYTES // 4
        if variant is Variant.BITMAP:
            return cls(variant, max(MIN_SLOTS, (1 << bits) // 32), bucket, small, 4, 0)
        slots = max(MIN_SLOTS, triton.next_power_of_2(n * (SMALL_SLOTS if small else LARGE_SLOTS)))
        itemsize = 8 if bits == 64 else 4
        large = slots * itemsize > FILTERED_BYTES
        words = HELD_WORDS if small else slots // FILTER_SLOTS if large else 0
        return cls(variant, slots, bucket, small, itemsize, words)

    @property
    def words(self) -> int:
        """Words of the workspace."""
        return HEADER + self.slots + self.filter_words * 4 // self.itemsize

    @property
    def shift(self) -> int:
        """How far a hash of 32 bits is shifted right to number the buckets; 0 for 2^32 buckets or
        more.
        """
        return max(0, 33 - (self.slots // self.bucket).bit_length())


class SetPlan(NamedTuple):
    """The launches that build a set in a workspace and probe it.

    Args:
        words: words of the workspace.
        word: their dtype.
        zeroed: whether the workspace must be zeroed before.
        find_range: the launch on (test elements, workspace) that finds their range, for EITHER.
        build: the launch on (test elements, workspace).
        probe: the launch on (elements, workspace, out).
    """

    words: int
    word: torch.dtype
    zeroed: bool
    find_range: Launch | None
    build: Launch
    probe: Launch


@functools.lru_cache(maxsize=4096)
def plan(elements: LayoutKey, test_elements: LayoutKey, invert: bool) -> Launch | SetPlan | None:
    """The launch of COMPARE, on (elements, test elements, out), or those of a set.

    Both tensors are contiguous. None if one of them is empty.
    """
    check_dtypes(Layout(*elements).meta, Layout(*test_elements).meta)
    dtypes = elements[2], test_elements[2]
    m, n = math.prod(elements[0]), math.prod(test_elements[0])
    if m == 0 or n == 0:
        return None
    common = DTYPES[torch.promote_types(*dtypes)]
    words = [tl.uint8 if d == torch.bool else None for d in dtypes]
    variant = choose(common, m, n)
    if variant is Variant.COMPARE:
        block = LONG_BLOCK if m >= MANY else BLOCK if m >= SOME else SHORT_BLOCK
        arguments = {"m": m, "n": n, "INVERT": invert, "COMMON": common}
        arguments |= {"UNROLL": UNROLL, "BLOCK": block}
        return Launch(compare_kernel, (triton.cdiv(m, block),), arguments, (*words, None), variant)
    return _set_plan(Table.of(common, n), common, m, n, invert, words)


def _set_plan(
    table: Table, common: Any, m: int, n: int, invert: bool, words: Sequence[Any]
) -> SetPlan:
    wide = common.primitive_bitwidth == 64
    shared = {
        "slots": table.slots,
        "factor": _FACTOR_64 if wide else _FACTOR_32,
        "shift": table.shift,
        "SET": table.variant.value,
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
        if table.variant is Variant.EITHER:
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
