"""The set of isin: values as keys, and a bitmap or a hash set in device memory.

A value first becomes a *key*: both inputs are promoted to their common dtype, -0.0 becomes 0.0, and
the bits are read as an unsigned integer of 32 or 64 bits. The order of keys is that of the
integers; that of floats does not matter. NaN has no key.

The set is one zeroed workspace of keys: HEADER words, then the table.

- In a *bitmap*, bit k of the table says whether `low + k` is a member.
- In a *hash set*, the table consists of slots, which are 0 when empty, in buckets of BUCKET slots
  (16 bytes) that a thread reads in one access. An insertion begins at any slot of a key's bucket, and
  goes on with the others and then with the next bucket: `atomic_max` keeps the larger of two keys
  in the slot and returns the smaller, which goes on in its place. No slot becomes empty again, and
  those of a bucket that an insertion has left are taken. A key is therefore in the set exactly if
  it stands in its bucket or one behind it, up to the first that has an empty slot.
  At least three of four slots stay empty, so every probe ends. Key 0 (the least integer, or 0.0)
  cannot be stored in a slot; a flag in the header stands for it.

A hash set that is much larger than the L2 has a *filter* of 32-bit words behind the table. Each key
sets two bits of one word; a value whose bits are not both set is no member. The filter stays in the
L2, so that few values that are no members cost an access of 64 bytes to memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

HEADER = 16  # words before the table, which is therefore aligned to 64 bytes
LOW_INVERTED = tl.constexpr(
    0
)  # header word: the complement of the least key, for which 0 is neutral
HIGH = tl.constexpr(1)  # header word: the greatest key
HAS_ZERO = tl.constexpr(2)  # header word: whether key 0 is a member of the hash set
OVERFLOW = tl.constexpr(3)  # header word: 0, DIRECT or LATE (bloom.py)
EQUAL = tl.constexpr(4)  # header word: whether many test elements are equal (bloom.py)
# Header words: how many elements, and how many other test elements, of the sample passed (bloom.py).
HITS, EQUAL_HITS = tl.constexpr(5), tl.constexpr(6)
FULL = tl.constexpr(7)  # header word: whether the set of test elements that pass is full (bloom.py)
TABLE = tl.constexpr(HEADER)
# Data that are read or written once are evicted first, so that the set stays in the L2. 2^24 int64
# in 2^20 on an H200: 278 us, 4 % less than without.
STREAM = tl.constexpr("evict_first")
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # which has no inline assembly


@triton.jit
def promote(x: tl.tensor, COMMON: tl.constexpr) -> tl.tensor:
    """Convert as torch does: to 16-bit floats by way of fp32.

    Torch rounds an integer twice then. Without the addition of 0.0 the compiler would round it
    once.
    """
    if COMMON.is_floating() and COMMON.primitive_bitwidth == 16:
        wide = x.to(tl.float32)
        x = wide if x.dtype.is_floating() else wide + 0.0
    return x.to(COMMON)


@triton.jit
def load_block(ptr: tl.tensor, start: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """BLOCK values from `start` on, and 0 past the end. Only the last block needs a mask."""
    offsets = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        x = tl.load(ptr + start + offsets, eviction_policy=STREAM)
    else:
        x = tl.load(ptr + start + offsets, offsets < n - start, 0, eviction_policy=STREAM)
    return x


@triton.jit
def store_block(
    ptr: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    x: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Store BLOCK values from `start` on, and none past the end."""
    offsets = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        tl.store(ptr + start + offsets, x, eviction_policy=STREAM)
    else:
        tl.store(ptr + start + offsets, x, offsets < n - start, eviction_policy=STREAM)


