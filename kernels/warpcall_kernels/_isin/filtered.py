"""The kernels of isin for more test elements than the L2 holds a hash set of.

Building such a hash set would cost an access to DRAM for each test element. Instead a Bloom filter
of them is built, which the L2 holds, and each element is looked up in it. The *candidates*, which
are the elements that the filter does not reject, are listed and become a hash set, which the L2
holds too. The test elements mark the candidates that they equal, so that the result is exact.

If many elements are test elements, there would be too many candidates. So the filter is first filled
with one of FIRST_SHARE blocks of the test elements, and a sample of the elements is looked up in it.
If too many pass, a flag is set, DIRECT. The launches that follow read it: they build the hash set
of all test elements after all, with the filter of such a set, and look up all elements there. If
the sample was wrong, there are more candidates than the list has room for, the flag is set, LATE,
and only the candidates are looked up in that set. If the range of the test elements fits into a
bitmap, they become that bitmap, and most launches do nothing. So nothing waits for the GPU. The
workspace has room for each of these.

What a launch decides by must have been written by a launch before it: warps of a program that read
different values would take different branches. The launch that sets LATE asks for DIRECT only.

The workspace, in words of a key:

| from | what |
| --- | --- |
| 0 | the set of the candidates: HEADER words, which also hold the range of the test elements, and its table |
| `marks` | a byte for each slot of that table, and one for key 0 |
| `bloom` | the filter, or that of the hash set of all test elements |
| `counts` | how many candidates each of SEGMENTS parts of the list has; all up to here is zeroed first |
| `ranges` | the ranges that the programs of `prepare_kernel` found |
| `listed` | the keys of the candidates, then their indices |
| `members` | HEADER words, and the bitmap or the hash set of all test elements |
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._isin.bloom import DIRECT, LATE, bloom_bits, is_dense, zero_share
from warpcall_kernels._isin.hash_set import (
    OVERFLOW,
    STREAM,
    TABLE,
    contains,
    has_bits,
    insert,
    keys_of,
    load_keys,
    mix,
    store_block,
)
from warpcall_kernels._isin.marks import find_marks, mark_slots


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
            tl.store(ws_ptr + OVERFLOW, tl.full([], LATE, KEY))


@triton.jit
def sift_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    bloom: tl.tensor,
    bloom_words: tl.tensor,
    counts: tl.tensor,
    listed: tl.tensor,
    room: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    BITS: tl.constexpr,
    WORD: tl.constexpr,
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
    flag = tl.load(ws_ptr + OVERFLOW)
    low, span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if dense:
        key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
        found = has_bits(ws_ptr + members, key - low, valid & (key - low <= span), KEY)
        store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
    elif flag != DIRECT:
        key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
        word, bits = bloom_bits(ws_ptr, mix(key, factor, KEY), bloom, bloom_words, BITS, WORD)
        candidate = valid & ((tl.load(word) & bits) == bits)
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
    _low, _span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        if tl.load(ws_ptr + OVERFLOW) != 0:
            zero_share(ws_ptr + members, slots + TABLE, KEY, ZEROED)
        else:
            pointers, there, some = _listed_block(ws_ptr, counts, listed, room, BLOCK, SEGMENTS)
            if some > 0:
                key = tl.load(pointers, mask=there, other=0)
                insert(
                    *(ws_ptr, key, there, candidate_slots, factor, candidate_shift),
                    *(ws_ptr, candidate_shift, False, True, BUCKET, KEY),
                )


@triton.jit
def mark_candidates_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    marks: tl.tensor,
    bloom: tl.tensor,
    filter_shift: tl.tensor,
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
    BLOCKS: tl.constexpr,
) -> None:
    """Mark the candidates that BLOCKS blocks of test elements equal, or add these to the table."""
    _low, _span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        overflow = tl.load(ws_ptr + OVERFLOW) != 0
        words = (ws_ptr + bloom).to(tl.pointer_type(tl.uint32))
        start = tl.program_id(0).to(tl.int64) * (BLOCK * BLOCKS)
        for _block in range(BLOCKS):
            key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
            if overflow:
                insert(
                    *(ws_ptr + members, key, valid, slots, factor, shift, words, filter_shift),
                    *(True, True, BUCKET, KEY),
                )
            else:
                mark_slots(
                    *(ws_ptr, key, valid, marks, candidate_slots, factor, candidate_shift),
                    *(BUCKET, KEY),
                )
            start += BLOCK


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
    bloom: tl.tensor,
    filter_shift: tl.tensor,
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
    its share of the results, or takes all elements as candidates if `sift_kernel` wrote no results.
    """
    _low, _span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        flag = tl.load(ws_ptr + OVERFLOW)
        if flag != 0:
            words = (ws_ptr + bloom).to(tl.pointer_type(tl.uint32))
            first = tl.program_id(0).to(tl.int64) * BLOCK
            while first < m:
                offsets = first + tl.arange(0, BLOCK)
                inside = offsets < m
                sifted = inside & (flag == LATE)
                stored = tl.load(out_ptr + offsets, mask=sifted, other=not INVERT)
                candidate = inside & ((stored != 0) ^ INVERT)
                x = tl.load(x_ptr + offsets, mask=candidate, other=0, eviction_policy=STREAM)
                key, valid = keys_of(x, COMMON, KEY)
                found = contains(
                    *(ws_ptr + members, key, candidate & valid, slots, factor, shift, words),
                    *(filter_shift, True, 0, BUCKET, KEY),
                )
                tl.store(out_ptr + offsets, found ^ INVERT, inside, eviction_policy=STREAM)
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
