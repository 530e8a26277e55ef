"""How COMPARE, MARK, SCAN and SHARED of isin are launched: one or two launches, and no set in device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton

from warpcall_kernels._isin.few import compare_kernel
from warpcall_kernels._isin.mark import mark_kernel, not_found_kernel
from warpcall_kernels._isin.rule import EVERY, Variant, value_bytes
from warpcall_kernels._isin.scan import scan_kernel
from warpcall_kernels._isin.shared import (
    array_of,
    build_bits_kernel,
    look_up_bits_kernel,
    shared_kernel,
)
from warpcall_kernels._isin.table import Kind, SetPlan, factor_of, key_dtype, taken_by
from warpcall_kernels.op.launch import Launch, multiprocessors, shared_bytes, waiting

# Times are from an H100 unless a comment names an H200.

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

# MARK
# Warps of a program, bytes of test elements that a thread loads at a time, and most programs for each multiprocessor.
MARK_WARPS, MARKED_BYTES, MARK_PROGRAMS = 4, 64, 8

# SCAN
SCANNED_BYTES = 16  # of test elements that a thread reads in one access
# SCANNING is the number of programs, unless each would have more elements than SCANNED_ELEMENTS,
# which has the bytes of a value as keys.
SCANNING, SCANNED_ELEMENTS = 256, {4: 32, 8: 16}
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

# SHARED
# Slots for each test element if they have up to FEW_BYTES; otherwise OF_MORE for each, but up to MOST_BYTES, or half as
# many where a program has less than these and OTHER_BYTES.
SLOTS_OF_TEST, FEW_BYTES, OF_MORE, MOST_BYTES, OTHER_BYTES = 16, 1 << 15, 8, 1 << 17, 1 << 14
# Test elements become a bitmap of so many bits if they fit into it, for more than MANY_ELEMENTS elements, or more than
# SOME_ELEMENTS if they have fewer than OF_MORE slots each. With fewer elements, looking at their range takes longer than it saves.
BITMAP_BITS, MANY_ELEMENTS, SOME_ELEMENTS = 1 << 16, 1 << 20, 1 << 16
# Warps of a program: the first entry with at least as many test elements; and for more than MANY_ELEMENTS elements at
# least LEAST_WARPS.
SHARED_WARPS, LEAST_WARPS = ((1 << 8, 8), (1 << 9, 16), (EVERY, 32)), 16
# Warps of a program that makes, or looks up elements in, a bitmap of all values of a type, and test elements of a thread.
BITS_WARPS, BITS_OF_THREAD = 16, 8
# Elements of a thread, and warps of all programs for each multiprocessor: the first entry with at least as many
# elements. For more, a thread has MANY_BYTES of elements, up to MOST_OF_THREAD of them.
OF_THREAD = ((1 << 16, 1, 64), (1 << 18, 2, 64), (1 << 20, 4, 32))
MANY_BYTES, MOST_OF_THREAD, WARPS_OF_MANY = 32, 16, 32


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


def plan_mark(call: Mapping[str, Any], words: Sequence[Any]) -> SetPlan:
    """The launches of MARK. Arguments are as for `plan_compare`."""
    m, n, size = call["m"], call["n"], call["COMMON"].primitive_bitwidth // 8
    block = 32 * MARK_WARPS * min(MARKED_BYTES // size, MOST_OF_THREAD)
    blocks = triton.cdiv(triton.cdiv(n, block), MARK_PROGRAMS * multiprocessors())
    waits = waiting()
    arguments = {**call, "ELEMENTS": triton.next_power_of_2(m), "PDL": waits["PDL"]}
    none = Launch(not_found_kernel, (1,), {**taken_by(not_found_kernel, arguments), "num_warps": 1})
    arguments |= {**waits, "blocks": blocks, "BLOCK": block, "num_warps": MARK_WARPS}
    grid = (triton.cdiv(n, block * blocks),)
    mark = Launch(mark_kernel, grid, arguments, (*words, None), Variant.MARK)
    return SetPlan(0, torch.int32, ((none, "o"), (mark, "xto")))


def plan_scan(call: Mapping[str, Any], words: Sequence[Any]) -> Launch:
    """The launch of SCAN. Arguments are as for `plan_compare`."""
    common, m, n = call["COMMON"], call["m"], call["n"]
    elements, loads, warps = scanning(common, m, n)
    vector = SCANNED_BYTES // value_bytes(common)
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
    size = value_bytes(common)
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


def plan_shared(call: Mapping[str, Any], words: Sequence[Any]) -> Launch:
    """The launch of SHARED. Arguments are as for `plan_compare`."""
    common, m, n = call["COMMON"], call["m"], call["n"]
    key = key_dtype(common)
    size = key.primitive_bitwidth // 8
    kind, bits, slots = shared_set(common, m, n)
    warps = next(count for most, count in SHARED_WARPS if n <= most)
    if m > MANY_ELEMENTS:
        warps = max(warps, LEAST_WARPS)
    programs, shape = looking_up(common, m, warps)
    arguments = {
        **call,
        **shape,
        "factor": factor_of(key),
        "SET": kind.value,
        "KEY": key,
        "BITMAP": array_of(bits // 8),
        "ARRAY": array_of(slots * size),
        "BITS": bits,
        "SLOTS": slots,
        "TESTS": triton.next_power_of_2(n),
    }
    return Launch(shared_kernel, (programs,), arguments, (*words, None), Variant.SHARED)


def plan_build_bits(call: Mapping[str, Any], word: Any) -> Launch:
    """The launch that sets the bits of test elements of a type of 1 or 2 bytes in a workspace.

    Args:
        call: n, COMMON, and how launches wait.
        word: the Triton dtype that test elements are read as; None means their own.
    """
    common, n = call["COMMON"], call["n"]
    block = 32 * BITS_WARPS * BITS_OF_THREAD
    blocks = triton.cdiv(triton.cdiv(n, block), multiprocessors())
    arguments = {**call, **_all_bits(common), "blocks": blocks, "BLOCK": block}
    arguments["num_warps"] = BITS_WARPS
    grid = (triton.cdiv(n, block * blocks),)
    return Launch(build_bits_kernel, grid, taken_by(build_bits_kernel, arguments), (word, None))


def _all_bits(common: Any) -> dict[str, Any]:
    """The arguments that say how a bitmap of all values of a type lies in shared memory."""
    bits = 1 << common.primitive_bitwidth
    return {"KEY": key_dtype(common), "BITMAP": array_of(bits // 8), "BITS": bits}


def plan_look_up_bits(call: Mapping[str, Any], word: Any) -> Launch:
    """The launch that looks up elements in the bitmap of a type of 1 or 2 bytes in a workspace.

    Args:
        call: m, INVERT, COMMON, and how launches wait.
        word: the Triton dtype that elements are read as; None means their own.
    """
    common = call["COMMON"]
    programs, shape = looking_up(common, call["m"], BITS_WARPS)
    arguments = taken_by(look_up_bits_kernel, {**call, **shape, **_all_bits(common)})
    return Launch(look_up_bits_kernel, (programs,), arguments, (word, None, None))


def looking_up(common: Any, m: int, warps: int) -> tuple[int, dict[str, int]]:
    """How many programs look up m elements in sets in shared memory, and what each does."""
    of_many = min(MOST_OF_THREAD, MANY_BYTES // (common.primitive_bitwidth // 8)), WARPS_OF_MANY
    each, of_all = next((shape for most, *shape in OF_THREAD if m <= most), of_many)
    block = 32 * warps * each
    blocks = triton.cdiv(triton.cdiv(m, block), multiprocessors() * of_all // warps)
    shape = {"blocks": blocks, "BLOCK": block, "num_warps": warps}
    return triton.cdiv(m, block * blocks), shape


def shared_set(common: Any, m: int, n: int) -> tuple[Kind, int, int]:
    """What the set of SHARED is, the bits of its bitmap, and its slots."""
    if common.primitive_bitwidth <= 16:
        return Kind.BITMAP, 1 << common.primitive_bitwidth, 0
    tests = triton.next_power_of_2(n)
    size = key_dtype(common).primitive_bitwidth // 8
    most = MOST_BYTES if shared_bytes() >= MOST_BYTES + OTHER_BYTES else MOST_BYTES // 2
    few, more = FEW_BYTES // size, min(OF_MORE * tests, most // size)
    slots = min(SLOTS_OF_TEST * tests, max(few, more))
    looks = m > (MANY_ELEMENTS if slots >= OF_MORE * tests else SOME_ELEMENTS)
    if common.is_floating() or not looks:
        return Kind.HASH, 0, slots
    return Kind.EITHER, BITMAP_BITS, slots
