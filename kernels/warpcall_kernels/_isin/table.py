"""What a set of isin is, and how it lies in memory."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._isin.hash_set import HEADER
from warpcall_kernels._isin.rule import FULL_BITMAP_N
from warpcall_kernels.op.launch import Launch

LARGE_SLOTS = 4  # slots for each test element, so that a table is filled to between 1/8 and 1/4
MIN_SLOTS = 32
# Bytes of a bucket, which a thread reads in one access. Most keys are decided by their first bucket then. On an
# H200, sparse int64: 2^24 in 2^18 by LARGE: 159 us, 185 with 8 bytes; 2^24 in 2^11: 94 and 107.
BUCKET_BYTES = 16

# LARGE: bytes of a hash set from which on it has a filter, because most of it is not in the L2, and
# the slots for each word of that filter: 4 to 8 bits a test element.
FILTERED_BYTES = 1 << 24
FILTER_SLOTS = 32
BLOOM_WORD = 8  # bytes of a word of a Bloom filter

# FILTERED
RANGES = 512  # programs that find the range of the test elements
# Bytes of the filter for 16 slots of the table of all test elements: 12 to 24 bits for each, so that some
# 1 % of other values pass. 2^26 int32 in 2^24: 989 us, 1,101 with 5 bytes.
BLOOM_BYTES = 6
# One of FIRST_SHARE blocks of test elements is in the filter when JUDGED elements and test elements are
# looked up there. If all elements are in the set, 1,024 of 16,384 are found; if 3 % are, for which the
# list has room, 31.
FIRST_SHARE, JUDGED, MOST_HITS, MOST_EQUAL = 16, 1 << 14, 24, 128
# The list of candidates has room for one of ELEMENTS_LISTED elements, and in slots of the table of all
# test elements, for one of LEAST_LISTED to one of MOST_LISTED. The set of the test elements that may
# equal a candidate has KEPT_SLOTS for each of these, and their filter has SECOND_BYTES.
ELEMENTS_LISTED, LEAST_LISTED, MOST_LISTED, KEPT_SLOTS, SECOND_BYTES = 32, 32, 8, 2, 2
LEAST_ROOM = 1024  # candidates that each part of the list has room for at least
SEGMENTS = 128  # parts of the list, each with its own counter

# Multipliers of the hash. Each process draws new ones, so that a caller cannot choose test elements
# that collide.
_FACTOR_32 = 2 * secrets.randbits(30) + 1
_FACTOR_64 = 2 * secrets.randbits(61) + (1 << 62) + 1

OPTIONS = {"num_warps", "launch_pdl"}  # arguments of every launch


class Kind(StrEnum):
    """What a set is: SET of the kernels."""

    BITMAP = "bits"
    HASH = "hash"
    EITHER = "either"


def key_dtype(common: Any) -> Any:
    """The Triton dtype of the keys of values of the Triton dtype `common`: see hash_set.py."""
    return tl.uint64 if common.primitive_bitwidth == 64 else tl.uint32


def factor_of(key: Any) -> int:
    """The multiplier of the hash of keys of this Triton dtype."""
    return _FACTOR_64 if key.primitive_bitwidth == 64 else _FACTOR_32


def kind_of(common: Any, n: int) -> Kind:
    """What n test elements become if they become a set."""
    bits = common.primitive_bitwidth
    if bits <= 16 or (bits == 32 and n >= FULL_BITMAP_N):
        return Kind.BITMAP
    return Kind.HASH if common.is_floating() else Kind.EITHER


def taken_by(kernel: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a kernel or its launch takes."""
    return {k: v for k, v in arguments.items() if k in kernel.arg_names or k in OPTIONS}


