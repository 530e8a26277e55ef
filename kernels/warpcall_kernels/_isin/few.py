"""The kernels of isin for few test elements: one launch, and no set in device memory."""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._isin.hash_set import load_block, load_keys, promote, store_block


@triton.jit
def _or(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a | b


@triton.jit
def load_tests(ptr: tl.tensor, first: tl.tensor, n: tl.tensor, CHUNK: tl.constexpr) -> tl.tensor:
    """CHUNK test elements from `first` on, and past the end the last one again.

    Only the last chunk needs the minimum, without which a thread reads 16 bytes at once.
    """
    at = tl.arange(0, CHUNK)
    if first + CHUNK <= n:
        test = tl.load(ptr + first + at)
    else:
        test = tl.load(ptr + tl.minimum(first + at, n - 1))
    return test


@triton.jit
def compare_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    TESTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compare a block of elements with up to TESTS test elements, which a thread has in registers."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    x = promote(load_block(x_ptr, start, m, BLOCK), COMMON)
    test = promote(load_tests(test_ptr, 0, n, TESTS), COMMON)
    found = tl.reduce(x[None, :] == test[:, None], 0, _or)
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)


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
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Sort up to 2^LEVELS test elements into a search tree, and look up BLOCKS blocks in it.

    Node 2^k + j of the tree has number (2j + 1) * 2^(LEVELS - 1 - k) in order, so that the nodes of
    a level are neighbours, which lie in different banks of shared memory. Node 0 has the least.
    """
    SIZE: tl.constexpr = 1 << LEVELS
    SIGNED: tl.constexpr = tl.int64 if tl.uint64 == KEY else tl.int32
    node = tl.arange(0, SIZE)
    keys, _real = load_keys(test_ptr, 0, n, COMMON, KEY, SIZE)
    first = tl.min(tl.where(node == 0, keys, ~tl.zeros_like(keys)), 0)
    keys = tl.where(node < n, keys, first)  # past the end, the first again
    ordered = tl.sort(keys.to(SIGNED, bitcast=True))
    depth = (tl.maximum(node, 1).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    number = ((node << 1) + 1 - (2 << depth)) << (LEVELS - 1 - depth)
    tree = tl.gather(ordered, tl.where(node == 0, 0, number), 0)
    least = tl.min(ordered, 0)
    begin = tl.program_id(0).to(tl.int64) * (BLOCK * BLOCKS)
    for block in range(BLOCKS):
        start = begin + block * BLOCK
        if start < m:
            x, valid = load_keys(x_ptr, start, m, COMMON, KEY, BLOCK)
            key = x.to(SIGNED, bitcast=True)
            found = key == least
            at = tl.full([BLOCK], 1, tl.int32)
            for _level in tl.static_range(LEVELS):
                seen = tl.gather(tree, at, 0)
                found |= seen == key
                at = 2 * at + (seen <= key).to(tl.int32)
            store_block(out_ptr, start, m, (found & valid) ^ INVERT, BLOCK)