@triton.jit
def keys_of(x: tl.tensor, COMMON: tl.constexpr, KEY: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The keys of values, and which of them are valid: those that are not NaN."""
    x = promote(x, COMMON)
    valid = x == x  # noqa: PLR0124  # false for NaN
    if COMMON.is_floating():
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
def load_keys(
    ptr: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """BLOCK keys from `start` on, and which of them are valid: those before the end that are not
    NaN.
    """
    key, valid = keys_of(load_block(ptr, start, n, BLOCK), COMMON, KEY)
    return key, valid & (tl.arange(0, BLOCK) < n - start)


@triton.jit
def load_members(
    ptr: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    LOOK: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """BLOCK keys from `start` on, which of them to add to a set, and whether their slots or words are read first.

    LOOK is "always", "never" or "equal". Unless slots are always read, a key that equals the first one of its block is
    not added: if all keys are equal, their atomics would take ten times as long as those of different keys. With
    "equal", slots are read before their atomics if there is such a key. This is so in most blocks if all keys together
    have few values. Their atomics would contend, too, without the read, which finds most keys in the set already.
    """
    key, valid = load_keys(ptr, start, n, COMMON, KEY, BLOCK)
    looks = LOOK == "always"
    if LOOK != "always":
        first, _valid = keys_of(tl.load(ptr + tl.minimum(start, n - 1)), COMMON, KEY)
        equal = valid & (key == first) & (tl.arange(0, BLOCK) > 0)
        valid = valid & ~equal
        if LOOK == "equal":
            looks = tl.max(equal.to(tl.int32), 0) > 0
    return key, valid, looks


@triton.jit
def words_contend(span: tl.tensor, n: tl.tensor) -> tl.tensor:
    """Whether a bitmap of `span` + 1 bits has no more bits than n keys, whose atomics then contend."""
    return span.to(tl.uint64) < n


@triton.jit
def mix(key: tl.tensor, factor: tl.tensor, KEY: tl.constexpr) -> tl.tensor:
    """A hash of 32 bits. `factor` is secret, so that callers cannot choose values that collide."""
    if tl.uint64 == KEY:
        mixed = key * factor.to(tl.uint64)
        mixed = (mixed ^ (mixed >> 32)) * 0x9E3779B97F4A7C15
        return (mixed >> 32).to(tl.uint32)
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        mixed = key * factor.to(tl.uint32)
        return (mixed ^ (mixed >> 16)) * 0x85EBCA6B


@triton.jit
def first_slot(
    mixed: tl.tensor, slots: tl.tensor, shift: tl.tensor, BUCKET: tl.constexpr
) -> tl.tensor:
    """The first slot of a key's bucket."""
    bucket = mixed >> shift
    return bucket.to(slots.dtype) * BUCKET  # 64 bits only for 2^31 slots or more


@triton.jit
def filter_bits(mixed: tl.tensor) -> tl.tensor:
    """The two bits that a key sets in its word of the filter."""
    one = tl.full(mixed.shape, 1, tl.uint32)
    return (one << (mixed & 31)) | (one << (mixed >> 5 & 31))


@triton.jit
def filter_words(ws_ptr: tl.tensor, slots: tl.tensor) -> tl.tensor:
    """A pointer to the words of the filter."""
    return (ws_ptr + TABLE + slots).to(tl.pointer_type(tl.uint32))


@triton.jit
def word_of(bit: tl.tensor, KEY: tl.constexpr) -> tl.tensor:
    """Which word of the table holds a bit of the bitmap."""
    return bit >> (6 if tl.uint64 == KEY else 5)


@triton.jit
def set_bits(
    ws_ptr: tl.tensor, bit: tl.tensor, valid: tl.tensor, looks: tl.tensor, KEY: tl.constexpr
) -> None:
    """Set bits of the bitmap. If `looks`, they are read first, because atomics of equal bits would contend."""
    word = ws_ptr + TABLE + word_of(bit, KEY)
    flag = tl.full(bit.shape, 1, KEY) << (bit & (KEY.primitive_bitwidth - 1))
    if looks:
        valid = valid & ((tl.load(word, mask=valid, other=0) & flag) == 0)
    tl.atomic_or(word, flag, mask=valid, sem="relaxed")


@triton.jit
def has_bits(ws_ptr: tl.tensor, bit: tl.tensor, valid: tl.tensor, KEY: tl.constexpr) -> tl.tensor:
    """Whether bits of the bitmap are set."""
    word = tl.load(ws_ptr + TABLE + word_of(bit, KEY), mask=valid, other=0)
    return valid & ((word >> (bit & (KEY.primitive_bitwidth - 1)) & 1) != 0)


@triton.jit
def insert(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_ptr: tl.tensor,
    filter_shift: tl.tensor,
    looks: tl.tensor,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
    MOST_PROBES: tl.constexpr = 0,
) -> None:
    """Insert keys into the hash set, and into its filter, whose words `filter_ptr` points to.

    If `looks`, slots are read first, because atomics of equal keys would contend. With MOST_PROBES, a key
    that finds no empty slot in so many is not inserted, and FULL is set.
    """
    tl.store(ws_ptr + HAS_ZERO + tl.zeros_like(key), 1, mask=valid & (key == 0))
    mixed = mix(key, factor, KEY)
    slot = first_slot(mixed, slots, shift, BUCKET) | (mixed & (BUCKET - 1)).to(slots.dtype)
    pending = valid & (key != 0)
    look = pending & looks
    if FILTER:  # keys that are new to the filter need not be looked for
        word = filter_ptr + (mixed >> filter_shift)
        bits = filter_bits(mixed)
        look = look & ((tl.load(word, mask=look, other=0) & bits) == bits)
        tl.atomic_or(word, bits, mask=pending & ~look, sem="relaxed")
    probes = 0
    while tl.max(pending.to(tl.int32), 0) > 0:
        if looks:
            seen = tl.load(ws_ptr + TABLE + slot, mask=look, other=0)
            pending = pending & (seen != key)
        old = tl.atomic_max(ws_ptr + TABLE + slot, key, mask=pending, sem="relaxed")
        pending = pending & (old != 0) & (old != key)
        key = tl.where(pending, tl.minimum(key, old), key)
        slot = slot ^ ((slot ^ (slot + 1)) & (BUCKET - 1))  # the next one of the bucket
        probes += 1
        if probes % BUCKET == 0:
            slot = (slot + BUCKET) & (slots - 1)
        if MOST_PROBES > 0 and probes == MOST_PROBES:
            tl.store(ws_ptr + FULL + tl.zeros_like(key), 1, mask=pending)
            pending = pending & False
        look = pending & looks


@triton.jit
def _load_bucket(ptrs: tl.tensor, wanted: tl.tensor, KEY: tl.constexpr) -> tl.tuple:
    """The slots of the bucket at each wanted address, in one access of 16 bytes; else zeros."""
    if INTERPRETED:
        first = ptrs.to(tl.pointer_type(tl.uint64))
        words = (tl.load(first, mask=wanted, other=0), tl.load(first + 1, mask=wanted, other=0))
    else:
        words = tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; mov.b64 $0, 0; mov.b64 $1, 0;"
            " @p ld.global.v2.b64 {$0, $1}, [$2]; }",
            "=&l,=&l,l,r",
            [ptrs.to(tl.int64), wanted.to(tl.int32)],
            dtype=(tl.uint64, tl.uint64),
            is_pure=False,
            pack=1,
        )
    return words if tl.uint64 == KEY else _halves(words[0]) + _halves(words[1])


