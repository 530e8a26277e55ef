"""The kernels of isin: compare with all, and a set in device memory that is built, then asked.

A value becomes a *key* first: both inputs are promoted to their common dtype, -0.0 becomes 0.0, and
the bits are an unsigned integer of 32 or 64 bits whose order is that of the integers (floats: any).
NaN is no key.

The set is one zeroed workspace of keys: HEADER words, then the table.

- As a *bitmap*, bit k of the table says whether `low + k` is a member.
- As a *hash set*, the table is slots, 0 for an empty one, in buckets of BUCKET slots (1, or 2 of 32
  bits) that one access of a thread reads. A key begins at the first slot of its bucket and walks on,
  slot by slot: `atomic_max` keeps the larger of two keys and hands back the smaller, which walks on in
  its place. No slot is ever emptied, so a key is in the set exactly if it stands before the first
  empty slot from its bucket on; and as three of four slots stay empty, every walk ends.
  The key 0 (the least integer, or 0.0) cannot be a slot's content: a flag in the header stands for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

HEADER = 16  # words before the table, which so stays aligned to 64 bytes
_LOW_INVERTED = tl.constexpr(0)  # header word: ~ of the least key, so that zeroed memory is neutral
_HIGH = tl.constexpr(1)  # header word: the greatest key
_HAS_ZERO = tl.constexpr(2)  # header word: whether key 0 is a member of the hash set
_TABLE = tl.constexpr(HEADER)


@triton.jit
def _promote(x: tl.tensor, COMMON: tl.constexpr) -> tl.tensor:
    """As torch casts: to the 16-bit floats by way of fp32.

    Adding 0.0 keeps the compiler from rounding an integer once where torch rounds it twice.
    """
    if COMMON.is_floating() and COMMON.primitive_bitwidth == 16:
        wide = x.to(tl.float32)
        x = wide if x.dtype.is_floating() else wide + 0.0
    return x.to(COMMON)


@triton.jit
def _load(ptr: tl.tensor, start: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """BLOCK values from `start`, and 0 past the end; only the last block pays for the mask."""
    offsets = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        x = tl.load(ptr + start + offsets)
    else:
        x = tl.load(ptr + start + offsets, mask=offsets < n - start, other=0)
    return x


@triton.jit
def _store(
    ptr: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    x: tl.tensor,
    mine: tl.tensor,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write a block, of which SPLIT only those that are `mine`."""
    offsets = tl.arange(0, BLOCK)
    if SPLIT:
        tl.store(ptr + start + offsets, x, mask=mine & (offsets < n - start))
    elif start + BLOCK <= n:
        tl.store(ptr + start + offsets, x)
    else:
        tl.store(ptr + start + offsets, x, mask=offsets < n - start)


