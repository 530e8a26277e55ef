"""The kernels of isin that build a set (`_isin/hash_set.py`) and look up elements in it.

With PDL, a kernel waits itself until the one before it has ended. With EARLY, it asks for the next one
when it begins, so that this loads its inputs meanwhile. Otherwise the next one is launched when all
programs have ended, which still saves some of the time between two launches. Each kernel must wait, also
if it needs nothing from the one before. Otherwise it could end, and the next one begin, before an
earlier one has written what that one reads.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._isin.hash_set import (
    HIGH,
    LOW_INVERTED,
    add_keys,
    contains,
    filter_words,
    has_bits,
    key_range,
    load_keys,
    load_members,
    span_of,
    store_block,
    words_contend,
)


@triton.jit
def _widened(
    low_inverted: tl.tensor, high: tl.tensor, key: tl.tensor, valid: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Ranges that hold these keys as well."""
    low_inverted = tl.maximum(low_inverted, tl.where(valid, ~key, 0))
    return low_inverted, tl.maximum(high, tl.where(valid, key, 0))


@triton.jit
def prepare_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    words: tl.tensor,
    slots: tl.tensor,
    RANGE: tl.constexpr,
    SAMPLED: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Zero the workspace, and write the range of a program's share of the members behind it.

    With SAMPLED, each program looks at the first and the last block of members before. If no bitmap
    holds the range of these, it writes that. Nothing waits for the zeros to be stored, so the members
    are loaded meanwhile.
    """
    if EARLY:
        gdc_launch_dependents()
    program = tl.program_id(0).to(tl.int64)
    for first in range(program * BLOCK, words, PROGRAMS * BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        tl.store(ws_ptr + offsets, tl.zeros([BLOCK], KEY), mask=offsets < words)
    if RANGE:
        low_inverted = tl.zeros([BLOCK], KEY)
        high = tl.zeros([BLOCK], KEY)
        last = n
        if SAMPLED:
            for first in tl.static_range(2):
                start = first * tl.maximum(n - BLOCK, 0).to(tl.int64)
                key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
                low_inverted, high = _widened(low_inverted, high, key, valid)
            _span, dense = span_of(tl.max(low_inverted, 0), tl.max(high, 0), slots, KEY)
            last = tl.where(dense, n, 0)
        for first in range(program * BLOCK, last, PROGRAMS * BLOCK):
            key, valid = load_keys(test_ptr, first, n, COMMON, KEY, BLOCK)
            low_inverted, high = _widened(low_inverted, high, key, valid)
        tl.store(ws_ptr + words + program, tl.max(low_inverted, 0))
        tl.store(ws_ptr + words + PROGRAMS + program, tl.max(high, 0))


@triton.jit
def whole_range(
    ws_ptr: tl.tensor,
    words: tl.tensor,
    slots: tl.tensor,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The least key, the span, and whether a bitmap is taken, from the ranges behind the workspace.

    If no bitmap holds the first range, none holds all of them, and the others are not combined: 2^20 int64 in 2^20 by
    REVERSED on an H200: 49.7 us, 51.0 otherwise. They are loaded before that is known, so that none waits for it.
    """
    at = tl.arange(0, PROGRAMS)
    all_low_inverted = tl.load(ws_ptr + words + at)
    all_high = tl.load(ws_ptr + words + PROGRAMS + at)
    low_inverted, high = tl.load(ws_ptr + words), tl.load(ws_ptr + words + PROGRAMS)
    _span, dense = span_of(low_inverted, high, slots, KEY)
    if dense:
        low_inverted, high = tl.max(all_low_inverted, 0), tl.max(all_high, 0)
    low, span, dense = write_range(ws_ptr, low_inverted, high, slots, KEY)
    return low, span, dense


