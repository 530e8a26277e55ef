"""Positions of two bytes that a thread holds two a register, as they lie in memory."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def as_words(ptr: tl.tensor) -> tl.tensor:
    """The same pointer, to words of two positions each."""
    return ptr.to(tl.pointer_type(tl.uint32), bitcast=True)


@triton.jit
def halves(words: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """The first and the second position of each word, as fp32."""
    if tl.bfloat16 == DTYPE:
        first = (words << 16).to(tl.float32, bitcast=True)
        second = (words & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        first = words.to(tl.uint16).to(DTYPE, bitcast=True).to(tl.float32)
        second = (words >> 16).to(tl.uint16).to(DTYPE, bitcast=True).to(tl.float32)
    return first, second


@triton.jit
def side_by_side(first: tl.tensor, second: tl.tensor) -> tl.tensor:
    """The positions of all words in their order, along a last dim of twice the length.

    The compiler rounds two neighbours by one instruction. Rounded apart they take two, of a unit
    with a fourth of the rate.
    """
    joined = tl.join(first, second)
    if len(first.shape) == 1:
        both = tl.reshape(joined, (2 * first.shape[0],))
    else:
        both = tl.reshape(joined, (first.shape[0], 2 * first.shape[1]))
    return both


@triton.jit
def opaque_copy(words: tl.tensor, zero: tl.tensor) -> tl.tensor:
    """The same words (`zero` is 0), but the compiler does not know it.

    It would otherwise keep the widened values that it made of the words before, in registers.
    """
    return words ^ zero.to(tl.uint32)
