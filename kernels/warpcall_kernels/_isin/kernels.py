"""The kernels of isin: one compares all with all, the others build and probe a set
(`_isin/hash_set.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._isin.hash_set import (
    HIGH,
    LOW_INVERTED,
    add_keys,
    contains,
    has_bits,
    key_range,
    load_block,
    load_keys,
    promote,
    store_block,
)


@triton.jit
def compare_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    UNROLL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Keep a block of elements in registers, and compare each test element with all of them."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    x = promote(load_block(x_ptr, start, m, BLOCK), COMMON)
    found = tl.zeros([BLOCK], tl.int1)
    for first in range(0, n, UNROLL):
        for i in tl.static_range(UNROLL):  # past the end, the last test element is compared again
            found |= x == promote(tl.load(test_ptr + tl.minimum(first + i, n - 1)), COMMON)
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)


@triton.jit
def range_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the least and the greatest key of an integer test set into the header."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    tl.atomic_max(ws_ptr + LOW_INVERTED, tl.max(tl.where(valid, ~key, 0), 0), sem="relaxed")
    tl.atomic_max(ws_ptr + HIGH, tl.max(tl.where(valid, key, 0), 0), sem="relaxed")


@triton.jit
def build_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_shift: tl.tensor,
    SET: tl.constexpr,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add a block of test elements to a zeroed set."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    add_keys(
        *(ws_ptr, key, valid, slots, factor, shift, filter_shift),
        *(SET, FILTER, BUCKET, KEY),
    )


@triton.jit
def build_small_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_shift: tl.tensor,
    words: tl.tensor,
    SET: tl.constexpr,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Zero the workspace, find the range and build the set, all by one program."""
    for first in range(0, words, BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        tl.store(ws_ptr + offsets, tl.zeros([BLOCK], KEY), mask=offsets < words)
    if SET == "either":
        low_inverted = tl.zeros([BLOCK], KEY)
        high = tl.zeros([BLOCK], KEY)
        for first in range(0, n, BLOCK):
            key, valid = load_keys(test_ptr, first, n, COMMON, KEY, BLOCK)
            low_inverted = tl.maximum(low_inverted, tl.where(valid, ~key, 0))
            high = tl.maximum(high, tl.where(valid, key, 0))
        tl.debug_barrier()  # until the header is zeroed
        tl.store(ws_ptr + LOW_INVERTED, tl.max(low_inverted, 0))
        tl.store(ws_ptr + HIGH, tl.max(high, 0))
    tl.debug_barrier()  # until all threads have written: others read it
    for first in range(0, n, BLOCK):
        key, valid = load_keys(test_ptr, first, n, COMMON, KEY, BLOCK)
        add_keys(
            *(ws_ptr, key, valid, slots, factor, shift, filter_shift),
            *(SET, FILTER, BUCKET, KEY),
        )


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
    HELD: tl.constexpr,
    BUCKET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Probe the set for BLOCKS blocks of elements, one after the other."""
    first = tl.program_id(0).to(tl.int64) * (BLOCK * BLOCKS)
    for block in tl.static_range(BLOCKS):
        start = first + block * BLOCK
        key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
        if SET == "bits":
            found = has_bits(ws_ptr, key, valid, KEY)
        elif SET == "hash":
            found = contains(
                ws_ptr, key, valid, slots, factor, shift, filter_shift, FILTER, HELD, BUCKET, KEY
            )
        else:
            low, span, dense = key_range(ws_ptr, slots, KEY)
            if dense:
                found = has_bits(ws_ptr, key - low, valid & (key - low <= span), KEY)
            else:
                found = contains(
                    ws_ptr, key, valid, slots, factor, shift, filter_shift,
                    FILTER, HELD, BUCKET, KEY,
                )  # fmt: skip
        store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