@triton.jit
def _load_keys(
    ptr: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Keys from `start`, and which of them count: those before the end that are not NaN."""
    x = _promote(_load(ptr, start, n, BLOCK), COMMON)
    valid = tl.arange(0, BLOCK) < n - start
    if COMMON.is_floating():
        valid = valid & (x == x)  # noqa: PLR0124  # false for NaN
        x = tl.where(x == 0, 0, x).to(COMMON)  # -0.0 too
        if COMMON.primitive_bitwidth == 64:
            key = x.to(tl.uint64, bitcast=True)
        elif COMMON.primitive_bitwidth == 32:
            key = x.to(tl.uint32, bitcast=True)
        else:
            key = x.to(tl.uint16, bitcast=True).to(KEY)
    elif COMMON.primitive_bitwidth == 64:
        key = x.to(tl.uint64, bitcast=True) ^ (1 << 63)
    elif COMMON.is_int_signed():
        key = x.to(tl.int32).to(KEY, bitcast=True) + (1 << (COMMON.primitive_bitwidth - 1))
    else:
        key = x.to(KEY)
    return key, valid


@triton.jit
def _home(
    key: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> tl.tensor:
    """The first slot of a key's bucket; `factor` is a secret, so that nobody can choose collisions."""
    if tl.uint64 == KEY:
        mixed = key * factor.to(tl.uint64)
        mixed = (mixed ^ (mixed >> 32)) * 0x9E3779B97F4A7C15
        bucket = (mixed >> 32).to(tl.uint32) >> shift
    else:
        mixed = key * factor.to(tl.uint32)
        mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B
        bucket = mixed >> shift
    return bucket.to(slots.dtype) * BUCKET  # 64 bits only for 2^31 slots or more


@triton.jit
def _word(bit: tl.tensor, KEY: tl.constexpr) -> tl.tensor:
    """Which word of the table holds a bit of the bitmap."""
    return bit >> (6 if tl.uint64 == KEY else 5)


@triton.jit
def _mark(ws_ptr: tl.tensor, bit: tl.tensor, valid: tl.tensor, KEY: tl.constexpr) -> None:
    """Set bits of the bitmap; a look first spares equal values their contended atomics."""
    word = ws_ptr + _TABLE + _word(bit, KEY)
    flag = tl.full(bit.shape, 1, KEY) << (bit & (KEY.primitive_bitwidth - 1))
    seen = tl.load(word, mask=valid, other=0)
    tl.atomic_or(word, flag, mask=valid & ((seen & flag) == 0), sem="relaxed")


@triton.jit
def _is_marked(ws_ptr: tl.tensor, bit: tl.tensor, valid: tl.tensor, KEY: tl.constexpr) -> tl.tensor:
    word = tl.load(ws_ptr + _TABLE + _word(bit, KEY), mask=valid, other=0)
    return valid & ((word >> (bit & (KEY.primitive_bitwidth - 1)) & 1) != 0)


@triton.jit
def _insert(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
) -> None:
    """Make keys members of the hash set; `slot` is their home."""
    tl.store(ws_ptr + _HAS_ZERO + tl.zeros_like(key), 1, mask=valid & (key == 0))
    pending = valid & (key != 0)
    while tl.max(pending.to(tl.int32), 0) > 0:
        seen = tl.load(ws_ptr + _TABLE + slot, mask=pending, other=0)
        pending = pending & (seen != key)
        old = tl.atomic_max(ws_ptr + _TABLE + slot, key, mask=pending, sem="relaxed")
        pending = pending & (old != 0) & (old != key)
        key = tl.where(pending, tl.minimum(key, old), key)
        slot = (slot + 1) & (slots - 1)


@triton.jit
def _contains(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    BUCKET: tl.constexpr,
) -> tl.tensor:
    """Which keys are members of the hash set; `slot` is their home."""
    has_zero = tl.load(ws_ptr + _HAS_ZERO) != 0
    found = valid & (key == 0) & has_zero
    pending = valid & (key != 0)
    while tl.max(pending.to(tl.int32), 0) > 0:
        if BUCKET == 1:
            seen = tl.load(ws_ptr + _TABLE + slot, mask=pending, other=0)
            hit = seen == key
            end = seen == 0
        else:  # two slots of 32 bits as one word of 64
            pairs = (ws_ptr + _TABLE).to(tl.pointer_type(tl.uint64))
            pair = tl.load(pairs + slot // 2, mask=pending, other=0)
            low, high = pair.to(tl.uint32), (pair >> 32).to(tl.uint32)
            hit = (low == key) | (high == key)
            end = (low == 0) | (high == 0)
        found = found | (pending & hit)
        pending = pending & ~(hit | end)
        slot = (slot + BUCKET) & (slots - 1)
    return found


@triton.jit
def _mine(
    valid: tl.tensor,
    word: tl.tensor,
    part: tl.tensor,
    part_shift: tl.tensor,
    SPLIT: tl.constexpr,
) -> tl.tensor:
    """`valid`, SPLIT only where the word of the table lies in this part of it."""
    if SPLIT:
        valid = valid & (word >> part_shift == part)
    return valid


@triton.jit
def _add(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    low: tl.tensor,
    dense: tl.tensor,
    part: tl.tensor,
    part_shift: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    SPLIT: tl.constexpr,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> None:
    """Make keys members, in the way that SET says ("bits", "hash") or, "either", the data."""
    if SET == "bits":
        _mark(ws_ptr, key, _mine(valid, _word(key, KEY), part, part_shift, SPLIT), KEY)
    elif SET == "hash":
        slot = _home(key, slots, factor, shift, BUCKET, KEY)
        _insert(ws_ptr, key, _mine(valid, slot, part, part_shift, SPLIT), slot, slots)
    elif dense:
        _mark(ws_ptr, key - low, valid, KEY)
    else:
        slot = _home(key, slots, factor, shift, BUCKET, KEY)
        _insert(ws_ptr, key, _mine(valid, slot, part, part_shift, SPLIT), slot, slots)


@triton.jit
def _range(
    ws_ptr: tl.tensor, slots: tl.tensor, KEY: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The least key, the span of the keys, and whether the table has a bit for each in it."""
    low = ~tl.load(ws_ptr + _LOW_INVERTED)
    span = tl.load(ws_ptr + _HIGH) - low
    return low, span, span.to(tl.uint64) < slots.to(tl.uint64) * KEY.primitive_bitwidth


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
    """A block of elements stays in registers; each test element is compared with all of it."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    x = _promote(_load(x_ptr, start, m, BLOCK), COMMON)
    found = tl.zeros([BLOCK], tl.int1)
    for first in range(0, n, UNROLL):
        for i in tl.static_range(UNROLL):  # past the end the last one is compared again
            found |= x == _promote(tl.load(test_ptr + tl.minimum(first + i, n - 1)), COMMON)
    _store(out_ptr, start, m, found ^ INVERT, found, False, BLOCK)


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
    key, valid = _load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    tl.atomic_max(ws_ptr + _LOW_INVERTED, tl.max(tl.where(valid, ~key, 0), 0), sem="relaxed")
    tl.atomic_max(ws_ptr + _HIGH, tl.max(tl.where(valid, key, 0), 0), sem="relaxed")


@triton.jit
def _share(
    n: tl.tensor,
    dense: tl.tensor,
    blocks: tl.tensor,
    SET: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The part of the table that is this program's, its first value, and how many there are for it.

    SPLIT, all values go through each part of the table, small enough for the L2, before the next
    part; a bitmap that the device chose is small, and the first part is all of it.
    """
    pid = tl.program_id(0)
    part = pid * 0
    if SPLIT:
        part = pid // blocks
        pid = pid - part * blocks
        if SET == "either":
            n = tl.where(dense & (part > 0), 0, n)
    return part, pid.to(tl.int64) * BLOCK, n


@triton.jit
def build_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    part_shift: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    SPLIT: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add a block of test elements to a zeroed set."""
    low, _, dense = _range(ws_ptr, slots, KEY)
    part, start, n = _share(n, dense, blocks, SET, SPLIT, BLOCK)
    key, valid = _load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    _add(
        *(ws_ptr, key, valid, low, dense, part, part_shift, slots, factor, shift),
        *(SET, SPLIT, BUCKET, KEY),
    )


@triton.jit
def build_small_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    BUCKET: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Zero, range and build in one launch, by one program."""
    for first in range(0, slots + _TABLE, BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        tl.store(ws_ptr + offsets, tl.zeros([BLOCK], KEY), mask=offsets < slots + _TABLE)
    if SET == "either":
        low_inverted = tl.zeros([BLOCK], KEY)
        high = tl.zeros([BLOCK], KEY)
        for first in range(0, n, BLOCK):
            key, valid = _load_keys(test_ptr, first, n, COMMON, KEY, BLOCK)
            low_inverted = tl.maximum(low_inverted, tl.where(valid, ~key, 0))
            high = tl.maximum(high, tl.where(valid, key, 0))
        tl.debug_barrier()  # the header is zeroed
        tl.store(ws_ptr + _LOW_INVERTED, tl.max(low_inverted, 0))
        tl.store(ws_ptr + _HIGH, tl.max(high, 0))
    tl.debug_barrier()  # what follows reads what other threads have written
    low, _, dense = _range(ws_ptr, slots, KEY)
    for first in range(0, n, BLOCK):
        key, valid = _load_keys(test_ptr, first, n, COMMON, KEY, BLOCK)
        _add(
            *(ws_ptr, key, valid, low, dense, 0, 0, slots, factor, shift),
            *(SET, False, BUCKET, KEY),
        )


@triton.jit
def probe_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    blocks: tl.tensor,
    part_shift: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    SET: tl.constexpr,
    SPLIT: tl.constexpr,
    BUCKET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Ask the set for a block of elements."""
    low, span, dense = _range(ws_ptr, slots, KEY)
    part, start, m = _share(m, dense, blocks, SET, SPLIT, BLOCK)
    key, valid = _load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
    mine = tl.full([BLOCK], True, tl.int1)
    if SET == "bits":
        mine = _mine(mine, _word(key, KEY), part, part_shift, SPLIT)
        found = _is_marked(ws_ptr, key, valid & mine, KEY)
    elif SET == "hash":
        slot = _home(key, slots, factor, shift, BUCKET, KEY)
        mine = _mine(mine, slot, part, part_shift, SPLIT)
        found = _contains(ws_ptr, key, valid & mine, slot, slots, BUCKET)
    elif dense:
        found = _is_marked(ws_ptr, key - low, valid & (key - low <= span), KEY)
    else:
        slot = _home(key, slots, factor, shift, BUCKET, KEY)
        mine = _mine(mine, slot, part, part_shift, SPLIT)
        found = _contains(ws_ptr, key, valid & mine, slot, slots, BUCKET)
    _store(out_ptr, start, m, found ^ INVERT, mine, SPLIT, BLOCK)
