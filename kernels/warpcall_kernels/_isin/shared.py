"""The kernels of isin that look up elements in a set in the shared memory of each program.

One makes the set of the test elements itself, so that isin is one launch:

- A *bitmap* has a bit for each value of a type of 1 or 2 bytes, or for each key from the least to the greatest
  test element if these lie close together.
- A *hash set* has slots for a key each. An empty one holds the key of the first test element, which is therefore in
  the set from the beginning. A key is inserted into the first empty one of its slots, which follow each other
  in a step that depends on the key. At least half of the slots stay empty, so each search ends.

Types of 1 or 2 bytes have a bitmap of all their values, also for many test elements. Then one kernel makes it in device
memory, of a bitmap of each program: atomics of many programs to few words of device memory would contend. Another
looks up elements in copies of it. Threads of a warp that read different lines of the L1 wait for each other, and those
that read different banks of shared memory do not.

Triton has no accesses to computed addresses in shared memory, so these are PTX. Each thread searches for itself
there, and waits for no other warp. Triton's interpreter, which has no PTX, compares each value with all test
elements instead.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._isin.few import load_tests
from warpcall_kernels._isin.hash_set import (
    INTERPRETED,
    TABLE,
    has_bits,
    keys_of,
    load_block,
    load_keys,
    set_bits,
    store_block,
)

# Bytes of an array that a kernel declares itself. It may have 48 KB of such memory. Larger arrays are in what Triton
# reserves (`_reserve`).
MOST_DECLARED = tl.constexpr(1 << 15)


def array_of(size: int) -> str:
    """PTX for the address of an array of so many bytes in shared memory.

    `global_smem` is Triton's name for the memory that it reserves.
    """
    if size > MOST_DECLARED.value:
        return "mov.u32 $0, global_smem;"
    return f"{{ .shared .align 16 .b8 isin_set[{size}]; mov.u32 $0, isin_set; }}"


def _search(access: str, bits: int) -> tl.constexpr:
    """PTX that looks at a key's slots one after the other until one is empty or holds the key, if $6 is not 0.

    $0 becomes whether that one held the key. $1 is the address of the slots, $2 the first one's offset in bytes,
    $3 the step, $4 the last byte's offset, $5 the key, and $7 what an empty slot holds.
    """
    return tl.constexpr(f"""{{
        .reg .pred p; .reg .b{bits} v; .reg .b32 o, a;
        mov.u32 $0, 0;
        setp.ne.u32 p, $6, 0;
        @!p bra DONE;
        mov.b32 o, $2;
    NEXT:
        add.u32 a, $1, o;
        {access}
        add.u32 o, o, $3;
        and.b32 o, o, $4;
        setp.ne.b{bits} p, v, $7;
        setp.ne.and.b{bits} p, v, $5, p;
        @p bra NEXT;
        setp.eq.b{bits} p, v, $5;
        selp.u32 $0, 1, 0, p;
    DONE:
    }}""")


# An insertion is an atomic that leaves a slot as it is unless that is empty.
INSERT_32 = _search("atom.shared.cas.b32 v, [a], $7, $5;", 32)
INSERT_64 = _search("atom.shared.cas.b64 v, [a], $7, $5;", 64)
FIND_32 = _search("ld.shared.b32 v, [a];", 32)
FIND_64 = _search("ld.shared.b64 v, [a];", 64)


@triton.jit
def _reserve(out_ptr: tl.tensor, factor: tl.tensor, SIZE: tl.constexpr) -> None:
    """Make Triton reserve SIZE bytes of shared memory, for a gather that never runs.

    Triton's own operations use the same memory, so none of them may need any while the array is in use.
    """
    if factor == 0:  # it is odd
        source = tl.zeros([SIZE // 4], tl.int32) + factor.to(tl.int32)
        at = tl.arange(0, 1024)
        tl.store(out_ptr + at, tl.gather(source, at + factor.to(tl.int32), 0) != 0)


@triton.jit
def _fill(address: tl.tensor, value: tl.tensor, SIZE: tl.constexpr) -> None:
    """Fill SIZE bytes with a value of 32 or 64 bits."""
    at = address + 16 * tl.arange(0, SIZE // 16).to(tl.uint32)
    if value.dtype.primitive_bitwidth == 64:
        tl.inline_asm_elementwise(
            "st.shared.v2.b64 [$1], {$2, $2}; mov.u32 $0, 0;",
            *("=r,r,l", [at, value], tl.uint32, False, 1),
        )
    else:
        tl.inline_asm_elementwise(
            "st.shared.v4.b32 [$1], {$2, $2, $2, $2}; mov.u32 $0, 0;",
            *("=r,r,r", [at, value], tl.uint32, False, 1),
        )


@triton.jit
def _set_bits(bitmap: tl.tensor, bit: tl.tensor, wanted: tl.tensor) -> None:
    """Set the wanted bits of the bitmap at this address."""
    flag = tl.full(bit.shape, 1, tl.uint32) << (bit & 31)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.u32 p, $3, 0; @p red.shared.or.b32 [$1], $2; mov.u32 $0, 0; }",
        *("=r,r,r,r", [bitmap + (bit >> 5) * 4, flag, wanted.to(tl.int32)], tl.uint32, False, 1),
    )


@triton.jit
def _has_bits(bitmap: tl.tensor, bit: tl.tensor) -> tl.tensor:
    """Whether bits of the bitmap at this address are set."""
    address = bitmap + (bit >> 5) * 4
    word = tl.inline_asm_elementwise(
        "ld.shared.b32 $0, [$1];", "=r,r", [address], tl.uint32, False, 1
    )
    return (word >> (bit & 31)) & 1 != 0


@triton.jit
def _hash(key: tl.tensor, factor: tl.tensor) -> tl.tensor:
    """A hash of 32 bits, of which the first ones are the best. `factor` is secret, as for `mix`."""
    mixed = key.to(tl.uint32) * factor.to(tl.uint32)
    if key.dtype == tl.uint64:
        mixed += (key >> 32).to(tl.uint32) * ((factor >> 32).to(tl.uint32) | 1)
    return (mixed ^ (mixed >> 15)) * 0x85EBCA6B


@triton.jit
def _at_slots(
    slots: tl.tensor,
    key: tl.tensor,
    mixed: tl.tensor,
    wanted: tl.tensor,
    empty: tl.tensor,
    INSERTS: tl.constexpr,
    SLOTS: tl.constexpr,
) -> tl.tensor:
    """Insert the wanted keys, or say which of them are there."""
    SIZE: tl.constexpr = key.dtype.primitive_bitwidth // 8
    last = tl.full([], SLOTS * SIZE - 1, tl.uint32)
    step = mixed * (2 * SIZE) | SIZE
    first = mixed >> (33 - SLOTS.bit_length())
    given = [slots, first * SIZE, step, last, key, wanted.to(tl.int32), empty]
    WIDE: tl.constexpr = key.dtype == tl.uint64
    INSERT: tl.constexpr = INSERT_64 if WIDE else INSERT_32
    FIND: tl.constexpr = FIND_64 if WIDE else FIND_32
    PTX: tl.constexpr = INSERT if INSERTS else FIND
    REGISTERS: tl.constexpr = "=&r,r,r,r,r,l,r,l" if WIDE else "=&r,r,r,r,r,r,r,r"
    held = tl.inline_asm_elementwise(PTX, REGISTERS, given, tl.uint32, False, 1)
    return held != 0


@triton.jit
def _range_of(
    key: tl.tensor, first: tl.tensor, BITS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The least key, the span of the keys, and whether the bitmap has a bit for each key in it.

    Keys of 64 bits are reduced as words above one that is 2^30 less than the first key, because a warp
    reduces words in one instruction. Those too far away have the greatest word.
    """
    if key.dtype == tl.uint64:
        base = first - (1 << 30)
        distance = key - base
        word = tl.where(distance < (1 << 31), distance, 0xFFFFFFFF).to(tl.uint32)
        least, most = tl.min(word, 0), tl.max(word, 0)
        low, span = base + least, most - least
        dense = (span < BITS) & (most < (1 << 31))
    else:
        low, most = tl.min(key, 0), tl.max(key, 0)
        span = most - low
        dense = span < BITS
    return low, span.to(key.dtype), dense


