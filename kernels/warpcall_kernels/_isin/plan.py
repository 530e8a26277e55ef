"""How isin is launched: its variant, its set, and the arguments of its kernels.

| variant | taken when | why | file |
| --- | --- | --- | --- |
| COMPARE | one test element; up to COMPARED of few elements; up to SHORT_COMPARED of 1 or 2 bytes | test elements stay in registers | few.py |
| SEARCH | up to 2^9 or 2^10 test elements (`Rule`) | each program sorts them into a tree in shared memory, which takes as long as building a set, without its launch | few.py |
| SMALL | up to 2^10 to 2^12 (`Rule`) | one program zeroes and builds a set | kernels.py |
| LARGE | all others | many programs do | kernels.py |
| REVERSED | REVERSED_RATIO times as many test elements as elements, and REVERSED_N or more | the elements become the set; test elements mark its members | kernels.py |

The set of SMALL and LARGE is one of these, that of REVERSED one of the last two:

| set | taken when | why |
| --- | --- | --- |
| BITMAP | types of 1 or 2 bytes, or 32-bit types with FULL_BITMAP_N test elements or more | a bit for every value of the type; no collisions |
| HASH | other floats | a hash set, with a filter if it is small or much larger than the L2 |
| EITHER | other integers | the device looks at the range of the members: a bitmap of that range if it fits into the table, else a hash set; so nothing waits for the GPU |

`choose` is in rule.py. What each variant reaches is in docs/benchmarks/h200.md and
docs/benchmarks/isin-grid.md, what the constants were chosen from in
docs/benchmarks/h200-constants.md.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._isin.few import compare_kernel, search_kernel
from warpcall_kernels._isin.hash_set import HEADER
from warpcall_kernels._isin.kernels import (
    build_kernel,
    build_small_kernel,
    collect_kernel,
    keep_kernel,
    mark_kernel,
    prepare_kernel,
    probe_kernel,
    range_kernel,
)
from warpcall_kernels._isin.rule import FULL_BITMAP_N, Variant, choose
from warpcall_kernels.op.declaration import TensorLike, dtype_name
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import Launch, Layout, LayoutKey

# The constants were measured on an H200 (compute capability 9.0, 132 multiprocessors). Every other
# GPU uses them, too, and may lose speed by it, never correctness. `python -m bench.kernels tune
# isin` measures them again. Times are from an H200.

# COMPARE
# Test elements that a thread has in registers at a time, for many test elements and for one.
CHUNK, LEAST_CHUNK = 16, 4
# Test elements above which so many are loaded at once before the first comparison.
TOUCHED = ((128, 1024), (16, 128))
SHORT_BLOCK = 256  # elements of a program, 2 for each thread, if there are fewer than SOME
SOME = 1 << 17
COMPARED_BLOCK = 1024  # the same if there are more, 8 for each thread of 4 warps
# SEARCH
# Elements of a program and its warps, by the test elements from which on they are taken.
SEARCHING = ((512, 2048, 8), (0, 1024, 4))

BLOCK = 1024  # elements of a program of the other kernels with few, long programs
PREPARING = 128  # programs that zero the workspace and find the range
# Members up to which each program that builds combines these ranges; for more there is a launch
# that does. 2^10 sparse int32 in 2^20: 62 us, and 76 with two launches and a memset before the build.
FUSED_N = 1 << 22

# Slots for each test element of a small set, nearly all of which are then alone in their bucket,
# and of a large one, which is filled to between 1/8 and 1/4.
SMALL_SLOTS, LARGE_SLOTS = 16, 4
MIN_SLOTS = 32
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
FILTERED_BYTES = 1 << 24
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


class Kind(StrEnum):
    """What a set is: SET of the kernels."""

    BITMAP = "bits"
    HASH = "hash"
    EITHER = "either"


def kind_of(common: Any, n: int) -> Kind:
    """What n test elements become if they become a set."""
    bits = common.primitive_bitwidth
    if bits <= 16 or (bits == 32 and n >= FULL_BITMAP_N):
        return Kind.BITMAP
    return Kind.HASH if common.is_floating() else Kind.EITHER


class Table(NamedTuple):
    """How a set lies in memory.

    Args:
        kind: BITMAP, HASH or EITHER.
        slots: words of the table, a power of two.
        bucket: slots that one access reads.
        small: whether one program builds the set.
        itemsize: bytes of a word.
        filter_words: 32-bit words of the filter, a power of two; 0 for no filter.
    """

    kind: Kind
    slots: int
    bucket: int
    small: bool
    itemsize: int
    filter_words: int

    @classmethod
    def of(cls, common: Any, n: int, small: bool) -> Table:
        """The table for n members of the Triton dtype `common`. If `small`, one program builds it."""
        kind = kind_of(common, n)
        bits = common.primitive_bitwidth
        bucket = 1 if small or bits == 64 else ACCESS_BYTES // 4
        if kind is Kind.BITMAP:
            return cls(kind, max(MIN_SLOTS, (1 << bits) // 32), bucket, small, 4, 0)
        slots = max(MIN_SLOTS, triton.next_power_of_2(n * (SMALL_SLOTS if small else LARGE_SLOTS)))
        itemsize = 8 if bits == 64 else 4
        large = slots * itemsize > FILTERED_BYTES
        words = HELD_WORDS if small else slots // FILTER_SLOTS if large else 0
        return cls(kind, slots, bucket, small, itemsize, words)

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
    """The launches that build a set in a workspace and look up elements in it.

    Args:
        words: words of the workspace.
        word: their dtype.
        launches: each with which of its tensors it takes: "x" (elements), "t" (test elements), "w"
            (workspace), "o" (out).
    """

    words: int
    word: torch.dtype
    launches: tuple[tuple[Launch, str], ...]


@functools.lru_cache(maxsize=4096)
def plan(elements: LayoutKey, test_elements: LayoutKey, invert: bool) -> Launch | SetPlan | None:
    """The launch on (elements, test elements, out), or those of a set.

    Both tensors are contiguous. None if one of them is empty.
    """
    check_dtypes(Layout(*elements).meta, Layout(*test_elements).meta)
    dtypes = elements[2], test_elements[2]
    m, n = math.prod(elements[0]), math.prod(test_elements[0])
    if m == 0 or n == 0:
        return None
    common = DTYPES[torch.promote_types(*dtypes)]
    words = [tl.uint8 if d == torch.bool else None for d in dtypes]
    return launches(choose(common, m, n), common, m, n, invert, words)


def launches(
    variant: Variant, common: Any, m: int, n: int, invert: bool, words: Sequence[Any]
) -> Launch | SetPlan:
    """The launches of a variant. `words` are the Triton dtypes that the tensors are read as, or None."""
    call = {"m": m, "n": n, "INVERT": invert, "COMMON": common}
    if variant is Variant.COMPARE:
        return _compare(call, m, n, words)
    if variant is Variant.SEARCH:
        return _search(call, common, m, n, words)
    if variant is Variant.REVERSED:
        return _reversed(Table.of(common, m, small=False), common, m, n, invert, words)
    return _set_plan(Table.of(common, n, variant is Variant.SMALL), common, m, n, invert, words)


def _compare(call: Mapping[str, Any], m: int, n: int, words: Sequence[Any]) -> Launch:
    block = COMPARED_BLOCK if m >= SOME else SHORT_BLOCK
    touch = next((size for least, size in TOUCHED if n > least), 0)
    chunk = max(LEAST_CHUNK, min(CHUNK, triton.next_power_of_2(n)))
    arguments = {**call, "CHUNK": chunk, "TOUCH": touch, "BLOCK": block}
    grid = (triton.cdiv(m, block),)
    return Launch(compare_kernel, grid, arguments, (*words, None), Variant.COMPARE)


def _search(call: Mapping[str, Any], common: Any, m: int, n: int, words: Sequence[Any]) -> Launch:
    block, warps = next((block, warps) for least, block, warps in SEARCHING if n >= least)
    blocks = triton.cdiv(triton.cdiv(m, block), max(1, ALL_WARPS // warps))
    arguments = {
        **call,
        "KEY": _key(common),
        "LEVELS": max(1, (n - 1).bit_length()),
        "BLOCK": block,
        "BLOCKS": blocks,
        "num_warps": warps,
    }
    grid = (triton.cdiv(m, block * blocks),)
    return Launch(search_kernel, grid, arguments, (*words, None), Variant.SEARCH)


def _key(common: Any) -> Any:
    return tl.uint64 if common.primitive_bitwidth == 64 else tl.uint32


def _shared(table: Table, common: Any) -> dict[str, Any]:
    """The arguments that all kernels of a set take."""
    return {
        "slots": table.slots,
        "factor": _FACTOR_64 if common.primitive_bitwidth == 64 else _FACTOR_32,
        "shift": table.shift,
        "SET": table.kind.value,
        "BUCKET": table.bucket,
        "COMMON": common,
        "KEY": _key(common),
    }


def _prepare(table: Table, common: Any, words: int, n: int, dtype: Any) -> Launch:
    arguments = {
        "n": n,
        "words": words,
        "RANGE": table.kind is Kind.EITHER,
        "COMMON": common,
        "KEY": _key(common),
        "PROGRAMS": PREPARING,
        "BLOCK": BLOCK,
    }
    return Launch(prepare_kernel, (PREPARING,), arguments, (dtype, None))


def _set_plan(
    table: Table, common: Any, m: int, n: int, invert: bool, words: Sequence[Any]
) -> SetPlan:
    shared = _shared(table, common)
    shared["filter_shift"] = 33 - table.filter_words.bit_length() if table.filter_words else 0
    shared["FILTER"] = table.filter_words > 0
    held = table.filter_words if table.small else 0
    block, warps = SET_BLOCK, SET_WARPS
    if table.small:
        block, warps = BLOCK, HELD_WARPS if held else 4
    size = {"BLOCK": block, "num_warps": warps}
    blocks = SET_BLOCKS if not table.small and m * warps >= SET_BLOCKS * block * ALL_WARPS else 1
    probe = {**shared, **size, "m": m, "HELD": held, "INVERT": invert, "BLOCKS": blocks}
    steps = []
    if table.small:
        small = {**shared, "n": n, "words": table.words, "num_warps": 16}
        small |= {"BLOCK": max(2 * BLOCK, triton.next_power_of_2(n)), "ZEROED": 4 * BLOCK}
        steps.append((Launch(build_small_kernel, (1,), small, (words[1], None)), "tw"))
    else:
        steps.append((_prepare(table, common, table.words, n, words[1]), "tw"))
        fused = PREPARING if n <= FUSED_N else 0
        if not fused and table.kind is Kind.EITHER:
            whole = {"words": table.words, "slots": table.slots, "KEY": shared["KEY"]}
            whole["PROGRAMS"] = PREPARING
            steps.append((Launch(range_kernel, (1,), whole), "w"))
        build = {**shared, **size, "n": n, "words": table.words, "PROGRAMS": fused}
        grid = (triton.cdiv(n, block),)
        steps.append((Launch(build_kernel, grid, build, (words[1], None)), "tw"))
    grid = (triton.cdiv(m, block * blocks),)
    steps.append((Launch(probe_kernel, grid, probe, (words[0], None, None)), "xwo"))
    total = table.words + (0 if table.small else 2 * PREPARING)
    return SetPlan(total, _word(common), tuple(steps))


def _reversed(
    table: Table, common: Any, m: int, n: int, invert: bool, words: Sequence[Any]
) -> SetPlan:
    table = table._replace(filter_words=0)
    shared = {**_shared(table, common), "BLOCK": SET_BLOCK, "num_warps": SET_WARPS}
    marks = table.words
    zeroed = marks + table.slots // table.itemsize + 1  # a byte for each slot, one for key 0
    keep = {**shared, "n": m, "words": zeroed, "PROGRAMS": PREPARING}
    mark = {**shared, "n": n, "marks": marks}
    collect = {**shared, "m": m, "marks": marks, "INVERT": invert}
    few, many = ((triton.cdiv(k, SET_BLOCK),) for k in (m, n))
    steps = (
        (_prepare(table, common, zeroed, m, words[0]), "xw"),
        (Launch(keep_kernel, few, keep, (words[0], None)), "xw"),
        (Launch(mark_kernel, many, mark, (words[1], None)), "tw"),
        (Launch(collect_kernel, few, collect, (words[0], None, None)), "xwo"),
    )
    return SetPlan(zeroed + 2 * PREPARING, _word(common), steps)


def _word(common: Any) -> torch.dtype:
    return torch.uint64 if common.primitive_bitwidth == 64 else torch.uint32
