"""The kernels of isin that fill a Bloom filter with test elements, and sample it (`filtered.py`)."""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._isin.hash_set import (
    EQUAL,
    EQUAL_HITS,
    HITS,
    OVERFLOW,
    TABLE,
    key_range,
    keys_of,
    load_keys,
    mix,
    set_bits,
)
from warpcall_kernels._isin.kernels import whole_range

DIRECT, LATE = tl.constexpr(1), tl.constexpr(2)  # values of OVERFLOW


@triton.jit
def bloom_bits(
    ws_ptr: tl.tensor,
    mixed: tl.tensor,
    bloom: tl.tensor,
    bloom_words: tl.tensor,
    BITS: tl.constexpr,
    WORD: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Pointers to the words of keys in the filter, and the bits that they set there.

    The bits are independent of the number of the word.
    """
    words = (ws_ptr + bloom).to(tl.pointer_type(WORD))
    WIDTH: tl.constexpr = 6 if tl.uint64 == WORD else 5
    one = tl.full(mixed.shape, 1, WORD)
    other = mixed * 0x9E3779B1
    bits = one << (other >> (32 - WIDTH)).to(WORD)
    for bit in tl.static_range(1, BITS):
        bits |= one << (other >> (32 - WIDTH - WIDTH * bit) & ((1 << WIDTH) - 1)).to(WORD)
    return words + tl.umulhi(mixed, bloom_words.to(tl.uint32)), bits


@triton.jit
def is_dense(
    ws_ptr: tl.tensor, slots: tl.tensor, SET: tl.constexpr, KEY: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """What `key_range` says, or that floats are never dense."""
    if SET == "either":
        low, span, dense = key_range(ws_ptr, slots, KEY)
    else:
        low, span, dense = tl.zeros([], KEY), tl.zeros([], KEY), tl.program_id(0) < 0
    return low, span, dense


@triton.jit
def zero_share(ptr: tl.tensor, words: tl.tensor, KEY: tl.constexpr, BLOCK: tl.constexpr) -> None:
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
        zero_share(ws_ptr + members + TABLE, words, KEY, BLOCK)


@triton.jit
def fill_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    bloom: tl.tensor,
    bloom_words: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    FIRST: tl.constexpr,
    FIRST_SHARE: tl.constexpr,
    SET: tl.constexpr,
    BITS: tl.constexpr,
    WORD: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add a block of test elements to the filter, or to the bitmap if they are dense.

    The FIRST launch has one of FIRST_SHARE blocks, and a second one all others. The filter is read
    before if many test elements may be equal, because their atomics would contend.
    """
    block = tl.program_id(0).to(tl.int64)
    block = block * FIRST_SHARE if FIRST else block + block // (FIRST_SHARE - 1) + 1
    start = block * BLOCK
    flag, equal = tl.load(ws_ptr + OVERFLOW), tl.load(ws_ptr + EQUAL)
    low, _span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if dense:
        key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
        set_bits(ws_ptr + members, key - low, valid, KEY)
    elif flag == 0:
        key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
        word, bits = bloom_bits(ws_ptr, mix(key, factor, KEY), bloom, bloom_words, BITS, WORD)
        look = valid if FIRST else valid & (equal != 0)
        known = (tl.load(word, mask=look, other=0) & bits) == bits
        tl.atomic_or(word, bits, mask=valid & ~known, sem="relaxed")


@triton.jit
def _add_hits(counter: tl.tensor, hits: tl.tensor, KEY: tl.constexpr) -> tl.tensor:
    """Add the hits of this program to a counter, and return how many there are then."""
    count = tl.sum(hits.to(tl.int32), 0).to(KEY)
    return tl.atomic_add(counter, count, sem="relaxed") + count


@triton.jit
def judge_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    bloom: tl.tensor,
    bloom_words: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    FIRST_SHARE: tl.constexpr,
    FILL_BLOCK: tl.constexpr,
    MOST_HITS: tl.constexpr,
    MOST_EQUAL: tl.constexpr,
    SET: tl.constexpr,
    BITS: tl.constexpr,
    WORD: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Look up BLOCK elements, and as many other test elements, in the filter of the first blocks.

    If more than MOST_HITS of the elements of all programs pass, DIRECT is set; if more than MOST_EQUAL of
    the test elements do, EQUAL.
    """
    _low, _span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        sampled = tl.num_programs(0).to(tl.int64) * BLOCK
        key, valid = keys_of(tl.load(x_ptr + at * m // sampled), COMMON, KEY)
        word, bits = bloom_bits(ws_ptr, mix(key, factor, KEY), bloom, bloom_words, BITS, WORD)
        hits = valid & ((tl.load(word) & bits) == bits)
        if _add_hits(ws_ptr + HITS, hits, KEY) > MOST_HITS:
            tl.store(ws_ptr + OVERFLOW, tl.full([], DIRECT, KEY))
        at = at * n // sampled
        key, valid = keys_of(tl.load(test_ptr + at), COMMON, KEY)
        word, bits = bloom_bits(ws_ptr, mix(key, factor, KEY), bloom, bloom_words, BITS, WORD)
        others = valid & (at // FILL_BLOCK % FIRST_SHARE != 0)
        equal = others & ((tl.load(word) & bits) == bits)
        if _add_hits(ws_ptr + EQUAL_HITS, equal, KEY) > MOST_EQUAL:
            tl.store(ws_ptr + EQUAL, tl.full([], 1, KEY))
