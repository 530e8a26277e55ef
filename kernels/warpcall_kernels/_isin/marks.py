"""The kernels of isin that make the elements the set, in which test elements mark members.

The first launch is `prepare_kernel`. How launches overlap with PDL is in kernels.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._isin.hash_set import (
    find_slot,
    has_bits,
    insert,
    key_range,
    load_keys,
    set_bits,
    store_block,
)
from warpcall_kernels._isin.kernels import found_range, range_of


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
    TWO_BITMAPS: tl.constexpr,
    LOOK: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    RANGED: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Make a block of elements the set, as a hash set or, with TWO_BITMAPS, as a bitmap.

    With one bitmap the range says enough: it will hold the test elements. RANGED and PROGRAMS are as
    for `build_kernel`.
    """
    if PDL:
        gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(x_ptr, start, n, COMMON, KEY, BLOCK)
    low_inverted, high = range_of(x_ptr, n, COMMON, KEY, RANGED)
    if PDL:
        gdc_wait()
    if SET == "either":
        low, dense = found_range(ws_ptr, low_inverted, high, words, slots, KEY, RANGED, PROGRAMS)
        if dense:
            if TWO_BITMAPS:
                set_bits(ws_ptr, key - low, valid, KEY)
        else:
            insert(
                *(ws_ptr, key, valid, slots, factor, shift, ws_ptr, shift),
                *(False, LOOK, BUCKET, KEY),
            )
    else:
        insert(
            *(ws_ptr, key, valid, slots, factor, shift, ws_ptr, shift), *(False, LOOK, BUCKET, KEY)
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
    TWO_BITMAPS: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Mark what a block of test elements finds in the set of elements, or set its bits.

    TWO_BITMAPS are that of the elements, and behind it that of the test elements that are among them. If
    test elements are many more than elements, these are few, and only these need atomics.
    """
    if PDL:
        gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    if PDL:
        gdc_wait()
    if SET == "either":
        low, span, dense = key_range(ws_ptr, slots, KEY)
        if dense:
            inside = valid & (key - low <= span)
            if TWO_BITMAPS:
                kept = has_bits(ws_ptr, key - low, inside, KEY)
                set_bits(ws_ptr + marks, key - low, kept, KEY)
            else:
                set_bits(ws_ptr, key - low, inside, KEY)
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
    TWO_BITMAPS: tl.constexpr,
    BUCKET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Say of a block of elements which are marked."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
    if PDL:
        gdc_wait()
    if SET == "either":
        low, _span, dense = key_range(ws_ptr, slots, KEY)
        if dense:
            found = has_bits(ws_ptr + marks if TWO_BITMAPS else ws_ptr, key - low, valid, KEY)
        else:
            found = find_marks(ws_ptr, key, valid, marks, slots, factor, shift, BUCKET, KEY)
    else:
        found = find_marks(ws_ptr, key, valid, marks, slots, factor, shift, BUCKET, KEY)
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
