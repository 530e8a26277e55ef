"""Masks of long rows; those that begin anywhere are aligned words that are shifted into place.

The masks of a group, of the positions of 16 bytes, are as many bytes at any address: 8 of bf16, 4 of
fp32. They lie in 3 or 2 aligned words of 4 bytes. A word that is not wholly inside the mask is never read:
there is one such at most, the last, and it is put together of single bytes. On an H200, 100,003 fp32 with a mask of
keys: 117.4 us, in single bytes 126.8. Rows that are held are not read so: 4,099 bf16 44.2 us, in single bytes 40.5.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._softmax.rows import round_up
from warpcall_kernels.op.launch import VECTOR_BYTES

# How masks of groups are read: a byte for each position, whole groups where these are aligned, words.
BYTES, ALIGNED, WORDS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FAR = tl.constexpr(2**30)  # words; more than a row has


def how_to_read(
    itemsize: int, align: int, mask_align: int, stride: int, address: int
) -> tl.constexpr:
    """How masks of rows are read.

    Args:
        itemsize, align: of a position of the row, and what divides where its groups begin, in positions.
        mask_align, stride, address: what divides where masks of groups begin; the mask's own.
    """
    if stride == 1 and mask_align >= align:
        return ALIGNED
    whole_groups = align in (4, 8) and align * itemsize == VECTOR_BYTES
    return WORDS if stride == 1 and whole_groups and address % 4 == 0 else BYTES


@triton.jit
def mask_of_row(
    mask_ptr: tl.tensor, begin: tl.tensor, nbytes: tl.tensor, HOW: tl.constexpr
) -> tl.tensor:
    """A row's mask, whose first group begins at `begin`, for the functions below.

    For WORDS, of a mask of `nbytes` that begins at a multiple of 4: the row's first word, how many words
    are left from there, what stands for the one after them, and how many bits to shift.
    """
    left = nbytes // 4 - begin // 4
    last = tl.zeros([], tl.uint32)
    ptr = mask_ptr + begin
    if HOW == WORDS:
        for i in tl.static_range(3):
            at = nbytes // 4 * 4 + i
            byte = tl.load(mask_ptr + at, mask=at < nbytes, other=0)
            last |= byte.to(tl.uint32) << (8 * i)
        ptr = mask_ptr.to(tl.pointer_type(tl.uint32), bitcast=True) + begin // 4
    return ptr, tl.minimum(left, FAR).to(tl.int32), last, ((begin % 4) * 8).to(tl.uint64)


@triton.jit
def _mask_words(
    mask: tl.tensor, group: tl.tensor, read: tl.tensor, ALIGN: tl.constexpr
) -> tl.tensor:
    """The masks of groups, all of which lie inside, as words: of the first 4 positions, of the last 4."""
    words_ptr, left, last, shift = mask
    at = group * (ALIGN // 4)
    ptrs = words_ptr + at
    low = tl.load(ptrs, mask=read & (at < left), other=last).to(tl.uint64)
    middle = tl.load(ptrs + 1, mask=read & (at < left - 1), other=last).to(tl.uint64)
    first = ((low | (middle << 32)) >> shift).to(tl.uint32)
    second = first
    if ALIGN == 8:
        high = tl.load(ptrs + 2, mask=read & (at < left - 2), other=last).to(tl.uint64)
        second = ((middle | (high << 32)) >> shift).to(tl.uint32)
    return first, second


@triton.jit
def masked_groups(
    mask: tl.tensor,
    group: tl.tensor,
    cols: tl.tensor,
    limit: tl.tensor,
    stride_mk: tl.tensor,
    ALIGN: tl.constexpr,
    HOW: tl.constexpr,
) -> tl.tensor:
    """Not 0 where masked, of [groups, ALIGN] positions, up to `limit`."""
    if HOW == WORDS:
        read = group * ALIGN < limit
        first, second = _mask_words(mask, group, read, ALIGN)
        place = tl.arange(0, ALIGN)[None, :]
        words = tl.where(place < 4, first, second)
        masked = (words >> (8 * (place % 4)).to(tl.uint32)) & 0xFF
    else:
        read = cols < round_up(limit, ALIGN)
        if HOW == ALIGNED:
            masked = tl.load(tl.multiple_of(mask[0], ALIGN) + cols, mask=read, other=1)
        else:
            masked = tl.load(mask[0] + cols * stride_mk, mask=read, other=1)
    return masked
