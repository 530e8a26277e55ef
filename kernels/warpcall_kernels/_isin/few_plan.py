"""How COMPARE, SCAN and SEARCH of isin are launched: one launch, and no set in device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton

from warpcall_kernels._isin.few import compare_kernel
from warpcall_kernels._isin.rule import EVERY, Variant, scanned_size
from warpcall_kernels._isin.scan import scan_kernel
from warpcall_kernels._isin.search import search_kernel
from warpcall_kernels._isin.table import key_dtype
from warpcall_kernels.op.launch import Launch

# Times are from an H100 unless a comment names an H200.
MULTIPROCESSORS = 132

# COMPARE
# Elements of a program of 4 warps, for SOME elements or more; WIDE_COMPARED_BLOCK of 64 bits, so
# that a thread reads them in two accesses. 2^22 int64 in 2^2 on an H200: 13.8 us, 15.0 with 1024.
COMPARED_BLOCK, WIDE_COMPARED_BLOCK, SOME = 1024, 512, 1 << 17
# Elements of a program for fewer, one for each thread. If there are at least as many test elements
# as threads, they are loaded once and shared. Otherwise each thread loads all of them into its
# registers. 2^16 int64 in 2^6 on an H200: 5.0 us, 5.8 with 128 threads.
SHORT_BLOCK, BLOCK_OF_64 = 128, 64
# For up to FEW elements, test elements of SPLIT_BYTES or more are split over so many threads that each
# has BYTES_OF_THREAD. On an H200: 2^8 int64 in 2^8: 4.5 us, 5.0 with all in each; 2^10 in 2^7: 4.5 and 4.7.
FEW, SPLIT_BYTES, BYTES_OF_THREAD = 1 << 12, 1 << 10, 1 << 8
# Otherwise GROUPED test elements or more are compared in so many groups. 2^14 int32 in 2^8 on an H200:
# 4.6 us, 4.8 with one.
GROUPS, GROUPED = 4, 1 << 7

# SCAN
SCANNED_BYTES = 16  # of test elements that a thread reads in one access
# SCANNING is the number of programs, unless each would have more elements than SCANNED_ELEMENTS,
# which has the bytes of a value as keys (2 for 1, too).
SCANNING, SCANNED_ELEMENTS = 256, {2: 16, 4: 32, 8: 16}
# More elements of 64 bits than these have half as many programs. 2^11 in 2^14: 8.5 us, 10.
WIDE_SCANNED = 1 << 10
# The most warps, and the most elements of a program times its warps, because registers are few.
SCAN_WARPS, SCAN_LIMIT = 16, 128
# The most warps of all programs, if these are more than SCANNING. 2^13 int64 in 2^11 on an H200: 6.3
# us, 7.1 with twice as many; but 2^10 in 2^14 on an H100, by 256 programs: 8.4, 11.3 with half of its.
ALL_SCAN_WARPS = 2048
# Test elements from which on a thread of a program of 16 elements reads twice before it compares.
# 2^12 int64 in 2^14: 11.6 us, 12.0 with one access.
TWICE_SCANNED = 1 << 12
# The same of 64 bits if there are more programs. 2^14 int64 in 2^9 on an H200: 6.4 us, 6.7 with one access; in 2^11:
# 8.7 and 8.9.
WIDE_TWICE_SCANNED = 1 << 9

# SEARCH, by the bytes of a key: elements of a program, its warps, and the warps for each
# multiprocessor in all. An entry begins with the least test elements and the most elements that it
# is for. The first that fits is taken. With fewer elements for each warp, fewer wait for a search of
# the tree. But each program makes a set, so there are only programs for so many warps, whose blocks of
# elements interleave. Sparse int64 on an H200: 2^16 in 2^7: 5.8 us, 6.4 with 1024 elements and 4
# warps; 2^20 in 2^8: 12.1, 14.7 with 4 warps; 2^22 in 2^7: 23.9, 26.1 with
# the last entry. Dense int64: 2^26 in 2^4: 155, 166 with the entry before. Sparse int32: 2^17 in 2^9:
# 6.9, 9.6 with 256 elements and 4 warps; 2^26 in 2^4: 122, 125 with 64 warps for each multiprocessor.
SEARCHING = {
    4: (
        (512, 1 << 17, 1024, 8, 32),
        (512, EVERY, 2048, 8, 32),
        (0, EVERY, 1024, 4, 32),
    ),
    8: (
        (512, 1 << 17, 1024, 8, 32),
        (512, EVERY, 2048, 8, 32),
        (128, 1 << 17, 512, 4, 32),
        (128, 1 << 20, 1024, 8, 16),
        (0, 1 << 16, 256, 4, 32),
        (0, 1 << 17, 512, 4, 32),
        (0, 1 << 22, 1024, 8, 32),
        (0, EVERY, 1024, 4, 16),
    ),
}
SEARCHED_WORDS = ((512, 64), (0, 32))  # least test elements; words of 32 bits of the bitmap
# If programs of one block have more warps than this in all, each has at least two blocks. 2^20
# sparse int32 in 2^8: 9.9 us, 11.4 with one.
TWICE_SEARCHED = MULTIPROCESSORS * 16


def plan_compare(call: Mapping[str, Any], words: Sequence[Any]) -> Launch:
    """The launch of COMPARE.

    Args:
        call: m and n, INVERT and COMMON.
        words: as for `launches` of plan.py.
    """
    m, size = call["m"], call["COMMON"].primitive_bitwidth // 8
    tests = triton.next_power_of_2(call["n"])
    block = BLOCK_OF_64 if tests == BLOCK_OF_64 else SHORT_BLOCK
    warps = block // 32
    if m >= SOME:
        block, warps = WIDE_COMPARED_BLOCK if size == 8 else COMPARED_BLOCK, 4
    splits = m <= FEW and tests * size >= SPLIT_BYTES
    split = tests * size // BYTES_OF_THREAD if splits else 1
    groups = GROUPS if tests >= GROUPED and not splits else 1
    block //= split
    arguments = {**call, "TESTS": tests, "GROUPS": groups, "SPLIT": split, "BLOCK": block}
    arguments["num_warps"] = warps
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
    twice = TWICE_SCANNED if size < 8 or programs <= SCANNING else WIDE_TWICE_SCANNED
    loads = 2 if elements == 16 and n >= twice else 1
    most_warps = min(SCAN_LIMIT // elements, SCAN_WARPS)
    if programs > SCANNING:
        each = ALL_SCAN_WARPS // triton.next_power_of_2(programs)
        most_warps = min(most_warps, max(1, each))
    return elements, loads, min(warps, most_warps)


def plan_search(call: Mapping[str, Any], words: Sequence[Any]) -> Launch:
    """The launch of SEARCH. Arguments are as for `plan_compare`."""
    common, m, n = call["COMMON"], call["m"], call["n"]
    size = key_dtype(common).primitive_bitwidth // 8
    block, warps, each = next(
        shape for least, most, *shape in SEARCHING[size] if n >= least and m <= most
    )
    bitmap = next(count for least, count in SEARCHED_WORDS if n >= least)
    every = triton.cdiv(m, block)
    blocks = triton.cdiv(every, MULTIPROCESSORS * each // warps)
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
