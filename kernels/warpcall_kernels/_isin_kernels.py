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

A hash set larger than the L2 has a *filter* before it, which stays there: two bits of one word for
each key. What has them not both is no member, and only the others, some 6 % of strangers, cost an
access of 64 bytes to memory.
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
    BLOCK: tl.constexpr,
) -> None:
    offsets = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
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
def _mix(key: tl.tensor, factor: tl.tensor, KEY: tl.constexpr) -> tl.tensor:
    """32 bits of hash; `factor` is a secret, so that nobody can choose collisions."""
    if tl.uint64 == KEY:
        mixed = key * factor.to(tl.uint64)
        mixed = (mixed ^ (mixed >> 32)) * 0x9E3779B97F4A7C15
        return (mixed >> 32).to(tl.uint32)
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        mixed = key * factor.to(tl.uint32)
        return (mixed ^ (mixed >> 16)) * 0x85EBCA6B


@triton.jit
def _home(mixed: tl.tensor, slots: tl.tensor, shift: tl.tensor, BUCKET: tl.constexpr) -> tl.tensor:
    """The first slot of a key's bucket."""
    bucket = mixed >> shift
    return bucket.to(slots.dtype) * BUCKET  # 64 bits only for 2^31 slots or more


@triton.jit
def _filter_of(
    ws_ptr: tl.tensor, mixed: tl.tensor, slots: tl.tensor, filter_shift: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The word of the filter, which lies behind the table, and the two bits of it that a key sets."""
    words = (ws_ptr + _TABLE + slots).to(tl.pointer_type(tl.uint32))
    bits = (tl.full(mixed.shape, 1, tl.uint32) << (mixed & 31)) | (
        tl.full(mixed.shape, 1, tl.uint32) << (mixed >> 5 & 31)
    )
    return words + (mixed >> filter_shift), bits


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
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_shift: tl.tensor,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> None:
    tl.store(ws_ptr + _HAS_ZERO + tl.zeros_like(key), 1, mask=valid & (key == 0))
    mixed = _mix(key, factor, KEY)
    slot = _home(mixed, slots, shift, BUCKET)
    pending = valid & (key != 0)
    look = pending  # a look first spares equal keys their contended atomics
    if FILTER:  # what is new to it need not look
        word, bits = _filter_of(ws_ptr, mixed, slots, filter_shift)
        look = pending & ((tl.load(word, mask=pending, other=0) & bits) == bits)
        tl.atomic_or(word, bits, mask=pending & ~look, sem="relaxed")
    while tl.max(pending.to(tl.int32), 0) > 0:
        seen = tl.load(ws_ptr + _TABLE + slot, mask=look, other=0)
        pending = pending & (seen != key)
        old = tl.atomic_max(ws_ptr + _TABLE + slot, key, mask=pending, sem="relaxed")
        pending = pending & (old != 0) & (old != key)
        key = tl.where(pending, tl.minimum(key, old), key)
        slot = (slot + 1) & (slots - 1)
        look = pending


@triton.jit
def _contains(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_shift: tl.tensor,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> tl.tensor:
    has_zero = tl.load(ws_ptr + _HAS_ZERO) != 0
    found = valid & (key == 0) & has_zero
    pending = valid & (key != 0)
    mixed = _mix(key, factor, KEY)
    slot = _home(mixed, slots, shift, BUCKET)
    if FILTER:
        word, bits = _filter_of(ws_ptr, mixed, slots, filter_shift)
        pending = pending & ((tl.load(word, mask=pending, other=0) & bits) == bits)
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
def _add(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_shift: tl.tensor,
    SET: tl.constexpr,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> None:
    """Make keys members, in the way that SET says ("bits", "hash") or, "either", the data."""
    if SET == "bits":
        _mark(ws_ptr, key, valid, KEY)
    elif SET == "hash":
        _insert(ws_ptr, key, valid, slots, factor, shift, filter_shift, FILTER, BUCKET, KEY)
    else:
        low, _, dense = _range(ws_ptr, slots, KEY)
        if dense:
            _mark(ws_ptr, key - low, valid, KEY)
        else:
            _insert(ws_ptr, key, valid, slots, factor, shift, filter_shift, FILTER, BUCKET, KEY)


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
    _store(out_ptr, start, m, found ^ INVERT, BLOCK)


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
    key, valid = _load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
    _add(
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
    for first in range(0, n, BLOCK):
        key, valid = _load_keys(test_ptr, first, n, COMMON, KEY, BLOCK)
        _add(ws_ptr, key, valid, slots, factor, shift, 0, SET, False, BUCKET, KEY)


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
) -> None:
    """Ask the set for a block of elements."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    key, valid = _load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
    if SET == "bits":
        found = _is_marked(ws_ptr, key, valid, KEY)
    elif SET == "hash":
        found = _contains(
            ws_ptr, key, valid, slots, factor, shift, filter_shift, FILTER, BUCKET, KEY
        )
    else:
        low, span, dense = _range(ws_ptr, slots, KEY)
        if dense:
            found = _is_marked(ws_ptr, key - low, valid & (key - low <= span), KEY)
        else:
            found = _contains(
                ws_ptr, key, valid, slots, factor, shift, filter_shift, FILTER, BUCKET, KEY
            )
    _store(out_ptr, start, m, found ^ INVERT, BLOCK)
