"""The kernels of isin that build a set (`_isin/hash_set.py`) and look up elements in it."""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._isin.hash_set import (
    HIGH,
    LOW_INVERTED,
    add_keys,
    contains,
    filter_words,
    find_slot,
    has_bits,
    insert,
    key_range,
    load_keys,
    set_bits,
    span_of,
    store_block,
)


@triton.jit
def prepare_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    words: tl.tensor,
    RANGE: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Zero the workspace, and write the range of a program's share of the members behind it."""
    program = tl.program_id(0).to(tl.int64)
    if RANGE:
        low_inverted = tl.zeros([BLOCK], KEY)
        high = tl.zeros([BLOCK], KEY)
        for first in range(program * BLOCK, n, PROGRAMS * BLOCK):
            key, valid = load_keys(test_ptr, first, n, COMMON, KEY, BLOCK)
            low_inverted = tl.maximum(low_inverted, tl.where(valid, ~key, 0))
            high = tl.maximum(high, tl.where(valid, key, 0))
        tl.store(ws_ptr + words + program, tl.max(low_inverted, 0))
        tl.store(ws_ptr + words + PROGRAMS + program, tl.max(high, 0))
    for first in range(program * BLOCK, words, PROGRAMS * BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        tl.store(ws_ptr + offsets, tl.zeros([BLOCK], KEY), mask=offsets < words)


@triton.jit
def whole_range(
    ws_ptr: tl.tensor,
    words: tl.tensor,
    slots: tl.tensor,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The least key, the span, and whether a bitmap is taken, from the ranges behind the workspace.

    The first program writes the range into the header, for later launches.
    """
    at = tl.arange(0, PROGRAMS)
    low_inverted = tl.max(tl.load(ws_ptr + words + at), 0)
    high = tl.max(tl.load(ws_ptr + words + PROGRAMS + at), 0)
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
) -> None:
    """Write the range into the header, for a build by very many programs."""
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
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add a block of members to a zeroed set.

    If PROGRAMS is 0, `range_kernel` has written the range into the header.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    low, dense = 0, False
    if SET == "either":
        if PROGRAMS > 0:
            low, _span, dense = whole_range(ws_ptr, words, slots, KEY, PROGRAMS)
        else:
            low, _span, dense = key_range(ws_ptr, slots, KEY)
    add_keys(
        *(ws_ptr, key, valid, low, dense, slots, factor, shift, filter_shift),
        *(SET, FILTER, True, BUCKET, KEY),
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
) -> None:
    """Probe the set for BLOCKS blocks of elements; a bitmap for all of them at once."""
    first = tl.program_id(0).to(tl.int64) * (BLOCK * BLOCKS)
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


@triton.jit
def keep_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    words: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Make a block of elements the set, unless their range asks for a bitmap."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(x_ptr, start, n, COMMON, KEY, BLOCK)
    if SET == "either":
        _low, _span, dense = whole_range(ws_ptr, words, slots, KEY, PROGRAMS)
        if not dense:
            insert(
                *(ws_ptr, key, valid, slots, factor, shift, ws_ptr, shift),
                *(False, True, BUCKET, KEY),
            )
    else:
        insert(
            *(ws_ptr, key, valid, slots, factor, shift, ws_ptr, shift), *(False, True, BUCKET, KEY)
        )


@triton.jit
def mark_slots(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    marks: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> None:
    """Mark the slots of keys that are members."""
    at = find_slot(ws_ptr, key, valid, slots, factor, shift, BUCKET, KEY)
    mark = (ws_ptr + marks).to(tl.pointer_type(tl.uint8)) + at
    seen = tl.load(mark, mask=at >= 0, other=1)
    tl.store(mark, tl.full(at.shape, 1, tl.uint8), mask=(at >= 0) & (seen == 0))


@triton.jit
def mark_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    marks: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Mark what a block of test elements finds in the set of elements, or set its bits."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    if SET == "either":
        low, span, dense = key_range(ws_ptr, slots, KEY)
        if dense:
            set_bits(ws_ptr, key - low, valid & (key - low <= span), KEY)
        else:
            mark_slots(ws_ptr, key, valid, marks, slots, factor, shift, BUCKET, KEY)
    else:
        mark_slots(ws_ptr, key, valid, marks, slots, factor, shift, BUCKET, KEY)


@triton.jit
def find_marks(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    marks: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> tl.tensor:
    """Whether the slots of keys are marked."""
    at = find_slot(ws_ptr, key, valid, slots, factor, shift, BUCKET, KEY)
    mark = (ws_ptr + marks).to(tl.pointer_type(tl.uint8)) + at
    return tl.load(mark, mask=at >= 0, other=0) != 0


@triton.jit
def collect_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    marks: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    BUCKET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Say of a block of elements which are marked."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
    if SET == "either":
        low, _span, dense = key_range(ws_ptr, slots, KEY)
        if dense:
            found = has_bits(ws_ptr, key - low, valid, KEY)
        else:
            found = find_marks(ws_ptr, key, valid, marks, slots, factor, shift, BUCKET, KEY)
    else:
        found = find_marks(ws_ptr, key, valid, marks, slots, factor, shift, BUCKET, KEY)
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