@triton.jit
def write_range(
    ws_ptr: tl.tensor,
    low_inverted: tl.tensor,
    high: tl.tensor,
    slots: tl.tensor,
    KEY: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The least key, the span, and whether a bitmap is taken, of keys in a range.

    The first program writes the range into the header, for later launches.
    """
    if tl.program_id(0) == 0:
        tl.store(ws_ptr + LOW_INVERTED, low_inverted)
        tl.store(ws_ptr + HIGH, high)
    span, dense = span_of(low_inverted, high, slots, KEY)
    return ~low_inverted, span, dense


@triton.jit
def range_kernel(
    ws_ptr: tl.tensor,
    words: tl.tensor,
    slots: tl.tensor,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Write the range into the header, for a build by very many programs."""
    if EARLY:
        gdc_launch_dependents()
    if PDL:
        gdc_wait()
    whole_range(ws_ptr, words, slots, KEY, PROGRAMS)


@triton.jit
def build_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    words: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_shift: tl.tensor,
    SET: tl.constexpr,
    FILTER: tl.constexpr,
    LOOK: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Add a block of members to a zeroed set. LOOK is as for `load_members`.

    Each program combines PROGRAMS ranges. If that is 0, `range_kernel` has written the range into the header.
    """
    if EARLY:
        gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid, looks = load_members(test_ptr, start, n, LOOK, COMMON, KEY, BLOCK)
    if PDL:
        gdc_wait()
    low, dense, contended = 0, False, False
    if SET == "either":
        if PROGRAMS > 0:
            low, span, dense = whole_range(ws_ptr, words, slots, KEY, PROGRAMS)
        else:
            low, span, dense = key_range(ws_ptr, slots, KEY)
        contended = words_contend(span, n)
    add_keys(
        *(ws_ptr, key, valid, low, dense, contended, slots, factor, shift, filter_shift, looks),
        *(SET, FILTER, BUCKET, KEY),
    )


@triton.jit
def _load_parts(
    ptr: tl.tensor,
    first: tl.tensor,
    n: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
) -> tuple[tl.tuple, tl.tuple]:
    """PARTS parts of PART keys each from `first` on, and which of them are valid."""
    keys, valids = (), ()
    for i in tl.static_range(PARTS):
        key, valid = load_keys(ptr, first + i * PART, n, COMMON, KEY, PART)
        keys, valids = keys + (key,), valids + (valid,)  # type: ignore[assignment]  # noqa: RUF005
    return keys, valids


@triton.jit
def probe_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_shift: tl.tensor,
    SET: tl.constexpr,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Probe the set for BLOCKS blocks of elements, which are loaded before the set is there.

    A bitmap is probed for all of them at once. A hash set is probed for one block after the other, for
    which keys of 32 bits are loaded again, from the L1. Keys of 64 bits are loaded block by block before.
    """
    PARTS: tl.constexpr = BLOCKS if SET != "bits" and tl.uint64 == KEY else 1
    PART: tl.constexpr = BLOCK * BLOCKS // PARTS
    first = tl.program_id(0).to(tl.int64) * (BLOCK * BLOCKS)
    keys, valids = _load_parts(x_ptr, first, m, COMMON, KEY, PART, PARTS)
    if PDL:
        gdc_wait()
    low, span, dense = 0, 0, SET == "bits"
    if SET == "either":
        low, span, dense = key_range(ws_ptr, slots, KEY)
    if dense:
        results = ()
        for i in tl.static_range(PARTS):
            bit, wanted = keys[i] - low, valids[i]
            if SET == "either":
                wanted = wanted & (bit <= span)
            results = results + (has_bits(ws_ptr, bit, wanted, KEY),)  # type: ignore[assignment]  # noqa: RUF005
        for i in tl.static_range(PARTS):
            store_block(out_ptr, first + i * PART, m, results[i] ^ INVERT, PART)
    else:
        words = filter_words(ws_ptr, slots)
        for i in tl.static_range(BLOCKS):
            start = first + i * BLOCK
            if PARTS == BLOCKS:
                block, inside = keys[i], valids[i]
            else:
                block, inside = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
            found = contains(
                *(ws_ptr, block, inside, slots, factor, shift, words, filter_shift),
                *(FILTER, BUCKET, KEY),
            )
            store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
