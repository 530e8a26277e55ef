"""Which variant of isin a call takes, by its dtype and sizes.

Nothing knows before the launch whether values are dense or sparse, so each limit here is the one
whose worse case is better. The limits come from grids of sizes on an H200 and an H100
(docs/benchmarks/isin-grid.md). Every other GPU has the same, and may lose speed by it, never
correctness.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

# Times are from an H100 unless a comment names an H200.

EVERY = 1 << 62  # more elements than a tensor can have
# Test elements of 32-bit types from which on a bitmap of all 2^32 values is smaller than a hash
# set.
FULL_BITMAP_N = 1 << 25

# Sizes for which `variants` has a variant at all. Outside of them it is slower by far.
MOST_COMPARED = 1 << 8  # test elements of COMPARE
# Test elements of SHARED, by the bytes of a value (2 for 1, too).
MOST_SHARED = {2: 1 << 15, 4: 1 << 13, 8: 1 << 12}
# Least test elements of SCAN, most elements, and most pairs of an element and a test element.
LEAST_SCANNED, MOST_SCANNED, MOST_PAIRS = 1 << 5, 1 << 16, 1 << 27
MOST_MARKED = 32  # elements of MARK
LEAST_LARGE = 1 << 10  # test elements of LARGE

# Types of 1 or 2 bytes: test elements and elements up to which COMPARE is taken. 2^24 int16 in 2^2 on an H200: 23.1 us,
# SHARED 18.9; 2^20: 6.2 and 6.3; 2^20 in 2^4: 7.7 and 6.1.
SHORT_COMPARED, SHORT_ELEMENTS = 1 << 2, 1 << 22
# SCAN: test elements and elements up to which it is taken, by the bytes of a value,
# and the most pairs of an element and a test element. The first entry with enough test elements
# decides. Sparse and dense int32, 2^12 in 2^14: 10.1 and 10.3 us, LARGE 10.1 and 8.3; 2^12 in 2^12 on an H200:
# 6.3 and 6.3, SHARED 6.6 and 6.6; int64: 6.8 and 6.7, SHARED 7.8 and 7.9. Integers of
# 64 bits take longer if they are found: the same took 10.7, SHARED 8.2.
SCANNED = {
    4: (
        (1 << 8, 0),
        (1 << 9, 1 << 11),
        (1 << 12, 1 << 12),
        (1 << 15, 1 << 15),
        ((1 << 16) - 1, 1 << 8),
    ),
    8: ((1 << 9, 0), (1 << 12, 1 << 12), (1 << 14, 1 << 13)),
}
# Floats of 64 bits are compared by both words. 2^14 in 2^11 on an H200: 13.0 us, LARGE 8.3; 2^12 in
# 2^11: 7.0, LARGE 8.4.
SCANNED_PAIRS, SCANNED_PAIRS_FLOAT64 = 1 << 25, 1 << 23
# MARK: least test elements; by the bytes of a value, the elements up to which it is always taken, and the pairs of an
# element and a test element up to which it is taken for MOST_MARKED of them; and the same of floats. On an H200: 4 int64
# in 2^24: 34.9 us, REVERSED 58.0; 8 in 2^26: 214, 214; 32 in 2^18: 5.7, 5.8; 8 int32 in 2^24: 29.2, 44.3; 32 in 2^20:
# 8.6, 9.1; 16 fp32 in 2^24: 49.5, 69.4; 4 bytes in 2^26: 67, LARGE 101.
LEAST_MARKED = 1 << 15
MARKED = {1: (8, 1 << 20), 2: (4, 1 << 24), 4: (8, 1 << 25), 8: (8, 1 << 23)}
MARKED_FLOATS = {4: (16, 1 << 25), 8: (16, 1 << 25)}
REVERSED_MAX_M = 1 << 20  # elements up to which REVERSED is taken
# FILTERED: most elements for each test element. The list of candidates has room for those that the
# filter lets pass by mistake.
FILTERED_RATIO = 16
FILTERED_MAX_M = (1 << 31) - 1  # most elements, whose numbers must fit into a key of 32 bits


class Rule(NamedTuple):
    """Where the other variants are taken, for integers or floats of one width.

    Args:
        compared: test elements and elements up to which COMPARE is taken. The first entry with
            enough test elements decides.
        shared: test elements up to which SHARED is taken, and its least elements, if COMPARE is not. The first entry
            with enough test elements decides.
        reversed: test elements from which on REVERSED is taken, and how many of them there are at
            least for each element. One entry is enough.
        unfiltered: test elements up to which FILTERED is not taken. It is taken for more of them, and more
            than REVERSED_MAX_M elements, if `_can_filter` allows it.
    """

    compared: tuple[tuple[int, int], ...]
    shared: tuple[tuple[int, int], ...]
    reversed: tuple[tuple[int, int], ...]
    unfiltered: int


# Integers of 32 bits. Times of sparse and of dense values, and where there is a third, if all are found:
# 2^16 in 2^4 on an H200: COMPARE 4.8 and 4.9 us, SHARED 4.9 and 5.2; 2^20: 6.5, 6.4 and 6.6, 6.9.
# 2^16 in 2^5 on an H200: COMPARE 4.8 and 4.7 us, SHARED 4.6 and 4.7; in 2^6: 5.2, 5.2 and 5.0, 5.0.
# 2^16 in 2^13 on an H200: LARGE 9.7 and 8.7 us, SHARED 10.1 and 9.8; 2^18: 11.6, 9.1 and 11.0, 6.3.
# 2^14 in 2^16 on an H200: REVERSED 11.4, 10.3 and 12.6 us, LARGE 12.3, 10.8 and 12.4; 2^12 in 2^15: 10.1, 9.6 and 11.3,
# 10.5, 8.8 and 10.3; 2^16 in 2^16: 12.4, 11.4 and 14.7, 12.2, 11.1 and 12.3.
# 2^18 in 2^18 on an H200: REVERSED 17.9, 15.9 and 23.3 us, LARGE 20.0, 16.7 and 19.5; 2^20 in 2^20: 41.5, 34.5 and 52.5,
# 44.4, 33.5 and 42.8.
# 2^22 in 2^20 on an H200: LARGE 68, 54 and 67 us, FILTERED 78, 64 and 91; in 2^21: 106, 71 and 134, 96, 76 and 155;
# in 2^22: 256, 107 and 300, 132, 102 and 332. The table of more than 2^21 test elements is twice as large.
NARROW = Rule(
    compared=(
        (1 << 2, EVERY),
        (1 << 4, 1 << 20),
        (1 << 6, 1 << 15),
        (1 << 7, 1 << 14),
        (1 << 8, 1 << 12),
    ),
    shared=((1 << 12, 0), (1 << 13, 1 << 17)),
    reversed=((1 << 16, 2), (1 << 18, 1)),
    unfiltered=1 << 21,
)
# Integers of 64 bits. The same times:
# 2^14 in 2^5 on an H200: COMPARE 4.6 and 4.7 us, SHARED 4.6 and 4.4; 2^12 in 2^6: 4.5, 4.6 and 4.8, 4.7.
# 2^14 in 2^12 on an H200: SHARED 8.0 and 7.7 us, LARGE 10.2 and 8.2.
# 2^8 in 2^8 on an H200: COMPARE 4.6 and 4.5 us, SHARED 4.7 and 4.7; 2^12: 4.9 and 4.9, 4.8 and 4.8.
# 2^14 in 2^15 on an H200: REVERSED 11.8, 10.4 and 13.7 us, LARGE 12.6, 10.2 and 12.3; 2^12 in 2^14: 10.7, 9.6 and 12.5,
# 10.8, 9.1 and 10.9.
# 2^16 in 2^16 on an H200: REVERSED 12.7, 12.3 and 15.4 us, LARGE 14.5, 11.6 and 14.2; 2^18 in 2^18: 20.1, 17.5 and 25.5,
# 25.3, 17.6 and 24.6; 2^20 in 2^20: 49.7, 37.7 and 63.6, 60.3, 40.5 and 66.4.
# 2^22 in 2^20 on an H200: LARGE 88, 64 and 115 us, FILTERED 87, 68 and 142; 2^24: 188, 147 and 296, 205, 159 and 335.
# 2^22 in 2^21 on an H200: FILTERED 106, 82 and 236 us, LARGE 170, 86 and 208.
WIDE = NARROW._replace(
    compared=((1 << 2, EVERY), (1 << 4, 1 << 16), (1 << 7, 1 << 12), (1 << 8, 1 << 10)),
    shared=((1 << 12, 0),),
    reversed=((1 << 15, 2), (1 << 16, 1)),
    unfiltered=1 << 20,
)
# Floats of more than 16 bits never become a bitmap. Their times are from an H200.
#
# Floats of 32 bits:
# 2^22 in 2^4: COMPARE 13.2 us, SHARED 14.1; 2^16 in 2^6: 5.1 and 5.0; 2^14 in 2^13: LARGE 8.5, SHARED 10.3;
# 2^20: 15.4 and 13.7.
# FILTERED is not taken, because floats of 32 bits that are drawn alike are often equal.
# REVERSED: 2^15 in 2^17: 11.2 us, LARGE 12.6; if all are found, 13.1 and 12.4; 2^18 in 2^18: 16.8, 18.9, 21.6 and 18.9.
FLOAT32 = NARROW._replace(
    compared=((1 << 2, EVERY), (1 << 4, 1 << 22), (1 << 6, 1 << 16), (1 << 7, 1 << 14)),
    shared=((1 << 12, 0), (1 << 13, 1 << 19)),
    reversed=((1 << 17, 4), (1 << 18, 2)),
    unfiltered=EVERY,
)
# Floats of 64 bits:
# 2^19 in 2^4: COMPARE 7.0 us, SHARED 7.9; 2^26: 170 and 160; 2^14 in 2^7: 4.6 and 5.0; 2^16: 5.8 and 5.2.
# 2^17 in 2^17: REVERSED 13.4, LARGE 15.9; if all are found, 17.6 and 15.5; 2^15 in 2^16: 11.1, 11.8, 13.5 and 11.6.
FLOAT64 = WIDE._replace(
    compared=((1 << 2, EVERY), (1 << 4, 1 << 22), (1 << 7, 1 << 14)),
    reversed=((1 << 16, 4), (1 << 17, 1)),
)


class Variant(StrEnum):
    """The variants of the table in plan.py."""

    COMPARE = "compare"
    MARK = "mark"
    SCAN = "scan"
    SHARED = "shared"
    LARGE = "large"
    REVERSED = "reversed"
    FILTERED = "filtered"


def choose(common: Any, m: int, n: int) -> Variant:
    """The variant for m elements and n test elements of the Triton dtype `common`."""
    if _marks(common, m, n):
        return Variant.MARK
    if common.primitive_bitwidth <= 16:
        if n <= SHORT_COMPARED and m <= SHORT_ELEMENTS:
            return Variant.COMPARE
        return Variant.SHARED if n <= MOST_SHARED[2] else Variant.LARGE
    if _scans(common, m, n):
        return Variant.SCAN
    rule = _rule(common)
    if n == 1 or m <= _limit(rule.compared, n, 0):
        return Variant.COMPARE
    if m >= _limit(rule.shared, n, EVERY):
        return Variant.SHARED
    fewer = any(n >= least and n >= ratio * m for least, ratio in rule.reversed)
    if fewer and m <= REVERSED_MAX_M:
        return Variant.REVERSED
    if n > rule.unfiltered and m > REVERSED_MAX_M and _can_filter(common, m, n):
        return Variant.FILTERED
    return Variant.LARGE


def _rule(common: Any) -> Rule:
    wide = common.primitive_bitwidth == 64
    if common.is_floating():
        return FLOAT64 if wide else FLOAT32
    return WIDE if wide else NARROW


def value_bytes(common: Any) -> int:
    """The bytes of a value by which limits are given: 2 for a byte, too."""
    size: int = common.primitive_bitwidth // 8
    return max(2, size)


def _marks(common: Any, m: int, n: int) -> bool:
    """Whether MARK is taken."""
    size = common.primitive_bitwidth // 8
    limits = MARKED_FLOATS if common.is_floating() and size > 2 else MARKED
    always, pairs = limits[size]
    return n >= LEAST_MARKED and (m <= always or (m <= MOST_MARKED and m * n <= pairs))


def _scans(common: Any, m: int, n: int) -> bool:
    """Whether SCAN is taken."""
    size = value_bytes(common)
    by_both_words = size == 8 and common.is_floating()
    pairs = min(SCANNED_PAIRS, SCANNED_PAIRS_FLOAT64) if by_both_words else SCANNED_PAIRS
    return m <= _limit(SCANNED[size], n, 0) and m * n <= pairs


def _limit(pairs: tuple[tuple[int, int], ...], n: int, otherwise: int) -> int:
    """The elements of the first entry with at least n test elements, or `otherwise` if there is none."""
    return next((elements for tests, elements in pairs if n <= tests), otherwise)


def _can_filter(common: Any, m: int, n: int) -> bool:
    """Whether FILTERED can do a call in some reasonable time."""
    fits = common.primitive_bitwidth == 64 or n < FULL_BITMAP_N
    return fits and n <= FILTERED_MAX_M and m <= min(FILTERED_MAX_M, FILTERED_RATIO * n)


def variants(common: Any, m: int, n: int) -> list[Variant]:
    """All variants that can do a call in some reasonable time; for measurements."""
    able = {
        Variant.COMPARE: n <= MOST_COMPARED,
        Variant.MARK: m <= MOST_MARKED,
        Variant.SCAN: common.primitive_bitwidth > 16
        and n >= LEAST_SCANNED
        and m <= MOST_SCANNED
        and m * n <= MOST_PAIRS,
        Variant.SHARED: n <= MOST_SHARED[value_bytes(common)],
        Variant.LARGE: n >= LEAST_LARGE,
        Variant.REVERSED: m <= n and common.primitive_bitwidth > 16 and m < FULL_BITMAP_N,
        Variant.FILTERED: common.primitive_bitwidth > 16
        and n >= LEAST_LARGE
        and _can_filter(common, m, n),
    }
    return [variant for variant, can in able.items() if can]
