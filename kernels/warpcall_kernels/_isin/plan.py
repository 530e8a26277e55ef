"""How isin is launched: its variant, its set, and the arguments of its kernels.

| variant | taken when | why | file |
| --- | --- | --- | --- |
| COMPARE | one test element; up to COMPARED; up to SHORT_COMPARED of 1 or 2 bytes | test elements stay in registers | few.py |
| SCAN | up to 2^16 elements in up to 2^16 test elements, and 2^26 pairs of them (`SCANNED` in rule.py) | each program compares some elements with all test elements, which takes one launch and no set | scan.py |
| SEARCH | up to 2^8 test elements, and not too many elements (`Rule`) | each program makes a bitmap of them in shared memory if they lie close together, and otherwise sorts them into a tree there, without the launch that builds a set | search.py |
| SMALL | up to 2^11 or 2^12 test elements (`Rule`) | one launch builds the set, and the lookup overlaps with it | small_plan.py, small.py |
| LARGE | all others | many programs zero and build a set | kernels.py |
| FILTERED | more test elements than the L2 holds a hash set of (`Rule`) | a Bloom filter rejects most elements, and test elements mark the others; as LARGE if a sample says that most elements would pass | bloom.py, filtered.py |
| REVERSED | 2 to 4 times as many test elements as elements, and many of them (`REVERSED` in rule.py) | the elements become the set; test elements mark its members | kernels.py |

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

from warpcall_kernels._isin.bloom import fill_kernel, judge_kernel, zero_bitmap_kernel
from warpcall_kernels._isin.few import compare_kernel
from warpcall_kernels._isin.filtered import (
    keep_candidates_kernel,
    mark_candidates_kernel,
    settle_kernel,
    sift_kernel,
)
from warpcall_kernels._isin.kernels import (
    build_kernel,
    collect_kernel,
    keep_kernel,
    mark_kernel,
    prepare_kernel,
    probe_kernel,
    range_kernel,
)
from warpcall_kernels._isin.rule import Variant, choose
from warpcall_kernels._isin.scan import scan_kernel
from warpcall_kernels._isin.search import search_kernel
from warpcall_kernels._isin.small_plan import plan_small
from warpcall_kernels._isin.table import (
    FIRST_SHARE,
    JUDGED,
    RANGES,
    CandidateSet,
    Kind,
    SetPlan,
    Table,
)
from warpcall_kernels.op.declaration import TensorLike, dtype_name
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import Launch, Layout, LayoutKey

# The constants were measured on an H200 (compute capability 9.0, 132 multiprocessors). Every other
# GPU uses them, too, and may lose speed by it, never correctness. `python -m bench.kernels tune
# isin` measures them again. Times are from an H200.

# COMPARE
LEAST_TESTS = 4  # test elements that are compared at least; past the end, the last one again
SHORT_BLOCK = 256  # elements of a program, 2 for each thread, if there are fewer than SOME
SOME = 1 << 17
COMPARED_BLOCK = 1024  # the same if there are more, 8 for each thread of 4 warps
# SCAN
# Bytes of test elements that a thread reads in one access, and how many these are at most.
SCANNED_BYTES, MOST_SCANNED = 16, 8
# Programs, unless each would have more elements than these, by the bytes of a value (2 for 1, too).
SCANNING, SCANNED_ELEMENTS = 256, {2: 16, 4: 32, 8: 16}
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

# FILTERED
ZEROING = 264  # programs that zero a bitmap
# Elements of a program and its warps that fills the filter, and the warps of the one that samples it.
FILL_BLOCK, FILL_WARPS = 512, 4
JUDGE_WARPS = 16
# By the bytes of a key, elements of a program that looks up in the filter. 2^26 int64 in 2^24: 537 us,
# 585 with 1,024 elements.
SIFT_BLOCK, SIFT_WARPS = {4: 1024, 8: 512}, 4
# By the same, elements and warps of a program that makes candidates the set, marks them, or settles
# their results. To mark these: 200 us, 270 with 128 elements and 2 warps.
LISTING = {4: (128, 2), 8: (64, 1)}

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
        return _filtered(Table.of(common, n, small=False), common, m, n, invert, words)
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
    blocks = triton.cdiv(every, max(1, ALL_WARPS // warps))
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
    vector = _scanned_at_once(max(2, common.primitive_bitwidth // 8))
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
    size = max(2, common.primitive_bitwidth // 8)
    elements = min(triton.next_power_of_2(triton.cdiv(m, SCANNING)), SCANNED_ELEMENTS[size])
    programs = triton.cdiv(m, elements)
    # Fewer warps if there are more programs, and not more than have test elements.
    wanted = min(triton.cdiv(2 * n, programs), triton.cdiv(n, 32 * _scanned_at_once(size)))
    warps = triton.next_power_of_2(wanted)
    loads = 2 if elements == 16 and programs <= SCANNING and n >= TWICE_SCANNED else 1
    return elements, loads, min(warps, SCAN_LIMIT // elements, SCAN_WARPS)


def _scanned_at_once(size: int) -> int:
    """Test elements of `size` bytes that a thread reads in one access."""
    return min(MOST_SCANNED, SCANNED_BYTES // size)


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
    table: Table, common: Any, words: int, n: int, dtype: Any, programs: int = 0
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
    }
    return Launch(prepare_kernel, (programs,), arguments, (dtype, None))


def _large(common: Any, m: int, n: int, invert: bool, words: Sequence[Any]) -> SetPlan:
    table = Table.of(common, n, small=False)
    shared = _shared(table, common)
    shared["filter_shift"] = 33 - table.filter_words.bit_length() if table.filter_words else 0
    shared |= {"FILTER": table.filter_words > 0, "BLOCK": SET_BLOCK, "num_warps": SET_WARPS}
    blocks = SET_BLOCKS if m * SET_WARPS >= SET_BLOCKS * SET_BLOCK * ALL_WARPS else 1
    probe = {**shared, "m": m, "INVERT": invert, "BLOCKS": blocks}
    steps = [(_prepare(table, common, table.words, n, words[1]), "tw")]
    fused = PREPARING if n <= FUSED_N else 0
    if not fused and table.kind is Kind.EITHER:
        whole = {"words": table.words, "slots": table.slots, "KEY": shared["KEY"]}
        whole["PROGRAMS"] = PREPARING
        steps.append((Launch(range_kernel, (1,), whole), "w"))
    build = {**shared, "n": n, "words": table.words, "PROGRAMS": fused}
    steps.append(
        (Launch(build_kernel, (triton.cdiv(n, SET_BLOCK),), build, (words[1], None)), "tw")
    )
    grid = (triton.cdiv(m, SET_BLOCK * blocks),)
    steps.append((Launch(probe_kernel, grid, probe, (words[0], None, None)), "xwo"))
    return SetPlan(table.words + 2 * PREPARING, _word(common), tuple(steps))


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


def _filtered(
    table: Table, common: Any, m: int, n: int, invert: bool, words: Sequence[Any]
) -> SetPlan:
    kept = CandidateSet.of(table, m)
    every = {**_shared(table, common), **kept.arguments(table.bucket), "PROGRAMS": RANGES}
    every |= {"m": m, "n": n, "INVERT": invert, "ZEROED": BLOCK, "FILL_BLOCK": FILL_BLOCK}

    def step(
        kernel: Any, takes: str, programs: int, block: int, warps: int = 4, *, first: bool = False
    ) -> None:
        given = {**every, "FIRST": first}
        arguments = {key: given[key] for key in kernel.arg_names if key in given}
        arguments |= {"BLOCK": block, "num_warps": warps}
        types = {"x": words[0], "t": words[1], "w": None, "o": None}
        read_as = tuple(types[name] for name in takes)
        steps.append((Launch(kernel, (programs,), arguments, read_as), takes))

    steps = [(_prepare(table, common, kept.ranges, n, words[1], RANGES), "tw")]
    if table.kind is Kind.EITHER:
        step(zero_bitmap_kernel, "w", ZEROING, 2 * BLOCK)
    blocks = triton.cdiv(n, FILL_BLOCK)
    first = triton.cdiv(blocks, FIRST_SHARE)
    step(fill_kernel, "tw", first, FILL_BLOCK, FILL_WARPS, first=True)
    step(judge_kernel, "xtw", 1, JUDGED, JUDGE_WARPS)
    if blocks > first:
        step(fill_kernel, "tw", blocks - first, FILL_BLOCK, FILL_WARPS)
    sifted, (block, warps) = SIFT_BLOCK[table.itemsize], LISTING[table.itemsize]
    step(sift_kernel, "xwo", triton.cdiv(m, sifted), sifted, SIFT_WARPS)
    lists = kept.blocks(block)
    step(keep_candidates_kernel, "w", lists, block, warps)
    step(mark_candidates_kernel, "tw", triton.cdiv(n, block), block, warps)
    step(settle_kernel, "xwo", lists, block, warps)
    return SetPlan(kept.words, _word(common), tuple(steps))


def _word(common: Any) -> torch.dtype:
    return torch.uint64 if common.primitive_bitwidth == 64 else torch.uint32