@triton.jit
def _halves(word: tl.tensor) -> tl.tuple:
    """The low and the high 32 bits."""
    return (word.to(tl.uint32), (word >> 32).to(tl.uint32))


@triton.jit
def _look(
    ptrs: tl.tensor, key: tl.tensor, pending: tl.tensor, KEY: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Whether keys are in the buckets at these addresses, and whether these have an empty slot."""
    slots = _load_bucket(ptrs, pending, KEY)
    hit, end = slots[0] == key, slots[0] == 0
    for i in tl.static_range(1, len(slots)):
        hit |= slots[i] == key
        end |= slots[i] == 0
    return hit, end


@triton.jit
def contains(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_ptr: tl.tensor,
    filter_shift: tl.tensor,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> tl.tensor:
    """Whether keys are in the hash set. `filter_ptr` points to the words of its filter."""
    has_zero = tl.load(ws_ptr + HAS_ZERO) != 0
    found = valid & (key == 0) & has_zero
    pending = valid & (key != 0)
    mixed = mix(key, factor, KEY)
    slot = first_slot(mixed, slots, shift, BUCKET)
    if FILTER:
        word = tl.load(filter_ptr + (mixed >> filter_shift), mask=pending, other=0)
        bits = filter_bits(mixed)
        pending = pending & ((word & bits) == bits)
    # Most keys are decided by their first bucket, for which no thread waits for another.
    hit, end = _look(ws_ptr + TABLE + slot, key, pending, KEY)
    found |= pending & hit
    pending &= ~(hit | end)
    while tl.max(pending.to(tl.int32), 0) > 0:
        slot = (slot + BUCKET) & (slots - 1)
        hit, end = _look(ws_ptr + TABLE + slot, key, pending, KEY)
        found |= pending & hit
        pending &= ~(hit | end)
    return found


@triton.jit
def add_keys(
    ws_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    low: tl.tensor,
    dense: tl.tensor,
    contended: tl.tensor,
    slots: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    filter_shift: tl.tensor,
    looks: tl.tensor,
    SET: tl.constexpr,
    FILTER: tl.constexpr,
    BUCKET: tl.constexpr,
    KEY: tl.constexpr,
) -> None:
    """Make keys members of a bitmap ("bits"), a hash set ("hash"), or what their range asks for
    ("either").

    For "either", `low` and `dense` are those of `key_range`, and `contended` is that of `words_contend`.
    `looks` is as for `insert`.
    """
    words = filter_words(ws_ptr, slots)
    if SET == "bits":
        set_bits(ws_ptr, key, valid, looks, KEY)
    elif SET == "hash":
        insert(
            *(ws_ptr, key, valid, slots, factor, shift, words, filter_shift, looks),
            *(FILTER, BUCKET, KEY),
        )
    elif dense:
        set_bits(ws_ptr, key - low, valid, looks | contended, KEY)
    else:
        insert(
            *(ws_ptr, key, valid, slots, factor, shift, words, filter_shift, looks),
            *(FILTER, BUCKET, KEY),
        )


@triton.jit
def key_range(
    ws_ptr: tl.tensor, slots: tl.tensor, KEY: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The least key, the span of the keys, and whether the table has a bit for each key in it."""
    low_inverted, high = tl.load(ws_ptr + LOW_INVERTED), tl.load(ws_ptr + HIGH)
    span, dense = span_of(low_inverted, high, slots, KEY)
    return ~low_inverted, span, dense


@triton.jit
def span_of(
    low_inverted: tl.tensor, high: tl.tensor, slots: tl.tensor, KEY: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The span of keys, and whether the table has a bit for each key in it."""
    span = high - ~low_inverted
    return span, span.to(tl.uint64) < slots.to(tl.uint64) * KEY.primitive_bitwidth
