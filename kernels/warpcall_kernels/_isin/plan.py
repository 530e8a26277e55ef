"""How isin is launched: its variant, its set, and the arguments of its kernels.

| variant | taken when | why | file |
| --- | --- | --- | --- |
| COMPARE | one test element; up to COMPARED; up to SHORT_COMPARED of 1 or 2 bytes | test elements stay in registers | few.py |
| SCAN | up to 2^15 elements in up to 2^15 test elements, and 2^25 pairs of them (`SCANNED` in rule.py) | each program compares some elements with all test elements, which takes one launch and no set | scan.py |
| SEARCH | up to 2^9 test elements of some elements (`Rule`) | each program makes a bitmap of them in shared memory if they lie close together, and otherwise sorts them into a tree there, without the launch that builds a set | search.py |
| SMALL | up to 2^11 or 2^12 test elements of some elements (`Rule`) | one launch builds the set, and the lookup overlaps with it | small_plan.py, small.py |
| LARGE | all others | many programs zero a set, and then build it | kernels.py |
| FILTERED | more test elements than the L2 holds a hash set of (`Rule`) | a Bloom filter rejects most elements, and test elements mark the others; as LARGE if a sample says that most elements would pass | filtered_plan.py, bloom.py, filtered.py |
| REVERSED | 2 or 4 times as many test elements as elements, and many of them (`REVERSED` in rule.py) | the elements become the set; test elements mark its members | marks.py |

The set of LARGE is one of these, that of REVERSED and FILTERED one of the last two. SMALL has a search
tree or a hash set in place of HASH, and chooses on the device between that and a bitmap in place of
EITHER: see small_plan.py.

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
from typing import Any

import torch
import triton
import triton.language as tl

from warpcall_kernels._isin.few import compare_kernel
from warpcall_kernels._isin.filtered_plan import plan_filtered
from warpcall_kernels._isin.kernels import (
    build_kernel,
    prepare_kernel,
    probe_kernel,
    range_kernel,
)
from warpcall_kernels._isin.marks import collect_kernel, keep_kernel, mark_kernel
from warpcall_kernels._isin.rule import Variant, choose, scanned_size
from warpcall_kernels._isin.scan import scan_kernel
from warpcall_kernels._isin.search import search_kernel
from warpcall_kernels._isin.small_plan import plan_small
from warpcall_kernels._isin.table import (
    RANGES,
    CandidateSet,
    Kind,
    SetPlan,
    Table,
)
from warpcall_kernels.op.declaration import TensorLike, dtype_name
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import Launch, Layout, LayoutKey, overlaps_launches

# The constants were measured on an H200 (compute capability 9.0, 132 multiprocessors). Every other
# GPU uses them, too, and may lose speed by it, never correctness. `python -m bench.kernels tune
# isin` measures them again. Times are from an H200.

# COMPARE
LEAST_TESTS = 4  # test elements that are compared at least; past the end, the last one again
SHORT_BLOCK = 128  # elements of a program, 1 for each thread, if there are fewer than SOME
SOME = 1 << 17
COMPARED_BLOCK = 1024  # the same if there are more, 8 for each thread of 4 warps
# SCAN
SCANNED_BYTES = 16  # of test elements that a thread reads in one access
# Programs, unless each would have more elements than these, by the bytes of a value (2 for 1, too).
SCANNING, SCANNED_ELEMENTS = 256, {2: 16, 4: 32, 8: 16}
# More elements of 64 bits than these have half as many programs. 2^11 in 2^14 on an H100: 8.5 us, 10.
WIDE_SCANNED = 1 << 10
# The most elements of a program times its warps, because registers are few; and the most warps.
SCAN_LIMIT, SCAN_WARPS = 128, 16
# Test elements from which on a thread of a program of 16 elements reads twice before it compares. 2^12
# int64 in 2^14 on an H100: 11.6 us, 12.0 with one access.
TWICE_SCANNED = 1 << 12
# SEARCH
# Elements of a program and its warps, by the test elements from which on they are taken.
SEARCHING = ((512, 2048, 8), (0, 1024, 4))
# Words of 32 bits of the bitmap, by the same.
SEARCHED_WORDS = ((512, 64), (0, 32))
# Warps of all programs, each of which makes a set, if there are elements for more; and those for SOME_WIDE
# keys of 64 bits or more, whose sets take longer to make. On an H100, dense and sparse: 2^26 int32 in 2^4
# 121 and 122 us, 124 and 125 with twice as many; 2^22 int64 in 2^7 18.9 and 26.7 us, 20.4 and 29.2 with the
# former.
SEARCHING_WARPS, WIDE_SEARCHING_WARPS, SOME_WIDE = 132 * 32, 132 * 16, 1 << 21
# Warps with one block a program from which on each looks up two, and makes half as many sets. 2^20 sparse
# int32 in 2^8 on an H100: 9.9 us, 11.4 with one.
TWICE_SEARCHED = 132 * 16

BLOCK = 1024  # elements of a program of the other kernels with few, long programs
PREPARING = 128  # programs that zero the workspace and find the range
# Members up to which each program that builds combines these ranges; for more there is a launch
# that does. 2^10 sparse int32 in 2^20: 62 us, and 76 with two launches and a memset before the build.
FUSED_N = 1 << 22

# A program that builds or probes a large set: its elements and warps. Few of its threads wait for
# the longest probe. 2^24 int32 in 2^20: 200 us, 17 % less than with 512 elements.
SET_BLOCK = 128
SET_WARPS = 2
# Blocks that a program probes one after the other if there are enough programs even so. 2^24 int64 in
# 2^20: 260 us, 6 % less than one block for each program.
SET_BLOCKS = 4
ALL_WARPS = 132 * 64  # warps that an H200 holds: there must be at least as many

# Up to so many values, a program of LARGE and REVERSED has so few, and one warp, which waits for no other.
# 2^12 int32 in 2^16 by LARGE with 4 slots for each test element on an H100, sparse and dense: 18.9 and 9.5 us, 27.1 and 11.9 with 128 elements and 2
# warps.
FEW_VALUES, FEW_BLOCK, FEW_WARPS = 1 << 18, 64, 1
# Test elements up to which launches of LARGE and REVERSED overlap. Programs that wait take the place of others:
# 2^12 sparse int32 in 2^22 on an H100 by REVERSED: 58 us, 50 one after the other.
OVERLAPPING = 1 << 20
# LARGE
# Values of a program of one warp, if there are up to so many. 2^12 sparse int32 in 2^14 on an H100: 10.1 us,
# 10.7 with FEW_BLOCK.
FEWEST_VALUES, FEWEST_BLOCK = 1 << 16, 32
# Slots for each of few members of LARGE and REVERSED, of which few have to be looked for twice then.
SLOTS_OF_FEW = 16
# Most bytes of a table of LARGE with these. If there are more than MANY elements and keys have 32 bits, it
# has at most L1_SLOTS slots, which fit into the L1. 2^12 sparse int32 in 2^14 on an H100: 10.1 us, 11.5 with 4
# slots for each; 2^24 in 2^12: 79 us, 103 with 16 slots for each, 99 with 4.
FEW_BYTES, MANY, L1_SLOTS = 4 << 20, 1 << 21, 1 << 15
# REVERSED
# Most slots of a table with SLOTS_OF_FEW for each element.
FEW_SLOTS = 1 << 18
# At least one slot for so many test elements, if there are up to BITMAP_TESTS: a bitmap in their place holds
# a range of four times as many values. With more test elements, a smaller hash set is faster: 101 int32 in
# 2^22 on an H100: 33 us with 2^16 slots, 39 with 2^18.
TESTS_A_SLOT, BITMAP_TESTS = 8, 1 << 20
# Members up to which slots are not read before the atomics, which contend if keys are equal. On an H100,
# 2^12 sparse int32 in 2^14 by LARGE: 11.5 us, 13.5 if slots are read. 2^12 in 2^18 test elements of which 9
# in 10 are equal: 187 us, 186 if slots are read.
UNREAD = 1 << 18
# Test elements from which on dense elements have a bitmap of their own beside that of the marks. 2^12
# dense int32 in 2^18 on an H100: 12.8 us, LARGE, where all test elements set bits, 15.6.
TWO_BITMAPS = 1 << 17

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
    if variant is Variant.SCAN:
        return _scan(call, common, m, n, words)
    if variant is Variant.FILTERED:
        table = Table.of(common, n, small=False)
        kept = CandidateSet.of(table, m)
        prepare = _prepare(table, common, kept.ranges, n, words[1], RANGES)
        return plan_filtered(call, table, kept, _shared(table, common), prepare, words)
    if variant is Variant.REVERSED:
        return _reversed(Table.of(common, m, small=False), common, m, n, invert, words)
    if variant is Variant.SMALL:
        table = Table.of(common, n, small=True)
        return plan_small(call, table, _shared(table, common), words)
    return _large(common, m, n, invert, words)


def _compare(call: Mapping[str, Any], m: int, n: int, words: Sequence[Any]) -> Launch:
    block = COMPARED_BLOCK if m >= SOME else SHORT_BLOCK
    tests = max(LEAST_TESTS, triton.next_power_of_2(n))
    arguments = {**call, "TESTS": tests, "BLOCK": block}
    grid = (triton.cdiv(m, block),)
    return Launch(compare_kernel, grid, arguments, (*words, None), Variant.COMPARE)


def _search(call: Mapping[str, Any], common: Any, m: int, n: int, words: Sequence[Any]) -> Launch:
    block, warps = next((block, warps) for least, block, warps in SEARCHING if n >= least)
    bitmap = next(count for least, count in SEARCHED_WORDS if n >= least)
    every = triton.cdiv(m, block)
    many_wide = common.primitive_bitwidth == 64 and m >= SOME_WIDE
    all_warps = WIDE_SEARCHING_WARPS if many_wide else SEARCHING_WARPS
    blocks = triton.cdiv(every, all_warps // warps)
    blocks = max(blocks, 2 if every * warps > TWICE_SEARCHED else 1)
    arguments = {
        **call,
        "KEY": _key(common),
        "LEVELS": max(1, (n - 1).bit_length()),
        "WORDS": 0 if common.is_floating() else bitmap,
        "BLOCK": block,
        "BLOCKS": blocks,
        "num_warps": warps,
    }
    grid = (triton.cdiv(m, block * blocks),)
    return Launch(search_kernel, grid, arguments, (*words, None), Variant.SEARCH)


def _scan(call: Mapping[str, Any], common: Any, m: int, n: int, words: Sequence[Any]) -> Launch:
    elements, loads, warps = scanning(common, m, n)
    vector = SCANNED_BYTES // scanned_size(common)
    chunks = triton.cdiv(n, 32 * warps * vector * loads)
    arguments = {
        **call,
        "starts": 1 << (chunks.bit_length() - 1),
        "KEY": _key(common),
        "ELEMENTS": elements,
        "VECTOR": vector,
        "LOADS": loads,
        "THREADS": 32 * warps,
        "num_warps": warps,
    }
    grid = (triton.cdiv(m, elements),)
    return Launch(scan_kernel, grid, arguments, (*words, None), Variant.SCAN)


def scanning(common: Any, m: int, n: int) -> tuple[int, int, int]:
    """How SCAN is launched: elements of a program, accesses of a thread at a time, and warps."""
    size = scanned_size(common)
    most = SCANNING // 2 if size == 8 and m > WIDE_SCANNED else SCANNING
    elements = min(triton.next_power_of_2(triton.cdiv(m, most)), SCANNED_ELEMENTS[size])
    programs = triton.cdiv(m, elements)
    # Fewer warps if there are more programs, and not more than have test elements.
    wanted = min(triton.cdiv(2 * n, programs), triton.cdiv(n, 32 * SCANNED_BYTES // size))
    warps = triton.next_power_of_2(wanted)
    loads = 2 if elements == 16 and programs <= SCANNING and n >= TWICE_SCANNED else 1
    return elements, loads, min(warps, SCAN_LIMIT // elements, SCAN_WARPS)


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


def _prepare(
    table: Table,
    common: Any,
    words: int,
    n: int,
    dtype: Any,
    programs: int = 0,
    *,
    pdl: bool = False,
) -> Launch:
    programs = programs or PREPARING
    arguments = {
        "n": n,
        "words": words,
        "RANGE": table.kind is Kind.EITHER,
        "COMMON": common,
        "KEY": _key(common),
        "PROGRAMS": programs,
        "BLOCK": BLOCK,
        "PDL": pdl,
    }
    return Launch(prepare_kernel, (programs,), arguments, (dtype, None))


def _large(common: Any, m: int, n: int, invert: bool, words: Sequence[Any]) -> SetPlan:
    table = Table.of(common, n, small=False)
    in_l1 = m > MANY and table.itemsize == 4
    most = L1_SLOTS if in_l1 else FEW_BYTES // table.itemsize
    table = _with_room(table, SLOTS_OF_FEW * n, most)
    shared = _shared(table, common)
    overlapped = _overlapped(n)
    shared |= {"filter_shift": table.filter_shift, "FILTER": table.filter_words > 0, **overlapped}
    blocks = SET_BLOCKS if m * SET_WARPS >= SET_BLOCKS * SET_BLOCK * ALL_WARPS else 1
    build = {**shared, **_blocks(n, fewest=True), "n": n, "words": table.words}
    probe = {**shared, **_blocks(m, fewest=True), "m": m, "INVERT": invert, "BLOCKS": blocks}
    steps = [(_prepare(table, common, table.words, n, words[1], pdl=shared["PDL"]), "tw")]
    fused = PREPARING if n <= FUSED_N else 0
    if not fused and table.kind is Kind.EITHER:
        whole = {"words": table.words, "slots": table.slots, "KEY": shared["KEY"]}
        whole |= {"PROGRAMS": PREPARING, **overlapped}
        steps.append((Launch(range_kernel, (1,), whole), "w"))
    build["PROGRAMS"] = fused
    build["LOOK"] = n > UNREAD
    steps.append((_over(n, build_kernel, build, (words[1], None)), "tw"))
    steps.append((_over(m, probe_kernel, probe, (words[0], None, None), blocks), "xwo"))
    return SetPlan(table.words + 2 * PREPARING, table.word, tuple(steps))


def _overlapped(n: int) -> dict[str, bool]:
    """The arguments of a launch that begins while the one before it runs, where a device can."""
    if n <= OVERLAPPING and overlaps_launches():
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


def _blocks(values: int, *, fewest: bool = False) -> dict[str, int]:
    """How many of so many values a program has, and its warps; with `fewest`, as LARGE has them."""
    block, warps = (FEW_BLOCK, FEW_WARPS) if values <= FEW_VALUES else (SET_BLOCK, SET_WARPS)
    if fewest and values <= FEWEST_VALUES:
        block = FEWEST_BLOCK
    return {"BLOCK": block, "num_warps": warps}


def _over(
    values: int, kernel: Any, arguments: Mapping[str, Any], types: tuple[Any, ...], blocks: int = 1
) -> Launch:
    """A launch of as many programs as so many values need."""
    grid = (triton.cdiv(values, arguments["BLOCK"] * blocks),)
    return Launch(kernel, grid, arguments, types)


def _with_room(table: Table, wanted: int, most: int) -> Table:
    """The table with so many slots, or with as many as it has if these are more than `most`."""
    if table.kind is Kind.BITMAP:
        return table
    return table._replace(slots=max(table.slots, triton.next_power_of_2(min(most, wanted))))


def _reversed(
    table: Table, common: Any, m: int, n: int, invert: bool, words: Sequence[Any]
) -> SetPlan:
    wanted = max(SLOTS_OF_FEW * m, n // TESTS_A_SLOT if n <= BITMAP_TESTS else 0)
    table = _with_room(table._replace(filter_words=0), wanted, FEW_SLOTS)
    shared = {**_shared(table, common), **_overlapped(n)}
    few = table.kind is Kind.EITHER and table.slots <= FEW_SLOTS
    shared["TWO_BITMAPS"] = few and n >= TWO_BITMAPS
    marks = table.words
    # A byte for each slot and one for key 0, or the second bitmap.
    zeroed = marks + max(table.slots // table.itemsize + 1, shared["TWO_BITMAPS"] * table.words)
    keep = {**shared, **_blocks(m), "n": m, "words": zeroed, "PROGRAMS": PREPARING}
    keep["LOOK"] = m > UNREAD
    mark = {**shared, **_blocks(n), "n": n, "marks": marks}
    collect = {**shared, **_blocks(m), "m": m, "marks": marks, "INVERT": invert}
    steps = (
        (_prepare(table, common, zeroed, m, words[0], pdl=shared["PDL"]), "xw"),
        (_over(m, keep_kernel, keep, (words[0], None)), "xw"),
        (_over(n, mark_kernel, mark, (words[1], None)), "tw"),
        (_over(m, collect_kernel, collect, (words[0], None, None)), "xwo"),
    )
    return SetPlan(zeroed + 2 * PREPARING, table.word, steps)