class Table(NamedTuple):
    """How a set lies in memory.

    Args:
        kind: BITMAP, HASH or EITHER.
        slots: words of the table, a power of two.
        bucket: slots that one access reads.
        itemsize: bytes of a word.
        filter_words: 32-bit words of the filter, a power of two; 0 for no filter.
    """

    kind: Kind
    slots: int
    bucket: int
    itemsize: int
    filter_words: int

    @classmethod
    def of(cls, common: Any, n: int) -> Table:
        """The table for n members of the Triton dtype `common`."""
        kind = kind_of(common, n)
        bits = common.primitive_bitwidth
        if kind is Kind.BITMAP:
            return cls(kind, max(MIN_SLOTS, (1 << bits) // 32), 1, 4, 0)
        itemsize = 8 if bits == 64 else 4
        slots = max(MIN_SLOTS, triton.next_power_of_2(n * LARGE_SLOTS))
        large = slots * itemsize > FILTERED_BYTES
        words = slots // FILTER_SLOTS if large else 0
        return cls(kind, slots, BUCKET_BYTES // itemsize, itemsize, words)

    @property
    def word(self) -> torch.dtype:
        """The dtype of a word."""
        return torch.uint64 if self.itemsize == 8 else torch.uint32

    @property
    def words(self) -> int:
        """Words of the workspace."""
        return HEADER + self.slots + self.filter_words * 4 // self.itemsize

    @property
    def shift(self) -> int:
        """How far a hash of 32 bits is shifted right to number the buckets; 0 for 2^32 buckets or
        more.
        """
        return max(0, 33 - (self.slots // self.bucket).bit_length())

    @property
    def filter_shift(self) -> int:
        """How far a hash of 32 bits is shifted right to number the words of the filter; 0 without one."""
        return 33 - self.filter_words.bit_length() if self.filter_words else 0


class CandidateSet(NamedTuple):
    """How the workspace of FILTERED lies in memory, whose parts `filtered.py` describes.

    Args:
        slots: of the set of the test elements that may equal a candidate, a power of two.
        bloom_bytes: bytes of the filter.
        second_bytes: bytes of the filter of the candidates.
        filter_words: 32-bit words, a power of two, of the filter of all test elements, in its place.
        room: candidates that a segment of the list has room for.
        second, bloom, counts, ranges, listed, members: where these begin, in words.
        words: words of the workspace.
    """

    slots: int
    bloom_bytes: int
    second_bytes: int
    filter_words: int
    room: int
    second: int
    bloom: int
    counts: int
    ranges: int
    listed: int
    members: int
    words: int

    @classmethod
    def of(cls, table: Table, m: int) -> CandidateSet:
        """The layout for m elements, if `table` is that of all test elements."""
        all_elements = triton.next_power_of_2(m)
        listed = max(all_elements // ELEMENTS_LISTED, table.slots // LEAST_LISTED)
        listed = min(all_elements, listed, table.slots // MOST_LISTED)
        room = max(triton.cdiv(listed, SEGMENTS), min(LEAST_ROOM, all_elements))
        slots = max(MIN_SLOTS, KEPT_SLOTS * SEGMENTS * room)
        second_bytes = 64 * triton.cdiv(SECOND_BYTES * SEGMENTS * room, 64)
        bloom_bytes = max(4 * HEADER, table.slots * BLOOM_BYTES // 256 * 16)
        filter_words = 1 << (min(bloom_bytes // 4, table.slots // FILTER_SLOTS).bit_length() - 1)
        second = HEADER + slots
        bloom = second + second_bytes // table.itemsize
        counts = bloom + bloom_bytes // table.itemsize
        ranges = counts + SEGMENTS
        listed = ranges + 2 * RANGES
        members = listed + 2 * SEGMENTS * room
        words = members + HEADER + table.slots
        return cls(
            *(slots, bloom_bytes, second_bytes, filter_words, room, second, bloom, counts),
            *(ranges, listed, members, words),
        )

    def arguments(self, bucket: int) -> dict[str, Any]:
        """The arguments of the kernels in filtered.py."""
        return {
            "second": self.second,
            "second_words": self.second_bytes // BLOOM_WORD,
            "bloom": self.bloom,
            "bloom_words": self.bloom_bytes // BLOOM_WORD,
            "filter_shift": 33 - max(2, self.filter_words).bit_length(),
            "FIRST_SHARE": FIRST_SHARE,
            "MOST_HITS": MOST_HITS,
            "MOST_EQUAL": MOST_EQUAL,
            "counts": self.counts,
            "ranges": self.ranges,
            "listed": self.listed,
            "room": self.room,
            "SEGMENTS": SEGMENTS,
            "members": self.members,
            "kept_slots": self.slots,
            "kept_shift": 33 - (self.slots // bucket).bit_length(),
        }


class SetPlan(NamedTuple):
    """The launches that build a set in a workspace and look up elements in it.

    Args:
        words: words of the workspace.
        word: their dtype.
        launches: each with which of its tensors it takes: "x" (elements), "t" (test elements), "w"
            (workspace), "o" (out).
    """

    words: int
    word: torch.dtype
    launches: tuple[tuple[Launch, str], ...]
