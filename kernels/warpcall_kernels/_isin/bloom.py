"""The Bloom filters of isin, and the kernels that fill that of the test elements and sample it (`filtered.py`)."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._isin.hash_set import (
    EQUAL,
    EQUAL_HITS,
    FULL,
    HITS,
    OVERFLOW,
    TABLE,
    contains,
    insert,
    key_range,
    keys_of,
    load_keys,
    load_members,
    mix,
    set_bits,
    words_contend,
)
from warpcall_kernels._isin.kernels import whole_range

DIRECT, LATE = tl.constexpr(1), tl.constexpr(2)  # values of OVERFLOW
# Bits of a word of 64 that a key sets. 2^26 int32 in 2^24: 989 us; 1,082 with 3 bits of 32.
BLOOM_BITS = tl.constexpr(4)
# Slots in which a key that passes a filter is looked for at most. No set is so full that it takes as many,
# unless the filter lets far more pass than is likely.
MOST_PROBES = tl.constexpr(1 << 12)


@triton.jit
def _bits_of(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    bloom: tl.tensor,
    bloom_words: tl.tensor,
    factor: tl.tensor,
    KEY: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Pointers to the words of keys in a Bloom filter, and the bits that they set there.

    The bits are independent of the number of the word.
    """
    mixed = mix(key, factor, KEY)
    words = (ws_ptr + bloom).to(tl.pointer_type(tl.uint64))
    one = tl.full(mixed.shape, 1, tl.uint64)
    other = mixed * 0x9E3779B1
    bits = one << (other >> 26).to(tl.uint64)
    for bit in tl.static_range(1, BLOOM_BITS):
        bits |= one << (other >> (26 - 6 * bit) & 63).to(tl.uint64)
    return words + tl.umulhi(mixed, bloom_words.to(tl.uint32)), bits


@triton.jit
def add_to_bloom(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    looks: tl.tensor,
    bloom: tl.tensor,
    bloom_words: tl.tensor,
    factor: tl.tensor,
    KEY: tl.constexpr,
) -> None:
    """Add keys to the Bloom filter of `bloom_words` words from `bloom` on.

    If `looks`, words are read first, because atomics of equal keys would contend.
    """
    word, bits = _bits_of(ws_ptr, key, bloom, bloom_words, factor, KEY)
    if looks:
        valid = valid & ((tl.load(word, mask=valid, other=0) & bits) != bits)
    tl.atomic_or(word, bits, mask=valid, sem="relaxed")


@triton.jit
def passes_bloom(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    bloom: tl.tensor,
    bloom_words: tl.tensor,
    factor: tl.tensor,
    KEY: tl.constexpr,
) -> tl.tensor:
    """Whether a Bloom filter does not reject keys."""
    word, bits = _bits_of(ws_ptr, key, bloom, bloom_words, factor, KEY)
    return valid & ((tl.load(word) & bits) == bits)


