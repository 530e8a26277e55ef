"""The kernels of isin for more test elements than the L2 holds a hash set of.

Building such a hash set would cost an access to DRAM for each test element. Instead a Bloom filter
of them is built, which the L2 holds, and each element is looked up in it. The *candidates*, which
are the elements that the filter does not reject, are listed, and a second filter is filled with
them. The test elements that the second filter does not reject become a hash set. They are few, and
all that equal a candidate are among them. So the result is exact once each candidate has been
looked up in that set.

If many elements are test elements, there would be too many candidates. So the filter is first filled
with one of FIRST_SHARE blocks of the test elements, and a sample of the elements is looked up in it.
If too many pass, a flag is set, DIRECT. The launches that follow read it: they build the hash set
of all test elements after all, with a filter if LARGE would have one, and look up all elements there. If
the sample was wrong, there are more candidates than the list has room for, the flag is set, LATE,
and only the candidates are looked up in that set. If the range of the test elements fits into a
bitmap, they become that bitmap, and most launches do nothing. So nothing waits for the GPU. The
workspace has room for each of these.

The set of the test elements that pass would be FULL only if the second filter let far more pass than
is likely. Each candidate is then compared with all test elements, which is slow, and ends.

What a launch decides by must have been written by a launch before it: warps of a program that read
different values would take different branches. The launch that sets LATE asks for DIRECT only, and
the one that sets FULL does not ask for it.

How launches overlap with PDL is in kernels.py.

The workspace, in words of a key:

| from | what |
| --- | --- |
| 0 | the set of the test elements that pass: HEADER words, which also hold the range of the test elements, and its table |
| `second` | the filter of the candidates |
| `bloom` | the filter, or that of the hash set of all test elements |
| `counts` | how many candidates each of SEGMENTS parts of the list has; all up to here is zeroed first |
| `ranges` | the ranges that the programs of `prepare_kernel` found |
| `listed` | the keys of the candidates, then their indices |
| `members` | HEADER words, and the bitmap or the hash set of all test elements |
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from warpcall_kernels._isin.bloom import (
    DIRECT,
    LATE,
    add_to_bloom,
    are_kept,
    is_dense,
    keep_passing,
    passes_bloom,
    zero_share,
)
from warpcall_kernels._isin.hash_set import (
    EQUAL,
    OVERFLOW,
    STREAM,
    TABLE,
    contains,
    has_bits,
    insert,
    keys_of,
    load_keys,
    store_block,
)


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
    SEGMENTS: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Look up a block of elements in the bitmap, or in the filter and list the candidates.

    The result of a candidate is as if it were a member.
    """
    if PDL:
        gdc_wait()
    start = tl.program_id(0).to(tl.int64) * BLOCK
    flag = tl.load(ws_ptr + OVERFLOW)
    low, span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if dense:
        key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
        found = has_bits(ws_ptr + members, key - low, valid & (key - low <= span), KEY)
        store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
    elif flag != DIRECT:
        key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
        candidate = passes_bloom(ws_ptr, key, valid, bloom, bloom_words, factor, KEY)
        store_block(out_ptr, start, m, candidate ^ INVERT, BLOCK)
        index = start.to(KEY) + tl.arange(0, BLOCK).to(KEY)
        _list(ws_ptr, key, index, candidate, counts, listed, room, KEY, SEGMENTS)


@triton.jit
def _share_of_list(
    ws_ptr: tl.tensor, counts: tl.tensor, SEGMENTS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """This program's segment of the list, how many candidates that has, the first of the blocks that this
    program takes, and how many programs share the segment.
    """
    sharing = tl.num_programs(0) // SEGMENTS
    segment = tl.program_id(0) // sharing
    count = tl.load(ws_ptr + counts + segment).to(tl.int32)
    return segment, count, tl.program_id(0) % sharing, sharing


@triton.jit
def add_candidates_kernel(
    ws_ptr: tl.tensor,
    second: tl.tensor,
    second_words: tl.tensor,
    counts: tl.tensor,
    listed: tl.tensor,
    room: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    SEGMENTS: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    ZEROED: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Add this program's share of the candidates to the second filter, or zero its share of the table
    of all test elements if there are too many.
    """
    if PDL:
        gdc_wait()
    _low, _span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        if tl.load(ws_ptr + OVERFLOW) != 0:
            zero_share(ws_ptr + members, slots + TABLE, KEY, ZEROED)
        else:
            segment, count, block, sharing = _share_of_list(ws_ptr, counts, SEGMENTS)
            while block * BLOCK < count:
                at = block * BLOCK + tl.arange(0, BLOCK)
                there = at < count
                key = tl.load(ws_ptr + listed + segment * room + at, mask=there, other=0)
                add_to_bloom(ws_ptr, key, there, True, second, second_words, factor, KEY)
                block += sharing


@triton.jit
def keep_tests_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    second: tl.tensor,
    second_words: tl.tensor,
    bloom: tl.tensor,
    filter_shift: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    shift: tl.tensor,
    kept_slots: tl.tensor,
    kept_shift: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Make those of this program's share of the test elements that the second filter lets pass a set, or
    add all of them to the table of all test elements.
    """
    if PDL:
        gdc_wait()
    _low, _span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        overflow = tl.load(ws_ptr + OVERFLOW) != 0
        looks = tl.load(ws_ptr + EQUAL) != 0
        words = (ws_ptr + bloom).to(tl.pointer_type(tl.uint32))
        start = tl.program_id(0).to(tl.int64) * BLOCK
        while start < n:
            key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
            if overflow:
                insert(
                    *(ws_ptr + members, key, valid, slots, factor, shift, words, filter_shift),
                    *(looks, FILTER, BUCKET, KEY),
                )
            else:
                keep_passing(
                    *(ws_ptr, ws_ptr, key, valid, second, second_words, kept_slots, factor),
                    *(kept_shift, looks, BUCKET, KEY),
                )
            start += tl.num_programs(0).to(tl.int64) * BLOCK


@triton.jit
def settle_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    counts: tl.tensor,
    listed: tl.tensor,
    room: tl.tensor,
    bloom: tl.tensor,
    filter_shift: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    shift: tl.tensor,
    kept_slots: tl.tensor,
    kept_shift: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    SEGMENTS: tl.constexpr,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Correct the results of the candidates that are no members.

    The list does not have all of them if there are too many. Then each program looks for them in
    its share of the results, or takes all elements as candidates if `sift_kernel` wrote no results.
    """
    if PDL:
        gdc_wait()
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
                    *(filter_shift, FILTER, BUCKET, KEY),
                )
                tl.store(out_ptr + offsets, found ^ INVERT, inside, eviction_policy=STREAM)
                first += tl.num_programs(0).to(tl.int64) * BLOCK
        else:
            segment, count, block, sharing = _share_of_list(ws_ptr, counts, SEGMENTS)
            while block * BLOCK < count:
                at = block * BLOCK + tl.arange(0, BLOCK)
                there = at < count
                pointers = ws_ptr + listed + segment * room + at
                key = tl.load(pointers, mask=there, other=0)
                index = tl.load(pointers + SEGMENTS * room, mask=there, other=0)
                found = are_kept(
                    *(test_ptr, ws_ptr, key, there, n, kept_slots, factor, kept_shift),
                    *(BUCKET, COMMON, KEY),
                )
                wrong = tl.full(key.shape, INVERT, tl.int1)
                tl.store(out_ptr + index.to(tl.int64), wrong, mask=there & ~found)
                block += sharing
