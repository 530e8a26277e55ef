"""How isin is launched: its variant, its set, and the arguments of its kernels.

| variant | taken when | why | file |
| --- | --- | --- | --- |
| COMPARE | up to 4 test elements; up to 2^8 of few elements (`Rule`); up to SHORT_COMPARED of 1 or 2 bytes | test elements stay in registers or shared memory | few_plan.py, few.py |
| MARK | up to 4 to 16 elements in 2^15 test elements or more, and up to 32 if these are not many (`MARKED` in rule.py) | the test elements are read once, without a set | few_plan.py, mark.py |
| SCAN | few elements in more test elements, at most 2^25 pairs of them, 2^23 of fp64 (`SCANNED` in rule.py) | each program compares some elements with all test elements, which takes one launch and no set | few_plan.py, scan.py |
| SHARED | up to 2^14 test elements of 1 or 2 bytes, 2^12 of 4, 2^11 of 8 (`MOST_SHARED` in rule.py) | each program makes a set of them in shared memory, which takes one launch and nothing in device memory | few_plan.py, shared.py |
| LARGE | all others | many programs zero a set, and then build it | kernels.py |
| FILTERED | more test elements than the L2 holds a hash set of (`Rule`) | a Bloom filter rejects most elements, a second one most test elements, and the other test elements become a hash set; as LARGE if a sample says that many elements would pass | filtered_plan.py, bloom.py, filtered.py |
| REVERSED | as many test elements as elements or some times as many, and 2^15 of them or more (`Rule`) | a Bloom filter of the elements rejects most test elements, and the others become a hash set | reversed.py |

The set of LARGE is one of these, that of REVERSED and FILTERED one of the last two. That of SHARED is a
BITMAP or, in shared memory, a HASH, or EITHER: see `shared_set`.

| set | taken when | why |
| --- | --- | --- |
| BITMAP | types of 1 or 2 bytes, or 32-bit types with FULL_BITMAP_N test elements or more | a bit for every value of the type; no collisions. Of 1 or 2 bytes, each program sets bits in shared memory first, and looks up elements in a copy there (shared.py): 21,491,936 bf16 in 1,118,143: 28 us, a copy's time, 71 by device memory alone |
| HASH | other floats | a hash set, with a filter if it is much larger than the L2 |
| EITHER | other integers | the device looks at the range of the members: a bitmap of that range if it fits into the table, else a hash set; so nothing waits for the GPU |

`choose` is in rule.py. What each variant reaches is in docs/benchmarks/h200.md and
docs/benchmarks/isin-grid.md, what the constants were chosen from in
docs/benchmarks/h200-constants.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from warpcall_kernels._isin.few_plan import (
    plan_build_bits,
    plan_compare,
    plan_look_up_bits,
    plan_mark,
    plan_scan,
    plan_shared,
)
from warpcall_kernels._isin.filtered_plan import plan_filtered
from warpcall_kernels._isin.hash_set import HEADER
from warpcall_kernels._isin.kernels import (
    build_kernel,
    prepare_kernel,
    probe_kernel,
    range_kernel,
)
from warpcall_kernels._isin.reversed import add_elements_kernel, collect_kernel, keep_kernel
from warpcall_kernels._isin.rule import EVERY, Variant, choose
from warpcall_kernels._isin.table import (
    BLOOM_WORD,
    RANGES,
    CandidateSet,
    Kind,
    SetPlan,
    Table,
    factor_of,
    key_dtype,
    taken_by,
)
from warpcall_kernels.op.declaration import TensorLike, dtype_name
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import Launch, Layout, LayoutKey, waiting

# The constants were measured on an H200 or H100 (compute capability 9.0, 132 multiprocessors).
# Every other GPU uses them, too, and may lose speed by it, never correctness. Times are from an
# H100 unless a comment names an H200. `python -m bench.kernels tune isin` measures some again.

# LARGE, REVERSED and FILTERED: zeroing the table, and finding the range of the members
BLOCK = 1024  # words or members that one of the few programs of this step handles at a time
PREPARING = 128  # programs of this step, each of which finds the range of its members
# The same of MANY_MEMBERS or more members. 2^18 int32 in 2^18 by LARGE on an H200, sparse and dense: 20.0 and 16.4 us,
# 20.1 and 16.7 with 128 programs.
PREPARING_MANY, MANY_MEMBERS = 256, 1 << 18
# Members from which on they look at a sample before, and do not look at all if that says enough. On an H200, sparse
# and dense: 2^20 int32 in 2^20 by LARGE: 71 and 45.3 us, 75 and 45.9 otherwise. 2^18 in 2^18: 20.4 and 17.4, 19.9
# and 16.4.
SAMPLED_MEMBERS = 1 << 19
# Members up to which each program that builds combines these ranges. For more, another launch does.
# 2^10 sparse int32 in 2^20 on an H200: 62 us, and 76 with two launches and a memset before the
# build.
FUSED_N = 1 << 22
# Elements of REVERSED up to which each program that adds some finds the range of all of them instead, while the
# workspace is zeroed. On an H200, sparse and dense: 2^10 int64 in 2^16: 11.5 and 10.5 us, 12.6 and 11.3 otherwise.
RANGED_N = 1 << 12
# Such a program has the values and warps of the first entry with at least as many bytes as all elements. By LARGE,
# as it was: 2^14 int64 in 2^10: 9.4 and 8.0 us, 9.8 and 7.7 with 256 values; in 2^12: 9.9 and 8.2, 26.9 and 25.2
# with 32.
RANGED_BLOCKS = ((1 << 13, 32, 1), (1 << 14, 128, 4), (1 << 15, 256, 8))
# Test elements up to which a launch of LARGE asks for the next one when it begins, so that they overlap; the same for
# a bitmap of all values of a type; and elements up to which the first two launches of REVERSED do. Programs that wait
# take the place of others. On an H200, dense and sparse, overlapped and not: 2^14 int32 in 2^16 by REVERSED: 11.4 and
# 11.5 us, 11.9 and 11.7; 2^18 int64 in 2^18: 21.8 and 23.2, 21.7 and 21.6; 2^20 int32 in 2^20 by LARGE: 40 and 45, 35
# and 45; 2^20 bytes in 2^20: 32, 45.
OVERLAPPING, OVERLAPPING_IN_BITS, OVERLAPPING_ADDED = 1 << 18, 1 << 20, 1 << 17

# LARGE: values and warps of a program that builds: the first entry with at least as many test elements. The threads of
# one warp wait for no other. On an H200, sparse and dense: 2^22 int32 in 2^20: 68 and 54 us, 72 and 55 with 128 values
# and 2 warps. 2^12 sparse int32 in 2^14: 10.1 us, 10.7 with 64 values. A bitmap of all values of 32 bits has more
# values at a time.
BUILT = ((1 << 15, 32, 1), (EVERY, 64, 1))
BUILT_IN_ALL_BITS = ((EVERY, 128, 2),)
# Elements of a block, warps, and blocks of a program of LARGE or REVERSED that looks up: the first entry with
# at least as many elements; and the same for a bitmap of all values of 32 bits. On an H200, LARGE, sparse, dense and
# found: 2^18 int64 in 2^11: 11.5, 9.0 and 10.4 us, 11.6, 9.6 and 11.4 with two blocks of 64 by one warp; 2^20: 17.4,
# 11.7 and 16.1, 16.9, 14.0 and 16.4 with 128 by 2 warps.
LOOKED_UP = (
    (1 << 17, 128, 4, 1),
    (1 << 18, 256, 8, 1),
    (1 << 20, 256, 4, 1),
    (1 << 21, 512, 8, 1),
    (EVERY, 256, 4, 2),
)
# The first entry is taken for up to so many elements if there are at least as many test elements. 2^20 int32 in 2^20 by
# LARGE: 44.3 and 33.9 us, 45.0 and 33.7 otherwise.
LOOKED_UP_FIRST = 1 << 20
LOOKED_UP_IN_ALL_BITS = ((1 << 21, 256, 4, 2), (EVERY, 256, 4, 4))

# REVERSED: elements and warps of a program that adds elements to the filter, as above. On an H200, 2^16 int32 in
# 2^18, sparse and dense: 13.6 and 13.2 us, 15.4 and 14.8 with 512; 2^17 in 2^17: 14.9 and 12.5, 15.1 and 14.5 with 64;
# 2^20 int64 in 2^20: 51.6 and 37.6, 52.1 and 39.0 with 8 warps, 51.7 and 42.5 with 256.
ADDED = ((1 << 16, 64, 1), (1 << 17, 256, 8), (EVERY, 512, 4))
# Words of the set that such a program zeroes at a time, and at most. If the elements are dense, only the words of a
# bitmap are zeroed. 2^18 int64 in 2^18: 21.5 and 17.4 us, 22.4 and 19.9 when the launch before zeroed all; with at most
# 2^9 words: 23.0 and 18.7.
ZEROED, MOST_ZEROED = 512, 1 << 11
# Slots up to which all of them are zeroed, while the launch before runs. On an H200, 2^14 int64 in 2^16: 11.6 and 11.3
# us, 11.9 and 11.1 otherwise.
ZEROED_FIRST = 1 << 18
# Test elements and warps of a program that keeps them, and for more than MANY_KEPT of them. On an H200, 2^10
# sparse int32 in 2^20: 15.6 us, 19.4 with 64; 2^8 dense int32 in 2^22: 37.6 us, 40.6 with 128 and 2.
KEEP_BLOCK, KEEP_WARPS, MANY_BLOCK, MANY_WARPS, MANY_KEPT = 128, 4, 256, 2, 1 << 20

# LARGE and REVERSED: the table
# Slots for each of few members. Few of them have to be looked for in a second bucket then. 2^12
# sparse int32 in 2^14 by LARGE: 10.1 us, 11.5 with 4 slots.
SLOTS_OF_FEW = 16
# The limit of a table of LARGE that has them, and of one that has 8 slots for each. On an H200, sparse and dense: 2^18
# int32 in 2^18: 20.2 and 16.6 us, 21.5 and 15.8 with 4 slots; int64 in 2^17: 19.5 and 15.5, 20.7 and 14.8.
FEW_BYTES, DOUBLED_BYTES = 4 << 20, 8 << 20
# Slots for each member of a table of LARGE in which more than MANY elements are looked up, so that it mostly stays in
# the L1, and the most with keys of 32 bits. On an H200, 2^24 sparse int32 in 2^12: 67 us with 2^15 slots, 81 with 2^16.
MANY, SLOTS_OF_MANY, MOST_OF_MANY = 1 << 21, 8, 1 << 16
# The limit of a table of REVERSED that has them.
FEW_SLOTS = 1 << 18
# A table of REVERSED has at least one slot for each TESTS_A_SLOT of up to BITMAP_TESTS test
# elements. A bitmap in its place holds a range of four values for each test element then. With more
# test elements, it has at least SLOTS_OF_MANY_TESTS. 101 int32 in 2^22: 33 us, 39 with 2^18. With fewer, all programs
# read the same few lines of the filter at first: 2^8 sparse int32 in 2^22 on an H200: 25 us, 74 with 2^12.
TESTS_A_SLOT, BITMAP_TESTS, SLOTS_OF_MANY_TESTS = 8, 1 << 20, 1 << 16
# Members up to which no insertion reads a slot before its atomic. For more, it does in blocks of which a member equals
# the first one, because the atomics of equal members contend. 2^12 sparse int32 in 2^14 by LARGE: 11.5 us, 13.5 if
# slots are read. On an H200, sparse and dense: 2^22 int32 in 2^20 by LARGE: 68 and 54 us, 85 and 63 if slots are always
# read. With all members but one equal: 59, 134. 2^20 int32 in 2^22 by REVERSED with 16 different elements: 71, 163 if
# they are never read.
UNREAD = 1 << 18
# Test elements from which on dense elements of REVERSED have a bitmap beside that of the test elements.
# 2^12 dense int32 in 2^18: 12.8 us, 15.6 by LARGE, where all test elements set bits.
TWO_BITMAPS = 1 << 17

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


# Unsigned integers that torch hardly computes with, and what has the same bits.
UNSIGNED = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}
TAKEN = (*DTYPES, *UNSIGNED)


def check_dtypes(elements: TensorLike, test_elements: TensorLike) -> None:
    """Raise InvalidInput unless both have a dtype that is `TAKEN`."""
    for name, t in (("elements", elements), ("test_elements", test_elements)):
        if t.dtype not in TAKEN:
            allowed = ", ".join(map(dtype_name, TAKEN))
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
    """The launches of a variant.

    Args:
        words: the Triton dtypes that elements and test elements are read as; None means their own.
    """
    call = {"m": m, "n": n, "INVERT": invert, "COMMON": common}
    if variant is Variant.COMPARE:
        return plan_compare(call, words)
    if variant is Variant.SHARED:
        return plan_shared(call, words)
    if variant is Variant.MARK:
        return plan_mark(call, words)
    if variant is Variant.SCAN:
        return plan_scan(call, words)
    if variant is Variant.FILTERED:
        table = Table.of(common, n)
        kept = CandidateSet.of(table, m)
        prepare = _prepare(table, common, kept.ranges, n, words[1], RANGES)
        shared = {**_shared(table, common), **waiting()}
        return plan_filtered(call, table, kept, shared, prepare, words)
    if variant is Variant.REVERSED:
        return _reversed(Table.of(common, m), common, m, n, invert, words)
    return _large(common, m, n, invert, words)


def _shared(table: Table, common: Any) -> dict[str, Any]:
    """The arguments that all kernels of a set take."""
    return {
        "slots": table.slots,
        "factor": factor_of(key_dtype(common)),
        "shift": table.shift,
        "SET": table.kind.value,
        "BUCKET": table.bucket,
        "COMMON": common,
        "KEY": key_dtype(common),
    }


def _prepare(
    table: Table,
    common: Any,
    words: int,
    n: int,
    dtype: Any,
    programs: int,
    *,
    ranged: int = 0,
    early: bool = False,
) -> Launch:
    """The launch that zeroes the first words of the workspace, and finds the range of n members.

    Args:
        dtype: the Triton dtype that the members are read as, or None for their own.
        ranged: not 0 if the next launch finds the range itself.
        early: whether this launch asks for the next one when it begins.
    """
    arguments = {
        "n": n,
        "words": words,
        "slots": table.slots,
        "RANGE": table.kind is Kind.EITHER and not ranged,
        "SAMPLED": n >= SAMPLED_MEMBERS,
        "COMMON": common,
        "KEY": key_dtype(common),
        "PROGRAMS": programs,
        "BLOCK": BLOCK,
        "EARLY": early,
    }
    return Launch(prepare_kernel, (programs,), arguments, (dtype, None))


def _preparing(n: int) -> int:
    """The programs of this launch for n members of LARGE or REVERSED."""
    return PREPARING_MANY if n >= MANY_MEMBERS else PREPARING


def _large(common: Any, m: int, n: int, invert: bool, words: Sequence[Any]) -> SetPlan:
    table = Table.of(common, n)
    wanted, most = SLOTS_OF_FEW * n, FEW_BYTES // table.itemsize
    if m > MANY:
        wanted = SLOTS_OF_MANY * n
        most = MOST_OF_MANY if table.itemsize == 4 else most
    else:
        most = max(most, min(2 * table.slots, DOUBLED_BYTES // table.itemsize))
    table = _with_room(table, wanted, most)
    shared = _shared(table, common)
    in_bits = table.kind is Kind.BITMAP
    overlapping = OVERLAPPING_IN_BITS if in_bits else OVERLAPPING
    waits = waiting()
    overlapped = {**waits, "EARLY": waits["PDL"] and n <= overlapping}
    shared |= {"filter_shift": table.filter_shift, "FILTER": table.filter_words > 0, **overlapped}
    build: dict[str, Any] = {**shared, "n": n}
    probe: dict[str, Any] = {**shared, "m": m, "INVERT": invert}
    programs = _preparing(n)
    zero = _prepare(table, common, table.words, n, words[1], programs, early=shared["EARLY"])
    steps = [(zero, "tw")]
    if common.primitive_bitwidth <= 16:
        steps.append((plan_build_bits(build, words[1]), "tw"))
        steps.append((plan_look_up_bits(probe, words[0]), "xwo"))
        return SetPlan(table.words, table.word, tuple(steps))
    fused = programs if n <= FUSED_N else 0
    if not fused and table.kind is Kind.EITHER:
        whole = {"words": table.words, "slots": table.slots, "KEY": shared["KEY"]}
        whole |= {"PROGRAMS": programs, **overlapped}
        steps.append((Launch(range_kernel, (1,), whole), "w"))
    build |= {"words": table.words, "PROGRAMS": fused, "LOOK": _look(n)}
    build |= _shape(BUILT_IN_ALL_BITS if in_bits else BUILT, n)
    probe |= _shape(LOOKED_UP_IN_ALL_BITS, m) if in_bits else _looked_up(m, n)
    steps.append((_over(n, build_kernel, build, (words[1], None)), "tw"))
    steps.append((_over(m, probe_kernel, probe, (words[0], None, None), probe["BLOCKS"]), "xwo"))
    return SetPlan(table.words + 2 * programs, table.word, tuple(steps))


def _ranged(table: Table, n: int) -> int:
    """The room for n elements whose range each program that adds some finds itself; 0 for more elements."""
    return triton.next_power_of_2(n) if table.kind is Kind.EITHER and n <= RANGED_N else 0


def _shape(shapes: tuple[tuple[int, ...], ...], size: int) -> dict[str, int]:
    """The values of a block, the warps, and the blocks of a program, by the first entry with this size."""
    shape = next(shape for most, *shape in shapes if size <= most)
    return dict(zip(("BLOCK", "num_warps", "BLOCKS"), shape, strict=False))


def _looked_up(m: int, n: int) -> dict[str, int]:
    """The same of a program that looks up some of m elements among n test elements, not in a bitmap of all values."""
    return _shape(LOOKED_UP, 0 if m <= min(n, LOOKED_UP_FIRST) else m)


def _look(n: int) -> str:
    """LOOK of `load_members` for n members of more than 16 bits."""
    return "equal" if n > UNREAD else "never"


def _over(
    values: int, kernel: Any, arguments: Mapping[str, Any], types: tuple[Any, ...], blocks: int = 1
) -> Launch:
    """A launch of as many programs as so many values need."""
    grid = (triton.cdiv(values, arguments["BLOCK"] * blocks),)
    return Launch(kernel, grid, taken_by(kernel, arguments), types)


def _with_room(table: Table, wanted: int, most: int) -> Table:
    """The table with so many slots, or with as many as it has if these are more than `most`."""
    if table.kind is Kind.BITMAP:
        return table
    return table._replace(slots=max(table.slots, triton.next_power_of_2(min(most, wanted))))


def _reversed(
    table: Table, common: Any, m: int, n: int, invert: bool, words: Sequence[Any]
) -> SetPlan:
    least = n // TESTS_A_SLOT if n <= BITMAP_TESTS else SLOTS_OF_MANY_TESTS
    wanted = max(SLOTS_OF_FEW * m, least)
    table = _with_room(table._replace(filter_words=0), wanted, FEW_SLOTS)
    few = table.slots <= FEW_SLOTS and n >= TWO_BITMAPS
    two = few and table.kind is Kind.EITHER
    programs, ranged = _preparing(m), _ranged(table, m)
    # Behind the header are a filter with a byte for each slot, or a bitmap of the elements; ranges; and the set.
    zeroed = HEADER + (table.slots if two else table.slots // table.itemsize)
    members = zeroed + 2 * programs
    waits = waiting()
    early = waits["PDL"] and m <= OVERLAPPING_ADDED
    shared: dict[str, Any] = {**_shared(table, common), **waits, "EARLY": early}
    shared |= {"TWO_BITMAPS": two, "members": members, "INVERT": invert}
    shared["bloom_words"] = table.slots // BLOOM_WORD
    shape = _shape(RANGED_BLOCKS, ranged * table.itemsize) if ranged else _shape(ADDED, m)
    add = {**shared, **shape, "n": m, "LOOK": _look(m), "ranges": zeroed}
    add |= {"PROGRAMS": programs, "RANGED": ranged}
    add |= {"ZEROED": ZEROED, "ZEROED_FIRST": table.slots <= ZEROED_FIRST}
    adding = max(triton.cdiv(m, add["BLOCK"]), triton.cdiv(table.slots, MOST_ZEROED))
    block, warps = (KEEP_BLOCK, KEEP_WARPS) if n <= MANY_KEPT else (MANY_BLOCK, MANY_WARPS)
    look = "always" if few and n > UNREAD else _look(n)  # few are kept
    keep = {**shared, "n": n, "LOOK": look, "BLOCK": block, "num_warps": warps}
    collect = {**shared, **_looked_up(m, n), "m": m, "n": n}
    prepare = _prepare(table, common, zeroed, m, words[0], programs, ranged=ranged, early=early)
    added = taken_by(add_elements_kernel, add)
    steps = (
        (prepare, "xw"),
        (Launch(add_elements_kernel, (adding,), added, (words[0], None)), "xw"),
        (_over(n, keep_kernel, keep, (words[1], None)), "tw"),
        (_over(m, collect_kernel, collect, (*words, None, None)), "xtwo"),
    )
    return SetPlan(members + table.words, table.word, steps)
