"""The kernels of isin for fewer elements than test elements.

A Bloom filter is filled with the elements, and the test elements that it does not reject become a hash
set, in which each element is looked up. So few test elements cost more than one access. If the range of
the elements fits into a bitmap, test elements set their bits there instead.

The first launch is `prepare_kernel`, which zeroes a workspace: the set, and from `second` on the filter or
a second bitmap. How launches overlap with PDL is in kernels.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._isin.bloom import add_to_bloom, are_kept, keep_passing
from warpcall_kernels._isin.few import load_tests
from warpcall_kernels._isin.hash_set import (
    has_bits,
    key_range,
    keys_of,
    load_keys,
    looks_first,
    set_bits,
    store_block,
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
    words: tl.tensor,
    second: tl.tensor,
    second_words: tl.tensor,
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
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Add a block of elements to the filter or, with TWO_BITMAPS, to the first bitmap.

    With one bitmap the range says enough: it will hold the test elements, and elements are not loaded.
    Each program finds the range of up to RANGED elements itself, while the workspace is zeroed, or, if that is 0,
    combines PROGRAMS ranges. LOOK is as for `looks_first`.
    """
    ONE_BITMAP: tl.constexpr = SET == "either" and not TWO_BITMAPS
    if EARLY:
        gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if not ONE_BITMAP:
        key, valid = load_keys(x_ptr, start, n, COMMON, KEY, BLOCK)
        looks = looks_first(x_ptr, start, n, key, valid, LOOK, COMMON, KEY)
    low_inverted, high = _range_of(x_ptr, n, COMMON, KEY, RANGED)
    if PDL:
        gdc_wait()
    low, dense = 0, False
    if SET == "either":
        if RANGED > 0:
            low, span, dense = write_range(ws_ptr, low_inverted, high, slots, KEY)
        else:
            low, span, dense = whole_range(ws_ptr, words, slots, KEY, PROGRAMS)
    if dense:
        if TWO_BITMAPS:
            set_bits(ws_ptr, key - low, valid, looks | words_contend(span, n), KEY)
    else:
        if ONE_BITMAP:
            key, valid = load_keys(x_ptr, start, n, COMMON, KEY, BLOCK)
            looks = looks_first(x_ptr, start, n, key, valid, LOOK, COMMON, KEY)
        add_to_bloom(ws_ptr, key, valid, looks, second, second_words, factor, KEY)


@triton.jit
def keep_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    second: tl.tensor,
    second_words: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    TWO_BITMAPS: tl.constexpr,
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
    key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    if PDL:
        gdc_wait()
    low, span, dense = 0, 0, False
    if SET == "either":
        low, span, dense = key_range(ws_ptr, slots, KEY)
    if dense:
        inside = valid & (key - low <= span)
        if TWO_BITMAPS:
            kept = has_bits(ws_ptr, key - low, inside, KEY)
            set_bits(ws_ptr + second, key - low, kept, True, KEY)
        else:
            looks = looks_first(test_ptr, start, n, key, inside, "equal", COMMON, KEY)
            set_bits(ws_ptr, key - low, inside, looks | words_contend(span, n), KEY)
    else:
        keep_passing(
            *(ws_ptr, key, valid, second, second_words, slots, factor, shift, True), *(BUCKET, KEY)
        )


@triton.jit
def collect_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    second: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    TWO_BITMAPS: tl.constexpr,
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
    if dense:
        found = has_bits(ws_ptr + second if TWO_BITMAPS else ws_ptr, key - low, valid, KEY)
    else:
        found = are_kept(
            *(test_ptr, ws_ptr, key, valid, n, slots, factor, shift), *(BUCKET, COMMON, KEY)
        )
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
