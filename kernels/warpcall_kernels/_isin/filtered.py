"""The kernels of isin for more test elements than the L2 holds a hash set of.

Building such a hash set would cost an access to DRAM for each test element. Instead a Bloom filter
of them is built, which the L2 holds, and each element is looked up in it. The *candidates*, which
are the elements that the filter does not reject, are listed and become a hash set, which the L2
holds too. The test elements mark the candidates that they equal, so that the result is exact.

If there are more candidates than the list has room for, a flag is set. The launches that follow
read it: they build the hash set of all test elements after all, and look up the candidates there.
If the range of the test elements fits into a bitmap, they become that bitmap, and most launches do
nothing. So nothing waits for the GPU. The workspace has room for each of these.

The workspace, in words of a key:

| from | what |
| --- | --- |
| 0 | the set of the candidates: HEADER words, which also hold the range of the test elements, and its table |
| `marks` | a byte for each slot of that table, and one for key 0 |
| `bloom` | the filter, in words of 32 bits |
| `counts` | how many candidates each of SEGMENTS parts of the list has; all up to here is zeroed first |
| `ranges` | the ranges that the programs of `prepare_kernel` found |
| `listed` | the keys of the candidates, then their indices |
| `members` | HEADER words, and the bitmap or the hash set of all test elements |
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._isin.hash_set import (
    OVERFLOW,
    TABLE,
    contains,
    has_bits,
    insert,
    key_range,
    keys_of,
    load_keys,
    mix,
    set_bits,
    store_block,
)
from warpcall_kernels._isin.kernels import find_marks, mark_slots, whole_range


@triton.jit
def _bloom_bits(mixed: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """The bits that a key sets in its word of the filter, independent of the number of the word."""
    one = tl.full(mixed.shape, 1, tl.uint32)
    other = mixed * 0x9E3779B1
    bits = one << (other >> 27)
    for bit in tl.static_range(1, BITS):
        bits |= one << (other >> (27 - 5 * bit) & 31)
    return bits


@triton.jit
def _is_dense(
    ws_ptr: tl.tensor, slots: tl.tensor, SET: tl.constexpr, KEY: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """What `key_range` says, or that floats are never dense."""
    if SET == "either":
        low, span, dense = key_range(ws_ptr, slots, KEY)
    else:
        low, span, dense = tl.zeros([], KEY), tl.zeros([], KEY), tl.program_id(0) < 0
    return low, span, dense


@triton.jit
def _zero_share(ptr: tl.tensor, words: tl.tensor, KEY: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Zero this program's share of the words behind `ptr`."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    while first < words:
        offsets = first + tl.arange(0, BLOCK)
        tl.store(ptr + offsets, tl.zeros([BLOCK], KEY), mask=offsets < words)
        first += tl.num_programs(0).to(tl.int64) * BLOCK


@triton.jit
def zero_bitmap_kernel(
    ws_ptr: tl.tensor,
    ranges: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the range of the test elements into the header, and zero their bitmap if they are dense.

    PROGRAMS is how many ranges `prepare_kernel` has written.
    """
    _low, span, dense = whole_range(ws_ptr, ranges, slots, KEY, PROGRAMS)
    if dense:
        words = (span // KEY.primitive_bitwidth).to(tl.int64) + 1
        _zero_share(ws_ptr + members + TABLE, words, KEY, BLOCK)


@triton.jit
def fill_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    bloom: tl.tensor,
    bloom_shift: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    BITS: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add a block of test elements to the filter, or to the bitmap if they are dense.

    The filter is read first, because atomics of equal values would contend.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    low, _span, dense = _is_dense(ws_ptr, slots, SET, KEY)
    if dense:
        set_bits(ws_ptr + members, key - low, valid, KEY)
    else:
        mixed = mix(key, factor, KEY)
        words = (ws_ptr + bloom).to(tl.pointer_type(tl.uint32))
        word = words + (mixed >> bloom_shift)
        bits = _bloom_bits(mixed, BITS)
        seen = tl.load(word, mask=valid, other=0)
        tl.atomic_or(word, bits, mask=valid & ((seen & bits) != bits), sem="relaxed")


@triton.jit
def _list(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    index: tl.tensor,
    candidate: tl.tensor,
    counts: tl.tensor,
    listed: tl.tensor,
    room: tl.tensor,
    KEY: tl.constexpr,
    SEGMENTS: tl.constexpr,
) -> None:
    """Append candidates to this program's segment of the list, or set the flag if it is full."""
    order = tl.cumsum(candidate.to(tl.int32), 0)
    count = tl.max(order, 0)
    if count > 0:
        segment = tl.program_id(0) % SEGMENTS
        before = tl.atomic_add(ws_ptr + counts + segment, count.to(KEY), sem="relaxed").to(tl.int32)
        at = before + order - 1
        fits = candidate & (at < room)
        at += segment * room
        tl.store(ws_ptr + listed + at, key, mask=fits)
        tl.store(ws_ptr + listed + SEGMENTS * room + at, index, mask=fits)
        if before + count > room:
            tl.store(ws_ptr + OVERFLOW, tl.full([], 1, KEY))


@triton.jit
def sift_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    bloom: tl.tensor,
    bloom_shift: tl.tensor,
    counts: tl.tensor,
    listed: tl.tensor,
    room: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    BITS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Look up a block of elements in the bitmap, or in the filter and list the candidates.

    The result of a candidate is as if it were a member.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
    low, span, dense = _is_dense(ws_ptr, slots, SET, KEY)
    if dense:
        found = has_bits(ws_ptr + members, key - low, valid & (key - low <= span), KEY)
        store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
    else:
        mixed = mix(key, factor, KEY)
        words = (ws_ptr + bloom).to(tl.pointer_type(tl.uint32))
        bits = _bloom_bits(mixed, BITS)
        candidate = valid & ((tl.load(words + (mixed >> bloom_shift)) & bits) == bits)
        store_block(out_ptr, start, m, candidate ^ INVERT, BLOCK)
        index = start.to(KEY) + tl.arange(0, BLOCK).to(KEY)
        _list(ws_ptr, key, index, candidate, counts, listed, room, KEY, SEGMENTS)


@triton.jit
def _listed_block(
    ws_ptr: tl.tensor,
    counts: tl.tensor,
    listed: tl.tensor,
    room: tl.tensor,
    BLOCK: tl.constexpr,
    SEGMENTS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Pointers to this program's block of keys in the list, which of them are there, and how many.

    The programs of one segment are neighbours.
    """
    blocks = tl.num_programs(0) // SEGMENTS
    segment = tl.program_id(0) // blocks
    offsets = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    there = offsets < tl.load(ws_ptr + counts + segment).to(tl.int32)
    pointers = ws_ptr + listed + segment * room + offsets
    return pointers, there, tl.max(there.to(tl.int32), 0)


@triton.jit
def keep_candidates_kernel(
    ws_ptr: tl.tensor,
    counts: tl.tensor,
    listed: tl.tensor,
    room: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    candidate_slots: tl.tensor,
    candidate_shift: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    ZEROED: tl.constexpr,
) -> None:
    """Make a block of candidates the set, or zero a share of the table if there are too many."""
    _low, _span, dense = _is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        if tl.load(ws_ptr + OVERFLOW) != 0:
            _zero_share(ws_ptr + members, slots + TABLE, KEY, ZEROED)
        else:
            pointers, there, some = _listed_block(ws_ptr, counts, listed, room, BLOCK, SEGMENTS)
            if some > 0:
                key = tl.load(pointers, mask=there, other=0)
                insert(
                    *(ws_ptr, key, there, candidate_slots, factor, candidate_shift),
                    *(candidate_shift, False, True, BUCKET, KEY),
                )


@triton.jit
def mark_candidates_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    marks: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    shift: tl.tensor,
    candidate_slots: tl.tensor,
    candidate_shift: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Mark the candidates that a block of test elements equals, or add the block to the table."""
    _low, _span, dense = _is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        start = tl.program_id(0).to(tl.int64) * BLOCK
        key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
        if tl.load(ws_ptr + OVERFLOW) != 0:
            insert(
                *(ws_ptr + members, key, valid, slots, factor, shift),
                *(shift, False, True, BUCKET, KEY),
            )
        else:
            mark_slots(
                *(ws_ptr, key, valid, marks, candidate_slots, factor, candidate_shift),
                *(BUCKET, KEY),
            )


@triton.jit
def settle_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    counts: tl.tensor,
    listed: tl.tensor,
    room: tl.tensor,
    marks: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    shift: tl.tensor,
    candidate_slots: tl.tensor,
    candidate_shift: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BUCKET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Correct the results of the candidates that are no members.

    The list does not have all of them if there are too many. Then each program looks for them in
    its share of the results.
    """
    _low, _span, dense = _is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        if tl.load(ws_ptr + OVERFLOW) != 0:
            first = tl.program_id(0).to(tl.int64) * BLOCK
            while first < m:
                offsets = first + tl.arange(0, BLOCK)
                stored = tl.load(out_ptr + offsets, mask=offsets < m, other=INVERT)
                candidate = (offsets < m) & ((stored != 0) ^ INVERT)
                x = tl.load(x_ptr + offsets, mask=candidate, other=0)
                key, _valid = keys_of(x, COMMON, KEY)
                found = contains(
                    *(ws_ptr + members, key, candidate, slots, factor, shift),
                    *(shift, False, 0, BUCKET, KEY),
                )
                tl.store(out_ptr + offsets, found ^ INVERT, mask=candidate & ~found)
                first += tl.num_programs(0).to(tl.int64) * BLOCK
        else:
            pointers, there, some = _listed_block(ws_ptr, counts, listed, room, BLOCK, SEGMENTS)
            if some > 0:
                key = tl.load(pointers, mask=there, other=0)
                index = tl.load(pointers + SEGMENTS * room, mask=there, other=0)
                found = find_marks(
                    *(ws_ptr, key, there, marks, candidate_slots, factor, candidate_shift),
                    *(BUCKET, KEY),
                )
                wrong = tl.full(key.shape, INVERT, tl.int1)
                tl.store(out_ptr + index.to(tl.int64), wrong, mask=there & ~found)