@triton.jit
def _make_bitmap(
    bit: tl.tensor, valid: tl.tensor, BITMAP: tl.constexpr, BITS: tl.constexpr
) -> tl.tensor:
    """The address of a bitmap with the valid bits."""
    bitmap = tl.inline_asm_elementwise(BITMAP, "=r", [], tl.uint32, False, 1)
    _fill(bitmap, tl.zeros([], tl.uint32), BITS // 8)
    tl.debug_barrier()
    _set_bits(bitmap, bit, valid)
    tl.debug_barrier()
    return bitmap


@triton.jit
def _make_slots(
    out_ptr: tl.tensor,
    key: tl.tensor,
    valid: tl.tensor,
    empty: tl.tensor,
    factor: tl.tensor,
    ARRAY: tl.constexpr,
    SLOTS: tl.constexpr,
) -> tl.tensor:
    """The address of the slots of a hash set with the valid keys."""
    SIZE: tl.constexpr = SLOTS * key.dtype.primitive_bitwidth // 8
    if SIZE > MOST_DECLARED:
        _reserve(out_ptr, factor, SIZE)
    slots = tl.inline_asm_elementwise(ARRAY, "=r", [], tl.uint32, False, 1)
    _fill(slots, empty, SIZE)
    tl.debug_barrier()
    _at_slots(slots, key, _hash(key, factor), valid, empty, True, SLOTS)
    tl.debug_barrier()
    return slots


@triton.jit
def _look_up(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    x: tl.tensor,
    blocks: tl.tensor,
    held: tl.tuple,
    IN_BITMAP: tl.constexpr,
    SIZE: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Look up a program's blocks, of which `x` is the first, in a set of SIZE bits or slots.

    `held` is the address of the set and, for a bitmap, its least key and its span, or, for slots, what an empty one holds
    and the factor of the hash.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for block in range(blocks):
        coming = x
        if block + 1 < blocks:
            coming = load_block(x_ptr, start + step, m, BLOCK)
        key, found = keys_of(x, COMMON, KEY)
        if IN_BITMAP:
            bit = key - held[1]
            found = found & (bit <= held[2]) & _has_bits(held[0], bit.to(tl.uint32) & (SIZE - 1))
        else:
            mixed = _hash(key, held[2])
            found = _at_slots(held[0], key, mixed, found, held[1], False, SIZE)
        store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
        start += step
        x = coming


@triton.jit
def _compare_all(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    TESTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compare a program's blocks with all test elements, in Triton's interpreter."""
    CHUNK: tl.constexpr = min(TESTS, 32)
    for block in range(blocks):
        start = (tl.program_id(0) + block * tl.num_programs(0)).to(tl.int64) * BLOCK
        key, valid = keys_of(load_block(x_ptr, start, m, BLOCK), COMMON, KEY)
        found = valid & False
        for first in range(0, TESTS, CHUNK):
            test, real = keys_of(load_tests(test_ptr, first, n, CHUNK), COMMON, KEY)
            equal = (key[:, None] == test[None, :]) & real[None, :]
            found = found | (tl.max(equal.to(tl.int32), 1) > 0)
        store_block(out_ptr, start, m, (found & valid) ^ INVERT, BLOCK)


@triton.jit
def shared_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    factor: tl.tensor,
    blocks: tl.tensor,
    SET: tl.constexpr,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BITMAP: tl.constexpr,
    ARRAY: tl.constexpr,
    BITS: tl.constexpr,
    SLOTS: tl.constexpr,
    TESTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Make up to TESTS test elements a set, and look up every so many blocks as there are programs.

    Each program looks up `blocks` of them, of which the first is loaded before. BITMAP and ARRAY are those of
    `array_of`, for BITS bits and for SLOTS slots. SET is "bits" for a bitmap, "hash" for a hash set, or "either" for a
    bitmap if the test elements lie close together, and otherwise a hash set.
    """
    if INTERPRETED:
        _compare_all(
            *(x_ptr, test_ptr, out_ptr, m, n, blocks), *(INVERT, COMMON, KEY, TESTS, BLOCK)
        )
    else:
        x = load_block(x_ptr, tl.program_id(0).to(tl.int64) * BLOCK, m, BLOCK)
        key, valid = keys_of(load_tests(test_ptr, 0, n, TESTS), COMMON, KEY)
        valid = valid & (tl.arange(0, TESTS) < n)
        empty, _valid = keys_of(tl.load(test_ptr), COMMON, KEY)
        if SET == "bits":
            bitmap = _make_bitmap(key, valid, BITMAP, BITS)
            held = (bitmap, tl.full([], 0, KEY), tl.full([], BITS, KEY))
            _look_up(
                *(x_ptr, out_ptr, m, x, blocks, held),
                *(True, BITS, INVERT, COMMON, KEY, BLOCK),
            )
        elif SET == "either":
            low, span, dense = _range_of(key, empty, BITS)
            tl.debug_barrier()  # the range was found where the slots may be
            if dense:
                bitmap = _make_bitmap((key - low).to(tl.uint32), valid, BITMAP, BITS)
                _look_up(
                    *(x_ptr, out_ptr, m, x, blocks, (bitmap, low, span)),
                    *(True, BITS, INVERT, COMMON, KEY, BLOCK),
                )
            else:
                slots = _make_slots(out_ptr, key, valid, empty, factor, ARRAY, SLOTS)
                _look_up(
                    *(x_ptr, out_ptr, m, x, blocks, (slots, empty, factor)),
                    *(False, SLOTS, INVERT, COMMON, KEY, BLOCK),
                )
        else:
            slots = _make_slots(out_ptr, key, valid, empty, factor, ARRAY, SLOTS)
            _look_up(
                *(x_ptr, out_ptr, m, x, blocks, (slots, empty, factor)),
                *(False, SLOTS, INVERT, COMMON, KEY, BLOCK),
            )


@triton.jit
def build_bits_kernel(
    test_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BITMAP: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Set the bits of test elements of a type of BITS values in the zeroed bitmap of the workspace.

    Blocks, and BITMAP, are as for `shared_kernel`.
    """
    if EARLY:
        gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    if INTERPRETED:
        for _block in range(blocks):
            key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
            set_bits(ws_ptr, key, valid, False, KEY)
            start += step
    else:
        bitmap = tl.inline_asm_elementwise(BITMAP, "=r", [], tl.uint32, False, 1)
        _fill(bitmap, tl.zeros([], tl.uint32), BITS // 8)
        tl.debug_barrier()
        for _block in range(blocks):
            key, valid = load_keys(test_ptr, start, n, COMMON, KEY, BLOCK)
            _set_bits(bitmap, key, valid)
            start += step
        tl.debug_barrier()
        at = tl.arange(0, BITS // 32)
        words = tl.inline_asm_elementwise(
            *("ld.shared.b32 $0, [$1];", "=r,r", [bitmap + 4 * at.to(tl.uint32)]),
            *(tl.uint32, False, 1),
        )
        if PDL:
            gdc_wait()
        tl.atomic_or(ws_ptr + TABLE + at, words, mask=words != 0, sem="relaxed")


@triton.jit
def _copy_bitmap(ws_ptr: tl.tensor, BITMAP: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """The address of a copy of the bitmap of a workspace."""
    bitmap = tl.inline_asm_elementwise(BITMAP, "=r", [], tl.uint32, False, 1)
    at = tl.arange(0, BITS // 32)
    tl.inline_asm_elementwise(
        "st.shared.b32 [$1], $2; mov.u32 $0, 0;",
        *("=r,r,r", [bitmap + 4 * at.to(tl.uint32), tl.load(ws_ptr + TABLE + at)]),
        *(tl.uint32, False, 1),
    )
    tl.debug_barrier()
    return bitmap


@triton.jit
def look_up_bits_kernel(
    x_ptr: tl.tensor,
    ws_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    blocks: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BITMAP: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Look up elements in the bitmap of all BITS values of a type of 1 or 2 bytes, which is in the workspace.

    Blocks, and BITMAP, are as for `shared_kernel`.
    """
    x = load_block(x_ptr, tl.program_id(0).to(tl.int64) * BLOCK, m, BLOCK)
    if PDL:
        gdc_wait()
    if INTERPRETED:
        for block in range(blocks):
            start = (tl.program_id(0) + block * tl.num_programs(0)).to(tl.int64) * BLOCK
            key, valid = keys_of(load_block(x_ptr, start, m, BLOCK), COMMON, KEY)
            store_block(out_ptr, start, m, has_bits(ws_ptr, key, valid, KEY) ^ INVERT, BLOCK)
    else:
        held = (_copy_bitmap(ws_ptr, BITMAP, BITS), tl.full([], 0, KEY), tl.full([], BITS, KEY))
        _look_up(*(x_ptr, out_ptr, m, x, blocks, held), *(True, BITS, INVERT, COMMON, KEY, BLOCK))
