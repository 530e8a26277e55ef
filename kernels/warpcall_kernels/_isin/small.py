"""The kernels of isin for a set that is built in one launch: a bitmap or a search tree.

The lookup is launched while the set is built, and loads its elements before it waits for the set.

Up to 2^LEVELS keys are the nodes of the tree, behind the header of the workspace (`hash_set.py`). In
order, node 2^k + j has number (2j + 1) * 2^(LEVELS - 1 - k), and node 0 is the least. The nodes of a
level are therefore neighbours, of which each program holds a level at a time in shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._isin.few import load_tests
from warpcall_kernels._isin.hash_set import (
    HIGH,
    LOW_INVERTED,
    TABLE,
    has_bits,
    key_range,
    keys_of,
    load_block,
    load_keys,
    set_bits,
    span_of,
    store_block,
    word_of,
)


@triton.jit
def _zero(ptr: tl.tensor, words: tl.tensor, KEY: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Zero so many words, before any thread of the program writes others there."""
    for first in range(0, words, BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        tl.store(ptr + offsets, tl.zeros([BLOCK], KEY), mask=offsets < words)
    tl.debug_barrier()


@triton.jit
def _build_bitmap(
    ws_ptr: tl.tensor,
    bit: tl.tensor,
    valid: tl.tensor,
    span: tl.tensor,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Zero as much of the bitmap as the keys span, and set their bits."""
    words = word_of(span, KEY).to(tl.int32) + 1
    _zero(ws_ptr + TABLE, words, KEY, BLOCK)
    flag = tl.full(bit.shape, 1, KEY) << (bit & (KEY.primitive_bitwidth - 1))
    tl.atomic_or(ws_ptr + TABLE + word_of(bit, KEY), flag, mask=valid, sem="relaxed")


@triton.jit
def build_bits_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    words: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Make up to BLOCK test elements a bitmap of all values of their type, by one program."""
    if PDL:
        gdc_launch_dependents()
    key, valid = load_keys(test_ptr, 0, n, COMMON, KEY, BLOCK)
    _zero(ws_ptr, words, KEY, BLOCK)
    set_bits(ws_ptr, key, valid, True, KEY)


@triton.jit
def _build_tree(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    LEVELS: tl.constexpr,
    RANKED: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    """Write RANKED nodes, a program's share: the number of a key is how many keys are before it.

    PART keys at a time are compared with them.
    """
    SIZE: tl.constexpr = 1 << LEVELS
    begin = tl.program_id(0) * RANKED
    own, _real = keys_of(load_tests(test_ptr, begin, n, RANKED), COMMON, KEY)
    at = begin + tl.arange(0, RANKED)
    counts = tl.zeros([RANKED, PART], tl.int32)
    for first in range(0, SIZE, PART):
        keys, _valid = keys_of(load_tests(test_ptr, first, n, PART), COMMON, KEY)
        place = first + tl.arange(0, PART)
        if first + PART <= begin:
            before = keys[None, :] <= own[:, None]
        elif first > begin:
            before = keys[None, :] < own[:, None]
        else:  # this program's own keys are among them: equal ones stay in their order
            before = (keys[None, :] == own[:, None]) & (place[None, :] < at[:, None])
            before |= keys[None, :] < own[:, None]
        counts += before.to(tl.int32)
    number = tl.sum(counts, 1)
    lowest = tl.maximum(number & -number, 1)
    above = (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    node = tl.where(number == 0, 0, (SIZE + number) >> above)
    tl.store(ws_ptr + TABLE + node, own)


@triton.jit
def build_tree_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    slots: tl.tensor,
    SET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    LEVELS: tl.constexpr,
    RANKED: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Make up to 2^LEVELS test elements a bitmap, which the first program does, or a search tree.

    The next launch may begin when all programs of this one have.
    """
    if PDL:
        gdc_launch_dependents()
    if SET == "either":
        key, _valid = keys_of(load_tests(test_ptr, 0, n, 1 << LEVELS), COMMON, KEY)
        low_inverted, high = tl.max(~key, 0), tl.max(key, 0)
        span, dense = span_of(low_inverted, high, slots, KEY)
        if tl.program_id(0) == 0:
            tl.store(ws_ptr + LOW_INVERTED, low_inverted)
            tl.store(ws_ptr + HIGH, high)
        if dense:
            if tl.program_id(0) == 0:
                valid = tl.arange(0, 1 << LEVELS) < n
                _build_bitmap(ws_ptr, key + low_inverted + 1, valid, span, KEY, BLOCK)
        else:
            _build_tree(test_ptr, ws_ptr, n, COMMON, KEY, LEVELS, RANKED, PART)
    else:
        _build_tree(test_ptr, ws_ptr, n, COMMON, KEY, LEVELS, RANKED, PART)


@triton.jit
def _in_tree(
    ws_ptr: tl.tensor, key: tl.tensor, KEY: tl.constexpr, LEVELS: tl.constexpr
) -> tl.tensor:
    """Whether keys are in the tree. `at` is where in its level a key's next node stands."""
    nodes = ws_ptr + TABLE
    levels = ()
    for level in tl.static_range(2, LEVELS):  # all are loaded before the first is needed
        row = tl.load(nodes + (1 << level) + tl.arange(0, 1 << level))
        levels = levels + (row,)  # type: ignore[assignment]  # noqa: RUF005  # Triton unrolls it
    least, root = tl.load(nodes), tl.load(nodes + 1)
    found = (key == least) | (key == root)
    right = root <= key
    at = right.to(tl.int32)
    if LEVELS > 1:  # two nodes need no shared memory
        seen = tl.where(right, tl.load(nodes + 3), tl.load(nodes + 2))
        found |= seen == key
        at = 2 * at + (seen <= key).to(tl.int32)
    for level in tl.static_range(2, LEVELS):
        seen = tl.gather(levels[level - 2], at, 0)
        found |= seen == key
        at = 2 * at + (seen <= key).to(tl.int32)
    return found


@triton.jit
def _in_bitmap(
    ws_ptr: tl.tensor, key: tl.tensor, low: tl.tensor, span: tl.tensor, KEY: tl.constexpr
) -> tl.tensor:
    """Whether keys are in the bitmap of the keys from `low` to `low + span`."""
    return has_bits(ws_ptr, key - low, key - low <= span, KEY)


@triton.jit
def probe_tree_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    slots: tl.tensor,
    SET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Look up a block of elements in a bitmap or a search tree.

    Elements past the end are looked up, too: only their results are not stored.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = keys_of(load_block(x_ptr, start, m, BLOCK), COMMON, KEY)
    if PDL:
        gdc_wait()
    if SET == "either":
        low, span, dense = key_range(ws_ptr, slots, KEY)
        if dense:
            found = _in_bitmap(ws_ptr, key, low, span, KEY)
        else:
            found = _in_tree(ws_ptr, key, KEY, LEVELS)
    else:
        found = _in_tree(ws_ptr, key, KEY, LEVELS) & valid
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)


@triton.jit
def probe_bits_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Look up a block of elements in a bitmap of all values of their type."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = keys_of(load_block(x_ptr, start, m, BLOCK), COMMON, KEY)
    if PDL:
        gdc_wait()
    store_block(out_ptr, start, m, has_bits(ws_ptr, key, valid, KEY) ^ INVERT, BLOCK)
