"""The kernels of isin for at most as many elements as test elements.

A Bloom filter is filled with the elements, and the test elements that it does not reject become a hash
set, in which each element is looked up. So few test elements cost more than one access. If the range of
the elements fits into a bitmap, test elements set their bits there instead.

The workspace has a header with the range of the elements; the filter or, with two bitmaps, that of the elements; a
range for each program that found one; and from `members` on the set, with a header of its own. The first launch,
`prepare_kernel`, zeroes all before the ranges. How launches overlap with PDL is in kernels.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._isin.bloom import add_to_bloom, are_kept, keep_passing, zero_share
from warpcall_kernels._isin.few import load_tests
from warpcall_kernels._isin.hash_set import (
    TABLE,
    has_bits,
    key_range,
    keys_of,
    load_keys,
    load_members,
    set_bits,
    store_block,
    word_of,
    words_contend,
)
from warpcall_kernels._isin.kernels import whole_range, write_range


@triton.jit
def _range_of(
    ptr: tl.tensor, n: tl.tensor, COMMON: tl.constexpr, KEY: tl.constexpr, SIZE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The complement of the least and the greatest key of up to SIZE integers; zeros if SIZE is 0."""
    low_inverted, high = tl.full([], 0, KEY), tl.full([], 0, KEY)
    if SIZE > 0:
        key, _valid = keys_of(load_tests(ptr, 0, n, SIZE), COMMON, KEY)
        low_inverted, high = tl.max(~key, 0), tl.max(key, 0)
    return low_inverted, high


@triton.jit
def add_elements_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    ranges: tl.tensor,
    members: tl.tensor,
    bloom_words: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    SET: tl.constexpr,
    TWO_BITMAPS: tl.constexpr,
    LOOK: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    RANGED: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    ZEROED: tl.constexpr,
    ZEROED_FIRST: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Zero a part of the set, and add a block of elements to the filter or, with TWO_BITMAPS, to the first bitmap.

    With one bitmap the range says enough: it will hold the test elements, and elements are not loaded. Only the words
    of a bitmap are zeroed then; with ZEROED_FIRST all of the set is, while the launch before runs, which does not
    touch it. Programs may be more than blocks. Each finds the range of up to RANGED elements itself, or, if
    that is 0, combines PROGRAMS ranges. LOOK is as for `load_members`.
    """
    ONE_BITMAP: tl.constexpr = SET == "either" and not TWO_BITMAPS
    if EARLY:
        gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if not ONE_BITMAP:
        key, valid, looks = load_members(x_ptr, start, n, LOOK, COMMON, KEY, BLOCK)
    low_inverted, high = _range_of(x_ptr, n, COMMON, KEY, RANGED)
    if ZEROED_FIRST:
        zero_share(ws_ptr + members, slots + TABLE, KEY, ZEROED)
    if PDL:
        gdc_wait()
    low, span, dense = 0, 0, False
    if SET == "either":
        if RANGED > 0:
            low, span, dense = write_range(ws_ptr, low_inverted, high, slots, KEY)
        else:
            low, span, dense = whole_range(ws_ptr, ranges, slots, KEY, PROGRAMS)
    if dense:
        if not ZEROED_FIRST:
            used = word_of(span, KEY).to(slots.dtype) + 1
            zero_share(ws_ptr + members, used + TABLE, KEY, ZEROED)
        if TWO_BITMAPS:
            set_bits(ws_ptr, key - low, valid, looks | words_contend(span, n), KEY)
    else:
        if ONE_BITMAP:
            key, valid, looks = load_members(x_ptr, start, n, LOOK, COMMON, KEY, BLOCK)
        if not ZEROED_FIRST:
            zero_share(ws_ptr + members, slots + TABLE, KEY, ZEROED)
        add_to_bloom(ws_ptr, key, valid, looks, TABLE, bloom_words, factor, KEY)


@triton.jit
def keep_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    members: tl.tensor,
    bloom_words: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    TWO_BITMAPS: tl.constexpr,
    LOOK: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Make the test elements of a block that the filter lets pass the set, or set their bits.

    TWO_BITMAPS are that of the elements, and behind it that of the test elements that are among them. If
    test elements are many more than elements, these are few, and only these need atomics.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid, looks = load_members(test_ptr, start, n, LOOK, COMMON, KEY, BLOCK)
    if PDL:
        gdc_wait()
    low, span, dense = 0, 0, False
    if SET == "either":
        low, span, dense = key_range(ws_ptr, slots, KEY)
    set_ptr = ws_ptr + members
    if dense:
        kept = valid & (key - low <= span)
        if TWO_BITMAPS:
            kept = has_bits(ws_ptr, key - low, kept, KEY)
        set_bits(set_ptr, key - low, kept, looks | words_contend(span, n), KEY)
    else:
        keep_passing(
            *(set_ptr, ws_ptr, key, valid, TABLE, bloom_words, slots, factor, shift, looks),
            *(BUCKET, KEY),
        )


@triton.jit
def collect_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    BUCKET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Look up a block of elements in the set."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
    if PDL:
        gdc_wait()
    low, dense = 0, False
    if SET == "either":
        low, _span, dense = key_range(ws_ptr, slots, KEY)
    set_ptr = ws_ptr + members
    if dense:
        found = has_bits(set_ptr, key - low, valid, KEY)
    else:
        found = are_kept(
            *(test_ptr, set_ptr, key, valid, n, slots, factor, shift), *(BUCKET, COMMON, KEY)
        )
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
