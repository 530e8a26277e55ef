"""Masks of long rows. A mask that is not aligned is read as aligned words, which are then shifted.

The mask of a group (the positions in 16 bytes of a row) is 8 bytes for bf16 and 4 for fp32, and
begins at any address. So it lies in 3 or 2 aligned words of 4 bytes. A word that is not wholly
inside the mask is never read. At most one word is such, the last, and it is put together of single
bytes. On an H200, 100,003 fp32 with a mask of keys takes 117 us, 7 % less than with single bytes.
Rows that are held in registers lose by it, and read single bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from warpcall_kernels._softmax.device import round_up
from warpcall_kernels.op.launch import VECTOR_BYTES

# How the masks of groups are read: each position by itself, aligned groups in one access, or words.
BYTES, ALIGNED, WORDS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
MANY_WORDS = tl.constexpr(2**30)  # more than the mask of a row has


class Mask(NamedTuple):
    """The mask of one row, from its first group on; the last three are for WORDS only."""

    ptr: tl.tensor  # to the first mask, or to the aligned word that it lies in
    words_left: tl.tensor  # whole words of the mask from there
    last_word: tl.tensor  # what stands for the word after these, put together of its bytes
    shift: tl.tensor  # bits between the beginning of a word and that of a group


def how_to_read(
    itemsize: int, align: int, mask_align: int, stride: int, address: int
) -> tl.constexpr:
    """BYTES, ALIGNED or WORDS, for the masks of long rows.

    Args:
        itemsize: bytes of a position of the row.
        align: what divides where the groups of a row begin, in positions.
        mask_align: what divides where the masks of groups begin.
        stride: elements between the masks of neighbouring positions.
        address: address of the mask modulo 16.
    """
    if stride == 1 and mask_align >= align:
        return ALIGNED
    whole_groups = align in (4, 8) and align * itemsize == VECTOR_BYTES
    return WORDS if stride == 1 and whole_groups and address % 4 == 0 else BYTES


@triton.jit
def mask_of_row(
    mask_ptr: tl.tensor, begin: tl.tensor, nbytes: tl.tensor, HOW: tl.constexpr
) -> tl.tensor:
    """The mask of a row whose first group begins at `begin`; for WORDS a mask of `nbytes` bytes."""
    left = nbytes // 4 - begin // 4
    last = tl.zeros([], tl.uint32)
    ptr = mask_ptr + begin
    if HOW == WORDS:
        for i in tl.static_range(3):
            at = nbytes // 4 * 4 + i
            byte = tl.load(mask_ptr + at, mask=at < nbytes, other=0)
            last |= byte.to(tl.uint32) << (8 * i)
        ptr = mask_ptr.to(tl.pointer_type(tl.uint32), bitcast=True) + begin // 4
    words_left = tl.minimum(left, MANY_WORDS).to(tl.int32)
    return Mask(ptr, words_left, last, ((begin % 4) * 8).to(tl.uint64))


@triton.jit
def mask_words(
    mask: tl.tensor, group: tl.tensor, read: tl.tensor, ALIGN: tl.constexpr
) -> tl.tensor:
    """The masks of groups as two words: of their first 4 positions and of their last 4."""
    left, last = mask.words_left, mask.last_word
    word = group * (ALIGN // 4)
    ptrs = mask.ptr + word
    low = tl.load(ptrs, mask=read & (word < left), other=last).to(tl.uint64)
    middle = tl.load(ptrs + 1, mask=read & (word < left - 1), other=last).to(tl.uint64)
    first = ((low | (middle << 32)) >> mask.shift).to(tl.uint32)
    second = first
    if ALIGN == 8:
        high = tl.load(ptrs + 2, mask=read & (word < left - 2), other=last).to(tl.uint64)
        second = ((middle | (high << 32)) >> mask.shift).to(tl.uint32)
    return first, second


@triton.jit
def masked_groups(
    mask: Mask,
    group: tl.tensor,
    cols: tl.tensor,
    limit: tl.tensor,
    stride_mk: tl.tensor,
    ALIGN: tl.constexpr,
    HOW: tl.constexpr,
) -> tl.tensor:
    """The mask of [groups, ALIGN] positions up to `limit`; not 0 where a position is masked."""
    if HOW == WORDS:
        read = group * ALIGN < limit
        first, second = mask_words(mask, group, read, ALIGN)
        position = tl.arange(0, ALIGN)[None, :]
        words = tl.where(position < 4, first, second)
        masked = (words >> (8 * (position % 4)).to(tl.uint32)) & 0xFF
    else:
        read = cols < round_up(limit, ALIGN)
        if HOW == ALIGNED:
            masked = tl.load(tl.multiple_of(mask.ptr, ALIGN) + cols, mask=read, other=1)
        else:
            masked = tl.load(mask.ptr + cols * stride_mk, mask=read, other=1)
    return masked
