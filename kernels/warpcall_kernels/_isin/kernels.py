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

from warpcall_kernels._isin.few import load_tests
from warpcall_kernels._isin.hash_set import (
    HIGH,
    LOW_INVERTED,
    add_keys,
    contains,
    filter_words,
    has_bits,
    key_range,
    keys_of,
    load_keys,
    span_of,
    store_block,
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
    """The least key, the span, and whether a bitmap is taken, from the ranges behind the workspace."""
    at = tl.arange(0, PROGRAMS)
    low_inverted = tl.max(tl.load(ws_ptr + words + at), 0)
    high = tl.max(tl.load(ws_ptr + words + PROGRAMS + at), 0)
    low, span, dense = write_range(ws_ptr, low_inverted, high, slots, KEY)
    return low, span, dense


@triton.jit
def range_of(
    ptr: tl.tensor, n: tl.tensor, COMMON: tl.constexpr, KEY: tl.constexpr, SIZE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The complement of the least and the greatest key of up to SIZE integers; zeros if SIZE is 0."""
    low_inverted, high = tl.full([], 0, KEY), tl.full([], 0, KEY)
    if SIZE > 0:
        key, _valid = keys_of(load_tests(ptr, 0, n, SIZE), COMMON, KEY)
        low_inverted, high = tl.max(~key, 0), tl.max(key, 0)
    return low_inverted, high


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
def found_range(
    ws_ptr: tl.tensor,
    low_inverted: tl.tensor,
    high: tl.tensor,
    words: tl.tensor,
    slots: tl.tensor,
    KEY: tl.constexpr,
    RANGED: tl.constexpr,
    PROGRAMS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The least key, and whether a bitmap is taken.

    The range is the given one of `range_of`. If RANGED is 0, it is that of PROGRAMS ranges; if that is
    0 as well, `range_kernel` has written it into the header.
    """
    if RANGED > 0:
        low, _span, dense = write_range(ws_ptr, low_inverted, high, slots, KEY)
    elif PROGRAMS > 0:
        low, _span, dense = whole_range(ws_ptr, words, slots, KEY, PROGRAMS)
    else:
        low, _span, dense = key_range(ws_ptr, slots, KEY)
    return low, dense


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
    RANGED: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Add a block of members to a zeroed set.

    Each program finds the range of up to RANGED members itself, while the set is zeroed. Where the
    range comes from if RANGED is 0, `found_range` says.
    """
    if EARLY:
        gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    low_inverted, high = range_of(test_ptr, n, COMMON, KEY, RANGED)
    if PDL:
        gdc_wait()
    low, dense = 0, False
    if SET == "either":
        low, dense = found_range(ws_ptr, low_inverted, high, words, slots, KEY, RANGED, PROGRAMS)
    add_keys(
        *(ws_ptr, key, valid, low, dense, slots, factor, shift, filter_shift),
        *(SET, FILTER, LOOK, BUCKET, KEY),
    )


@triton.jit
def _probe_bits(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    start: tl.tensor,
    low: tl.tensor,
    span: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Probe a bitmap for a block of elements."""
    key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
    found = has_bits(ws_ptr, key - low, valid & (key - low <= span), KEY)
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)


@triton.jit
def _probe_hash(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    first: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_shift: tl.tensor,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Probe a hash set for BLOCKS blocks of elements, one after the other."""
    words = filter_words(ws_ptr, slots)
    for block in tl.static_range(BLOCKS):
        start = first + block * BLOCK
        key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
        found = contains(
            *(ws_ptr, key, valid, slots, factor, shift, words, filter_shift),
            *(FILTER, False, BUCKET, KEY),
        )
        store_block(out_ptr, start, m, found ^ INVERT, BLOCK)


@triton.jit
def _probe_block(
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
    PDL: tl.constexpr,
) -> None:
    """Probe the set for a block of elements, which is loaded before the set is there."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
    if PDL:
        gdc_wait()
    words = filter_words(ws_ptr, slots)
    if SET == "bits":
        found = has_bits(ws_ptr, key, valid, KEY)
    elif SET == "hash":
        found = contains(
            *(ws_ptr, key, valid, slots, factor, shift, words, filter_shift),
            *(FILTER, False, BUCKET, KEY),
        )
    else:
        low, span, dense = key_range(ws_ptr, slots, KEY)
        if dense:
            found = has_bits(ws_ptr, key - low, valid & (key - low <= span), KEY)
        else:
            found = contains(
                *(ws_ptr, key, valid, slots, factor, shift, words, filter_shift),
                *(FILTER, False, BUCKET, KEY),
            )
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)


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
    """Probe the set for BLOCKS blocks of elements; a bitmap for all of them at once."""
    first = tl.program_id(0).to(tl.int64) * (BLOCK * BLOCKS)
    if BLOCKS == 1:
        _probe_block(
            *(x_ptr, ws_ptr, out_ptr, m, slots, factor, shift, filter_shift),
            *(SET, FILTER, BUCKET, INVERT, COMMON, KEY, BLOCK, PDL),
        )
    else:
        if PDL:
            gdc_wait()
        if SET == "bits":
            key, valid = load_keys(x_ptr, first, m, COMMON, KEY, BLOCK * BLOCKS)
            found = has_bits(ws_ptr, key, valid, KEY)
            store_block(out_ptr, first, m, found ^ INVERT, BLOCK * BLOCKS)
        elif SET == "hash":
            _probe_hash(
                *(x_ptr, ws_ptr, out_ptr, m, first, slots, factor, shift, filter_shift),
                *(FILTER, BUCKET, INVERT, COMMON, KEY, BLOCK, BLOCKS),
            )
        else:
            low, span, dense = key_range(ws_ptr, slots, KEY)
            if dense:
                _probe_bits(
                    *(x_ptr, ws_ptr, out_ptr, m, first, low, span),
                    *(INVERT, COMMON, KEY, BLOCK * BLOCKS),
                )
            else:
                _probe_hash(
                    *(x_ptr, ws_ptr, out_ptr, m, first, slots, factor, shift, filter_shift),
                    *(FILTER, BUCKET, INVERT, COMMON, KEY, BLOCK, BLOCKS),
                )
