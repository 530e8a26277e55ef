"""The kernel of isin for few elements: each program compares some of them with all test elements.

The elements of a program are scalars, and the test elements are spread over its threads. A thread
keeps, for each element, the least difference as an unsigned number, which is 0 exactly if the
element was found. On Hopper, the subtraction and the minimum of 32-bit keys are one instruction.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._isin.few import either
from warpcall_kernels._isin.hash_set import keys_of, load_block, promote, store_block


@triton.jit(do_not_specialize=["starts"])  # so that other sizes need no other kernel
def scan_kernel(
    x_ptr: tl.tensor,
    test_ptr: tl.tensor,
    out_ptr: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    starts: tl.tensor,
    INVERT: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    ELEMENTS: tl.constexpr,
    VECTOR: tl.constexpr,
    LOADS: tl.constexpr,
    THREADS: tl.constexpr,
) -> None:
    """Compare ELEMENTS elements with all test elements, LOADS times VECTOR of them in each thread.

    Programs begin with different chunks, `starts` of them, a power of two. All chunks are then
    fetched from memory at the same time, instead of one after the other.

    Integers of 64 bits are compared by their low words. If all test elements have the same high
    word, this is exact for elements that have it, too. Otherwise, a program that found some compares
    them again, by both words. ELEMENTS are at most 16 then.
    """
    CHUNK: tl.constexpr = THREADS * VECTOR * LOADS
    BY_LOW_WORD: tl.constexpr = KEY.primitive_bitwidth == 64 and not COMMON.is_floating()
    start = tl.program_id(0).to(tl.int64) * ELEMENTS
    block = load_block(x_ptr, start, m, ELEMENTS)  # as a vector, of which the end asks for
    elements = _load_elements(x_ptr, start, m, n, COMMON, KEY, ELEMENTS, THREADS)
    first_high = _high_word(_bits_of(tl.load(test_ptr), COMMON, KEY))
    chunks = tl.cdiv(n, CHUNK)
    at = tl.program_id(0) & (starts - 1)
    least, differing = _nothing_found(ELEMENTS, THREADS), tl.zeros([THREADS], tl.uint32)
    test = _load_tests(test_ptr, at * CHUNK, n, COMMON, KEY, VECTOR, LOADS, THREADS)
    for _chunk in range(1, chunks):
        at = tl.where(at + 1 < chunks, at + 1, 0)
        coming = _load_tests(test_ptr, at * CHUNK, n, COMMON, KEY, VECTOR, LOADS, THREADS)
        least = _compare(least, test, elements, BY_LOW_WORD)
        differing = _differing(differing, test, first_high, BY_LOW_WORD)
        test = coming
    least = _compare(least, test, elements, BY_LOW_WORD)
    differing = _differing(differing, test, first_high, BY_LOW_WORD)
    if BY_LOW_WORD:
        DIFFER: tl.constexpr = 1 << ELEMENTS  # a bit beside those of the elements
        found = tl.reduce(_word(least) | tl.where(differing != 0, DIFFER, 0), 0, either)
        if found > DIFFER:
            least = _nothing_found(ELEMENTS, THREADS)
            for chunk in range(chunks):
                test = _load_tests(test_ptr, chunk * CHUNK, n, COMMON, KEY, VECTOR, LOADS, THREADS)
                least = _compare(least, test, elements, False)
            found = tl.reduce(_word(least), 0, either) | DIFFER
        valid = (found >= DIFFER) | (_high_word(_bits_of(block, COMMON, KEY)) == first_high)
    else:
        found = tl.reduce(_word(least), 0, either)
        _key, valid = keys_of(block, COMMON, KEY)
    result = (((found >> tl.arange(0, ELEMENTS)) & 1) != 0) & valid
    store_block(out_ptr, start, m, result ^ INVERT, ELEMENTS)


@triton.jit
def _load_elements(
    ptr: tl.tensor,
    start: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    ELEMENTS: tl.constexpr,
    THREADS: tl.constexpr,
) -> tl.tuple:
    """ELEMENTS elements from `start` on, and past the end the last one again, each in all threads.

    The address is the same in all threads, which the compiler must not see: it would put elements
    into uniform registers, which the instruction that subtracts and takes the minimum cannot read.
    """
    own = ptr + start + tl.where(n > 0, 0, tl.arange(0, THREADS))
    last = (tl.minimum(start + ELEMENTS, m) - 1 - start).to(tl.int32)
    elements = ()
    for j in tl.static_range(ELEMENTS):
        x = tl.load(own + tl.minimum(j, last))
        elements = elements + (_bits_of(x, COMMON, KEY),)  # type: ignore[assignment]  # noqa: RUF005
    return elements


@triton.jit
def _bits_of(x: tl.tensor, COMMON: tl.constexpr, KEY: tl.constexpr) -> tl.tensor:
    """An unsigned number that is equal for equal values. NaN has one, too."""
    if COMMON.is_floating():
        bits, _valid = keys_of(x, COMMON, KEY)
    else:
        bits = promote(x, COMMON).to(KEY)
    return bits


@triton.jit
def _high_word(bits: tl.tensor) -> tl.tensor:
    """The high word, rounded, so that it is the same for all values of 32 bits and a sign."""
    if bits.dtype.primitive_bitwidth == 64:
        high = (bits >> 32).to(tl.uint32) + (bits.to(tl.uint32) >> 31)
    else:
        high = 0
    return high


@triton.jit
def _load_tests(
    ptr: tl.tensor,
    first: tl.tensor,
    n: tl.tensor,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    VECTOR: tl.constexpr,
    LOADS: tl.constexpr,
    THREADS: tl.constexpr,
) -> tl.tuple:
    """A chunk of test elements from `first` on, and past the end the last one again.

    It is a tuple of tensors of one number for each thread: VECTOR of them from one access.
    """
    PART: tl.constexpr = THREADS * VECTOR
    found = ()
    for i in tl.static_range(LOADS):
        at = first + i * PART
        if at + PART <= n:
            test = tl.load(ptr + at + tl.arange(0, PART))
        else:
            test = tl.load(ptr + tl.minimum(at + tl.arange(0, PART), n - 1))
        found = found + _apart(_bits_of(test, COMMON, KEY), VECTOR)
    return found


@triton.jit
def _apart(x: tl.tensor, VECTOR: tl.constexpr) -> tl.tuple:
    """VECTOR tensors that have a number of each group of VECTOR neighbours."""
    if VECTOR == 1:
        return (x,)
    else:  # noqa: RET505  # Triton needs the else
        a, b = tl.split(tl.reshape(x, [x.shape[0] // 2, 2]))
        return _apart(a, VECTOR // 2) + _apart(b, VECTOR // 2)


@triton.jit
def _nothing_found(ELEMENTS: tl.constexpr, THREADS: tl.constexpr) -> tl.tuple:
    least = ()
    for _j in tl.static_range(ELEMENTS):
        least = least + (tl.full([THREADS], 0xFFFFFFFF, tl.uint32),)  # type: ignore[assignment]  # noqa: RUF005
    return least


@triton.jit
def _compare(
    least: tl.tuple,
    test: tl.tuple,
    elements: tl.tuple,
    BY_LOW_WORD: tl.constexpr,
) -> tl.tuple:
    """The least of differences that are 0 exactly if bits, or their low words, are equal."""
    for i in tl.static_range(len(test)):
        nearer = ()
        for j in tl.static_range(len(elements)):
            if elements[j].dtype.primitive_bitwidth == 32:
                difference = test[i] - elements[j]
            elif BY_LOW_WORD:
                difference = test[i].to(tl.uint32) - elements[j].to(tl.uint32)
            else:
                bits = test[i] ^ elements[j]
                difference = bits.to(tl.uint32) | (bits >> 32).to(tl.uint32)
            nearer = nearer + (tl.minimum(least[j], difference),)  # type: ignore[assignment]  # noqa: RUF005
        least = nearer
    return least


@triton.jit
def _differing(
    differing: tl.tensor,
    test: tl.tuple,
    first_high: tl.tensor,
    BY_LOW_WORD: tl.constexpr,
) -> tl.tensor:
    """The bits in which high words differ from the first one."""
    if BY_LOW_WORD:
        for i in tl.static_range(len(test)):
            differing |= _high_word(test[i]) ^ first_high
    return differing


@triton.jit
def _word(least: tl.tuple) -> tl.tensor:
    """A bit for each element: whether its least difference is 0."""
    word = tl.zeros(least[0].shape, tl.int32)
    for j in tl.static_range(len(least)):
        word |= tl.where(least[j] == 0, 1 << j, 0)
    return word
