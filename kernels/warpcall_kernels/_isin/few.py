"""The kernel of isin for the fewest test elements: each element is compared with all of them."""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._isin.hash_set import load_block, promote, store_block


@triton.jit
def either(a: tl.tensor, b: tl.tensor) -> tl.tensor:
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
    GROUPS: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compare a block of elements with up to TESTS test elements, which threads have in registers.

    SPLIT neighbouring threads share the test elements for an element. Those of a thread are compared in
    GROUPS groups. In each, a comparison waits for the one before.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    x = promote(load_block(x_ptr, start, m, BLOCK), COMMON)
    test = promote(load_tests(test_ptr, 0, n, TESTS), COMMON)
    groups = tl.reshape(test, [GROUPS, TESTS // GROUPS // SPLIT, SPLIT])
    found = x[None, None, :, None] == groups[:, :, None, :]
    found = tl.reduce(found, 1, either)
    found = tl.reduce(found, 0, either)
    found = tl.reduce(found, 1, either)
    store_block(out_ptr, start, m, found ^ INVERT, BLOCK)
