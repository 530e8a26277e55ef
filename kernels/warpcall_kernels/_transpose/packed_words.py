"""Words of 8 bytes that hold several elements: shifted, transposed and added in registers.

A word is kept as two pieces of 32 bits, the lower one first, because a GPU shifts 32 bits in one
instruction.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def funnel(low: tl.tensor, high: tl.tensor, bits: tl.tensor) -> tl.tensor:
    """The 32 bits that begin `bits` (below 32) into (low, high), by one instruction."""
    return ((low.to(tl.uint64) | (high.to(tl.uint64) << 32)) >> bits.to(tl.uint64)).to(tl.uint32)


@triton.jit
def shift(low: tl.tensor, high: tl.tensor, bits: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """The word that begins `bits` (below 64, a multiple of BITS) into the words (low, high)."""
    far = bits >= 32
    one = tl.where(far, low[1], low[0])
    two = tl.where(far, high[0], low[1])
    three = tl.where(far, high[1], high[0])
    if BITS == 32:
        return (one, two)
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        near = bits & 31
        return (funnel(one, two, near), funnel(two, three, near))


@triton.jit
def _exchange(rows: tl.tensor, STEP: tl.constexpr, PER: tl.constexpr) -> tl.tensor:
    """Swap odd columns of row r with even columns of row r + STEP, where a column is STEP elements
    wide.
    """
    BITS: tl.constexpr = 64 // PER * STEP
    KEEP: tl.constexpr = 0x00FF00FF if BITS == 8 else 0x0000FFFF
    MOVE: tl.constexpr = 0xFF00FF00 if BITS == 8 else 0xFFFF0000
    swapped = ()
    for r in tl.static_range(PER):
        for p in tl.static_range(2):
            if BITS == 32:
                piece = rows[(r - r // STEP % 2 * STEP + p * STEP) * 2 + r // STEP % 2]
            else:
                upper = rows[(r - r // STEP % 2 * STEP) * 2 + p]
                lower = rows[(r - r // STEP % 2 * STEP + STEP) * 2 + p]
                if r // STEP % 2 == 0:
                    piece = (upper & KEEP) | ((lower << BITS) & MOVE)
                else:
                    piece = ((upper >> BITS) & KEEP) | (lower & MOVE)
            swapped = swapped + (piece,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
    return swapped


@triton.jit
def transpose_block(rows: tl.tensor, PER: tl.constexpr) -> tl.tensor:
    """Transpose PER words of PER elements; argument and result are tuples of 2 * PER pieces."""
    rows = _exchange(rows, 1, PER)
    if PER >= 4:
        rows = _exchange(rows, 2, PER)
    if PER >= 8:
        rows = _exchange(rows, 4, PER)
    return rows


@triton.jit
def pieces(word: tl.tensor) -> tl.tensor:
    """The two pieces of a word."""
    return (word.to(tl.uint32), (word >> 32).to(tl.uint32))


@triton.jit
def word(pieces: tl.tensor) -> tl.tensor:
    """The word of two pieces."""
    return (pieces[0].to(tl.uint64) | (pieces[1].to(tl.uint64) << 32)).to(tl.int64, bitcast=True)


@triton.jit
def stack(words: tl.tensor, ROWS: tl.constexpr, COLS: tl.constexpr, N: tl.constexpr) -> tl.tensor:
    """N tensors [ROWS, COLS] -> [ROWS, COLS, N]."""
    if N == 1:
        return tl.reshape(words[0], (ROWS, COLS, 1))
    else:  # noqa: RET505
        evens = stack(words[0::2], ROWS, COLS, N // 2)
        odds = stack(words[1::2], ROWS, COLS, N // 2)
        return tl.reshape(tl.join(evens, odds), (ROWS, COLS, N))


@triton.jit
def add(a: tl.tensor, b: tl.tensor, TYPE: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """Add elements of TYPE, given as integers, in type ACC, and round once. Without ACC the result is a | b."""
    if ACC is None:
        return a | b
    else:  # noqa: RET505
        total = a.to(TYPE, bitcast=True).to(ACC) + b.to(TYPE, bitcast=True).to(ACC)
        return total.to(TYPE).to(a.dtype, bitcast=True)


@triton.jit
def add_words(
    a: tl.tensor,
    b: tl.tensor,
    PER: tl.constexpr,
    INT: tl.constexpr,
    TYPE: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """`add` for each of the elements that words hold."""
    if ACC is None:
        return a | b
    else:  # noqa: RET505
        BITS: tl.constexpr = INT.primitive_bitwidth
        total = tl.zeros_like(a)
        mixed = a ^ b  # so that `a` changes its layout as whole words, not element by element
        for e in tl.static_range(PER):
            other = (b >> (e * BITS)).to(INT)
            one = add((mixed >> (e * BITS)).to(INT) ^ other, other, TYPE, ACC)
            total |= (one.to(a.dtype) & ((1 << BITS) - 1)) << (e * BITS)
        return total