@triton.jit
def keep_passing(
    set_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    bloom: tl.tensor,
    bloom_words: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    looks: tl.tensor,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> None:
    """Insert keys that the filter at `ws_ptr` does not reject into the hash set at `set_ptr`, as `insert` does."""
    passing = passes_bloom(ws_ptr, key, valid, bloom, bloom_words, factor, KEY)
    insert(
        *(set_ptr, key, passing, slots, factor, shift, set_ptr, shift, looks),
        *(False, BUCKET, KEY, MOST_PROBES),
    )


@triton.jit
def are_kept(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    n: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
) -> tl.tensor:
    """Whether keys are in the hash set of `keep_passing`.

    If it is FULL, which takes a filter that lets far more pass than is likely, they are compared with
    one test element after the other.
    """
    if tl.load(ws_ptr + FULL) != 0:
        found = key != key  # noqa: PLR0124  # none
        at = tl.zeros([], tl.int64)
        while at < n:
            same = tl.load(test_ptr + at + tl.zeros(key.shape, tl.int32))
            test, there = keys_of(same, COMMON, KEY)
            found = found | ((key == test) & there & valid)
            at += 1
    else:
        found = contains(
            *(ws_ptr, key, valid, slots, factor, shift, ws_ptr, shift), *(False, BUCKET, KEY)
        )
    return found


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
def begin_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    bloom: tl.tensor,
    bloom_words: tl.tensor,
    ranges: tl.tensor,
    members: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    FIRST_SHARE: tl.constexpr,
    SET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Add each first one of FIRST_SHARE blocks of test elements to the filter, or zero the bitmap if
    they are dense.

    Their range is written into the header. PROGRAMS is how many ranges `prepare_kernel` has written.
    """
    if PDL:
        gdc_launch_dependents()  # judge_kernel loads its sample meanwhile
        gdc_wait()
    dense = False
    if SET == "either":
        _low, span, dense = whole_range(ws_ptr, ranges, slots, KEY, PROGRAMS)
        if dense:
            words = (span // KEY.primitive_bitwidth).to(tl.int64) + 1
            zero_share(ws_ptr + members + TABLE, words, KEY, BLOCK)
    if not dense:
        start = tl.program_id(0).to(tl.int64) * (FIRST_SHARE * BLOCK)
        key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
        add_to_bloom(ws_ptr, key, valid, True, bloom, bloom_words, factor, KEY)


@triton.jit
def _add_block(
    ws_ptr: tl.tensor,
    test_ptr: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    low: tl.tensor,
    span: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Set the bits of a block of test elements in the bitmap."""
    key, valid, looks = load_members(test_ptr, start, n, "equal", COMMON, KEY, BLOCK)
    set_bits(ws_ptr, key - low, valid, looks | words_contend(span, n), KEY)


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
    FIRST_SHARE: tl.constexpr,
    SET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Add one of the other blocks of test elements to the filter; or to the bitmap, and one of the
    first blocks as well.

    The filter is read before if many test elements may be equal, because their atomics would contend.
    """
    if PDL:
        gdc_wait()
    program = tl.program_id(0).to(tl.int64)
    block = program + program // (FIRST_SHARE - 1) + 1
    flag, equal = tl.load(ws_ptr + OVERFLOW), tl.load(ws_ptr + EQUAL)
    low, span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if dense:
        _add_block(ws_ptr + members, test_ptr, block * BLOCK, n, low, span, COMMON, KEY, BLOCK)
        start = program * (FIRST_SHARE * BLOCK)
        if start < n:
            _add_block(ws_ptr + members, test_ptr, start, n, low, span, COMMON, KEY, BLOCK)
    elif flag == 0:
        key, valid = load_keys(test_ptr, block * BLOCK, n, COMMON, KEY, BLOCK)
        add_to_bloom(ws_ptr, key, valid, equal != 0, bloom, bloom_words, factor, KEY)


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
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Look up BLOCK elements, and as many other test elements, in the filter of the first blocks.

    If more than MOST_HITS of the elements of all programs pass, DIRECT is set; if more than MOST_EQUAL of
    the test elements do, EQUAL.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sampled = tl.num_programs(0).to(tl.int64) * BLOCK
    key, valid = keys_of(tl.load(x_ptr + at * m // sampled), COMMON, KEY)
    at = at * n // sampled
    test, others = keys_of(tl.load(test_ptr + at), COMMON, KEY)
    if PDL:
        gdc_wait()
    _low, _span, dense = is_dense(ws_ptr, slots, SET, KEY)
    if not dense:
        hits = passes_bloom(ws_ptr, key, valid, bloom, bloom_words, factor, KEY)
        others = others & (at // FILL_BLOCK % FIRST_SHARE != 0)
        equal = passes_bloom(ws_ptr, test, others, bloom, bloom_words, factor, KEY)
        if _add_hits(ws_ptr + HITS, hits, KEY) > MOST_HITS:
            tl.store(ws_ptr + OVERFLOW, tl.full([], DIRECT, KEY))
        if _add_hits(ws_ptr + EQUAL_HITS, equal, KEY) > MOST_EQUAL:
            tl.store(ws_ptr + EQUAL, tl.full([], 1, KEY))
