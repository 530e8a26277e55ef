"""How COMPARE, SCAN and SEARCH of isin are launched: one launch, and no set in device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton

from warpcall_kernels._isin.few import compare_kernel
from warpcall_kernels._isin.rule import Variant, scanned_size
from warpcall_kernels._isin.scan import scan_kernel
from warpcall_kernels._isin.search import search_kernel
from warpcall_kernels._isin.table import key_dtype
from warpcall_kernels.op.launch import Launch

# Times are from an H100.

# COMPARE
LEAST_TESTS = 4  # test elements that are compared at least; past the end, the last one again
# Elements of a program of 4 warps: one for each thread, or eight from SOME elements on.
SHORT_BLOCK, COMPARED_BLOCK, SOME = 128, 1024, 1 << 17

# SCAN
SCANNED_BYTES = 16  # of test elements that a thread reads in one access
# SCANNING is the number of programs, unless each would have more elements than SCANNED_ELEMENTS,
# which has the bytes of a value as keys (2 for 1, too).
SCANNING, SCANNED_ELEMENTS = 256, {2: 16, 4: 32, 8: 16}
# More elements of 64 bits than these have half as many programs. 2^11 in 2^14: 8.5 us, 10.
WIDE_SCANNED = 1 << 10
# The most warps, and the most elements of a program times its warps, because registers are few.
SCAN_WARPS, SCAN_LIMIT = 16, 128
# Test elements from which on a thread of a program of 16 elements reads twice before it compares.
# 2^12 int64 in 2^14: 11.6 us, 12.0 with one access.
TWICE_SCANNED = 1 << 12

# SEARCH. An entry begins with the least test elements that it is for. The first that fits is taken.
SEARCHING = ((512, 2048, 8), (0, 1024, 4))  # test elements; elements of a program and its warps
SEARCHED_WORDS = ((512, 64), (0, 32))  # test elements; words of 32 bits of the bitmap
# Each program makes a set. So there are only programs for this number of warps in all, whose blocks
# of elements interleave. 2^26 sparse int32 in 2^4: 122 us, 125 with twice as many warps.
SEARCHING_WARPS = 132 * 32
# The same for at least SOME_WIDE elements of 64 bits, whose sets take longer to make. 2^22 sparse
# int64 in 2^7: 26.7 us, 29.2 with twice as many.
WIDE_SEARCHING_WARPS, SOME_WIDE = 132 * 16, 1 << 21
# If programs of one block have more warps than this in all, each has at least two blocks. 2^20
# sparse int32 in 2^8: 9.9 us, 11.4 with one.
TWICE_SEARCHED = 132 * 16


def plan_compare(call: Mapping[str, Any], words: Sequence[Any]) -> Launch:
    """The launch of COMPARE.

    Args:
        call: m and n, INVERT and COMMON.
        words: as for `launches` of plan.py.
    """
    m = call["m"]
    block = COMPARED_BLOCK if m >= SOME else SHORT_BLOCK
    tests = max(LEAST_TESTS, triton.next_power_of_2(call["n"]))
    arguments = {**call, "TESTS": tests, "BLOCK": block}
    grid = (triton.cdiv(m, block),)
    return Launch(compare_kernel, grid, arguments, (*words, None), Variant.COMPARE)


def plan_scan(call: Mapping[str, Any], words: Sequence[Any]) -> Launch:
    """The launch of SCAN. Arguments are as for `plan_compare`."""
    common, m, n = call["COMMON"], call["m"], call["n"]
    elements, loads, warps = scanning(common, m, n)
    vector = SCANNED_BYTES // scanned_size(common)
    chunks = triton.cdiv(n, 32 * warps * vector * loads)
    arguments = {
        **call,
        "starts": 1 << (chunks.bit_length() - 1),
        "KEY": key_dtype(common),
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


def plan_search(call: Mapping[str, Any], words: Sequence[Any]) -> Launch:
    """The launch of SEARCH. Arguments are as for `plan_compare`."""
    common, m, n = call["COMMON"], call["m"], call["n"]
    block, warps = next((block, warps) for least, block, warps in SEARCHING if n >= least)
    bitmap = next(count for least, count in SEARCHED_WORDS if n >= least)
    every = triton.cdiv(m, block)
    many_wide = common.primitive_bitwidth == 64 and m >= SOME_WIDE
    all_warps = WIDE_SEARCHING_WARPS if many_wide else SEARCHING_WARPS
    blocks = triton.cdiv(every, all_warps // warps)
    blocks = max(blocks, 2 if every * warps > TWICE_SEARCHED else 1)
    arguments = {
        **call,
        "KEY": key_dtype(common),
        "LEVELS": max(1, (n - 1).bit_length()),
        "WORDS": 0 if common.is_floating() else bitmap,
        "BLOCK": block,
        "BLOCKS": blocks,
        "num_warps": warps,
    }
    grid = (triton.cdiv(m, block * blocks),)
    return Launch(search_kernel, grid, arguments, (*words, None), Variant.SEARCH)
