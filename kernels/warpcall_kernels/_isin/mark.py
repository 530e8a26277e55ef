"""The kernels of isin for the fewest elements in many test elements: the test elements are read once.

Each program compares a part of the test elements with all elements, which are scalars, and marks in the
result those that it finds. All programs store the same value there, so that their order does not matter.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._isin.few import either, load_tests
from warpcall_kernels._isin.hash_set import promote


@triton.jit
def not_found_kernel(
    out_ptr: tl.tensor,
    m: tl.tensor,
    INVERT: tl.constexpr,
    ELEMENTS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Say of all elements, up to ELEMENTS, that they were not found."""
    if PDL:
        gdc_launch_dependents()
    own = tl.arange(0, ELEMENTS)
    tl.store(out_ptr + own, tl.full([ELEMENTS], INVERT, tl.int1), mask=own < m)


@triton.jit(do_not_specialize=["blocks"])
def mark_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    ELEMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Mark the elements that equal one of `blocks` blocks of test elements.

    Past the end of the elements and of the test elements, the last one counts again. ELEMENTS are at
    most 32: a bit of a word says whether an element was found.
    """
    elements = ()
    for j in tl.static_range(ELEMENTS):
        element = promote(tl.load(x_ptr + tl.minimum(j, m - 1)), COMMON)
        elements = elements + (element,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
    first = tl.program_id(0).to(tl.int64) * blocks * BLOCK
    bits = tl.zeros([BLOCK], tl.uint32)
    for block in range(blocks):
        test = promote(load_tests(test_ptr, first + block * BLOCK, n, BLOCK), COMMON)
        for j in tl.static_range(ELEMENTS):
            bits |= tl.where(test == elements[j], tl.full([], 1 << j, tl.uint32), 0)
    found = tl.reduce(bits, 0, either)
    if PDL:
        gdc_wait()
    if found != 0:
        own = tl.arange(0, ELEMENTS)
        marked = ((found >> own) & 1) != 0
        value = tl.full([ELEMENTS], 1 - INVERT, tl.int1)
        tl.store(out_ptr + own, value, mask=marked & (own < m))
