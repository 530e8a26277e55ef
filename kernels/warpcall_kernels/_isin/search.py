"""The kernel of isin that makes a set of the test elements in each program: one launch for all.

The set is a bitmap if the test elements lie close together, and otherwise a search tree. Each is
held in shared memory, from which a thread reads what it looks up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._isin.few import either, load_tests
from warpcall_kernels._isin.hash_set import keys_of, load_block, store_block


@triton.jit
def _load_words(
    ptr: tl.tensor, n: tl.tensor, COMMON: tl.constexpr, KEY: tl.constexpr, SIZE: tl.constexpr
) -> tuple[tl.tensor, tl.tuple, tl.tensor, tl.tensor]:
    """Test elements as words of 32 bits above a base, 32 in each warp, and their least and greatest.

    A warp reduces such words in one instruction each, and needs no other warp for it. Keys of 64
    bits that are too far from the first one have the greatest word.
    """
    words = ()
    if tl.uint64 == KEY:
        first, _valid = keys_of(tl.load(ptr), COMMON, KEY)
        base = first - (1 << 30)
    else:
        base = tl.zeros([], KEY)
    for begin in tl.static_range(0, SIZE, 32):
        at = tl.minimum(begin + tl.arange(0, 32), n - 1)
        key, _valid = keys_of(tl.load(ptr + at), COMMON, KEY)
        if tl.uint64 == KEY:
            distance = key - base
            key = tl.where(distance < (1 << 31), distance, 0xFFFFFFFF).to(tl.uint32)
        words = words + (key,)  # type: ignore[assignment]  # noqa: RUF005  # Triton unrolls it
        if begin == 0:
            least = key
            most = key
        else:
            least = tl.minimum(least, key)
            most = tl.maximum(most, key)
    return base, words, tl.min(least, 0), tl.max(most, 0)


@triton.jit
def _bitmap(words: tl.tuple, least: tl.tensor, WORDS: tl.constexpr) -> tl.tensor:
    """WORDS words of 32 bits, with a bit for each of `words`. Each warp makes some of them."""
    place = tl.arange(0, WORDS).to(tl.uint32)[:, None]
    flags = tl.zeros([WORDS, 32], tl.uint32)
    for i in tl.static_range(len(words)):
        bit = words[i] - least
        flag = tl.full([32], 1, tl.uint32) << (bit & 31)
        flags |= tl.where((bit >> 5)[None, :] == place, flag[None, :], 0)
    return tl.reduce(flags, 1, either)


@triton.jit
def _search_tree(keys: tl.tensor, LEVELS: tl.constexpr) -> tl.tensor:
    """Sort 2^LEVELS keys into a search tree.

    Node 2^k + j of the tree has number (2j + 1) * 2^(LEVELS - 1 - k) in order, so that the nodes of
    a level are neighbours, which lie in different banks of shared memory. Node 0 has the least.
    """
    node = tl.arange(0, 1 << LEVELS)
    ordered = tl.sort(keys)
    depth = (tl.maximum(node, 1).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    number = ((node << 1) + 1 - (2 << depth)) << (LEVELS - 1 - depth)
    return tl.gather(ordered, tl.where(node == 0, 0, number), 0)


@triton.jit
def _look_up_bits(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    start: tl.tensor,
    step: tl.tensor,
    x: tl.tensor,
    bitmap: tl.tensor,
    low: tl.tensor,
    span: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Look up BLOCKS blocks in a bitmap of the keys from `low` on.

    `x` is the first, which begins at `start`, and each begins `step` after the one before.
    """
    for block in range(BLOCKS):
        coming = x
        if block + 1 < BLOCKS:
            coming = load_block(x_ptr, start + step, m, BLOCK)
        key, _valid = keys_of(x, COMMON, KEY)
        bit = key - low
        at = (bit >> 5).to(tl.int32) & (bitmap.shape[0] - 1)
        word = tl.gather(bitmap, at, 0) >> (bit & 31).to(tl.uint32)
        store_block(out_ptr, start, m, ((bit <= span) & (word & 1 != 0)) ^ INVERT, BLOCK)
        start += step
        x = coming


@triton.jit
def _ordered(key: tl.tensor, COMMON: tl.constexpr, KEY: tl.constexpr) -> tl.tensor:
    """A signed number for each key, which is the value itself for integers with a sign."""
    SIGNED: tl.constexpr = tl.int64 if tl.uint64 == KEY else tl.int32
    if not COMMON.is_floating():
        key ^= 1 << (KEY.primitive_bitwidth - 1)
    return key.to(SIGNED, bitcast=True)


@triton.jit
def _look_up_nodes(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    start: tl.tensor,
    step: tl.tensor,
    x: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Look up BLOCKS blocks, as `_look_up_bits` does, in a search tree of the test elements."""
    keys, _real = keys_of(load_tests(test_ptr, 0, n, 1 << LEVELS), COMMON, KEY)
    tree = _search_tree(_ordered(keys, COMMON, KEY), LEVELS)
    for block in range(BLOCKS):
        coming = x
        if block + 1 < BLOCKS:
            coming = load_block(x_ptr, start + step, m, BLOCK)
        unsigned, valid = keys_of(x, COMMON, KEY)
        key = _ordered(unsigned, COMMON, KEY)
        least = tl.gather(tree, tl.zeros([BLOCK], tl.int32), 0)
        at = tl.full([BLOCK], 1, tl.int32)
        if tl.uint64 == KEY:
            found = key == least
            for _level in tl.static_range(LEVELS):
                seen = tl.gather(tree, at, 0)
                found |= seen == key
                at = 2 * at + (seen <= key).to(tl.int32)
        else:  # the least difference needs no predicate register, of which there are few
            near = (least - key).to(KEY, bitcast=True)
            for _level in tl.static_range(LEVELS):
                seen = tl.gather(tree, at, 0)
                near = tl.minimum(near, (seen - key).to(KEY, bitcast=True))
                at = 2 * at + (seen <= key).to(tl.int32)
            found = near == 0
        store_block(out_ptr, start, m, (found & valid) ^ INVERT, BLOCK)
        start += step
        x = coming


@triton.jit
def search_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    LEVELS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Make up to 2^LEVELS test elements a bitmap of WORDS words if they fit, else a search tree.

    Look up every so many blocks as there are programs, BLOCKS in all. The first is loaded before.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    x = load_block(x_ptr, start, m, BLOCK)
    if WORDS > 0:
        base, words, least, most = _load_words(test_ptr, n, COMMON, KEY, 1 << LEVELS)
        span = most - least
        if tl.uint64 == KEY:
            span = tl.where(most < (1 << 31), span, most)
        if span < 32 * WORDS:
            bitmap = _bitmap(words, least, WORDS)
            _look_up_bits(
                *(x_ptr, out_ptr, m, start, step, x, bitmap, base + least, span),
                *(INVERT, COMMON, KEY, BLOCK, BLOCKS),
            )
        else:
            _look_up_nodes(
                *(x_ptr, test_ptr, out_ptr, m, n, start, step, x),
                *(INVERT, COMMON, KEY, LEVELS, BLOCK, BLOCKS),
            )
    else:
        _look_up_nodes(
            *(x_ptr, test_ptr, out_ptr, m, n, start, step, x),
            *(INVERT, COMMON, KEY, LEVELS, BLOCK, BLOCKS),
        )
