"""Which variant of isin a call takes, by its dtype and sizes.

Measured on an H200. Every other GPU takes the same, and may lose speed by it, never correctness.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

SMALL_N = 1 << 12  # test elements up to which one program can build the set
# Test elements of 32-bit types from which on a bitmap of all 2^32 values is smaller than a hash
# set.
FULL_BITMAP_N = 1 << 25
# Up to so many test elements COMPARE and SEARCH are measured at all, and SCAN of so many elements.
MOST_COMPARED, MOST_SEARCHED, MOST_SCANNED = 1 << 7, 1 << 10, 1 << 16

# The rule of `choose`, from a grid of 12 x 17 sizes of dense and sparse int32 and int64
# (docs/benchmarks/isin-grid.md). Nothing knows before the launch whether values are dense or sparse, so
# each number is the one whose worse case is better.
# COMPARE: (test elements, elements) up to which it is taken.
COMPARED = ((1 << 4, 1 << 17),)
SHORT_COMPARED = 32  # the same for types of 1 and 2 bytes
# SCAN: by the bytes of a value (2 for 1, too), test elements and elements up to which it is taken. The
# first pair with enough test elements decides. There are more than SCANNED_FROM test elements, and up to
# SCANNED_PAIRS of an element and a test element. On an H100, 2^12 sparse int64 in 2^12: 6.8 us, LARGE
# 28. 2^16 int32 in 2^10: 10.6 us, SEARCH 10.8.
SCANNED_FROM, SCANNED_PAIRS = 1 << 4, 1 << 26
SCANNED = {
    2: ((1 << 11, 1 << 14), (1 << 13, 1 << 12), (1 << 15, 1 << 10)),
    4: ((1 << 6, 1 << 14), (1 << 10, 1 << 16), (1 << 16, 1 << 15)),
    8: ((1 << 8, 1 << 14), (1 << 9, 1 << 16), (1 << 16, 1 << 14)),
}
SCANNED_FP64 = 1 << 14  # elements up to which it is taken for fp64, whose comparisons take longer
# REVERSED: from so many test elements on, the least of them for each element; and the most elements.
# 2^20 int32 in 2^22: 167 us, LARGE 395. 2^19 dense int64 in 2^20: 75 us, LARGE 113.
REVERSED, REVERSED_MAX_M = ((1 << 17, 4), (1 << 20, 2)), 1 << 20
# FILTERED: the most elements for each test element, because of which the list of candidates has room
# for those that the filter lets pass by mistake, and the most elements, whose numbers must fit into a
# key of 32 bits.
FILTERED_RATIO, FILTERED_MAX_M = 8, (1 << 31) - 1


class Rule(NamedTuple):
    """Where SEARCH, SMALL and FILTERED are taken, for keys of one width.

    Args:
        searched: test elements up to which SEARCH is taken for any number of elements.
        most_searched: test elements up to which it is taken,
        searched_pairs: for so many pairs of an element and a test element.
        small_n: test elements of more than that up to which SMALL is taken.
        many: elements from which on it is taken for more,
        small_n_of_many: up to so many.
        filtered_n: test elements from which on FILTERED is taken,
        filtered_m: for so many elements or more.
    """

    searched: int
    most_searched: int
    searched_pairs: int
    small_n: int
    many: int
    small_n_of_many: int
    filtered_n: int
    filtered_m: int


# 2^16 in 1,024: SEARCH 10 us, SMALL 9 (dense) and 13 (sparse); 2^24 in 16: SEARCH 33, SMALL 30 and 52.
# 2^26 in 2^24, sparse: FILTERED 989 us, LARGE 2,023; all elements in the set: 3,451 and 3,323.
# On an H100, 2^22 in 2^22: FILTERED 214 us (sparse) and 190 (dense), LARGE 377 and 176.
NARROW = Rule(32, 1 << 10, 1 << 28, 1 << 11, 1 << 22, 1 << 11, 1 << 22, 1 << 22)
# 2^24 in 2,048, sparse: SMALL 107 us, LARGE 156; 2^16 in 2,048: LARGE is level with it or faster.
WIDE = Rule(8, 1 << 9, 1 << 27, 1 << 10, 1 << 18, 1 << 11, 1 << 22, 1 << 22)


class Variant(StrEnum):
    """The variants of the table in plan.py."""

    COMPARE = "compare"
    SCAN = "scan"
    SEARCH = "search"
    SMALL = "small"
    LARGE = "large"
    REVERSED = "reversed"
    FILTERED = "filtered"


def choose(common: Any, m: int, n: int) -> Variant:
    """The variant for m elements and n test elements of the Triton dtype `common`."""
    if _scans(common, m, n):
        return Variant.SCAN
    if common.primitive_bitwidth <= 16:
        return Variant.COMPARE if n <= SHORT_COMPARED else _set_variant(SMALL_N, n)
    rule = WIDE if common.primitive_bitwidth == 64 else NARROW
    if n == 1 or any(n <= most and m <= elements for most, elements in COMPARED):
        return Variant.COMPARE
    fewer = any(n >= least and n >= ratio * m for least, ratio in REVERSED)
    if fewer and m <= REVERSED_MAX_M:
        return Variant.REVERSED
    # Floats that are drawn alike are often equal, and then most elements pass the filter: 2^26 normal
    # fp32 in 2^24 took 2,515 us by FILTERED, and 1,981 by LARGE.
    many = n >= rule.filtered_n and m >= rule.filtered_m
    if many and not common.is_floating() and _can_filter(common, m, n):
        return Variant.FILTERED
    if n <= rule.searched or (n <= rule.most_searched and m * n <= rule.searched_pairs):
        return Variant.SEARCH
    return _set_variant(rule.small_n_of_many if m >= rule.many else rule.small_n, n)


def _scans(common: Any, m: int, n: int) -> bool:
    """Whether SCAN is taken."""
    size = max(2, common.primitive_bitwidth // 8)
    most = next((elements for tests, elements in SCANNED[size] if n <= tests), 0)
    if size == 8 and common.is_floating():
        most = min(most, SCANNED_FP64)
    return n > SCANNED_FROM and m <= most and m * n <= SCANNED_PAIRS


def _can_filter(common: Any, m: int, n: int) -> bool:
    """Whether FILTERED can do a call in some reasonable time."""
    fits = common.primitive_bitwidth == 64 or n < FULL_BITMAP_N
    return fits and n <= FILTERED_MAX_M and m <= min(FILTERED_MAX_M, FILTERED_RATIO * n)


def _set_variant(small_n: int, n: int) -> Variant:
    return Variant.SMALL if n <= small_n else Variant.LARGE


def variants(common: Any, m: int, n: int) -> list[Variant]:
    """All variants that can do a call in some reasonable time; for measurements."""
    able = {
        Variant.COMPARE: n <= MOST_COMPARED,
        Variant.SCAN: n >= SCANNED_FROM and m <= MOST_SCANNED and m * n <= 2 * SCANNED_PAIRS,
        Variant.SEARCH: 1 < n <= MOST_SEARCHED,
        Variant.SMALL: n <= SMALL_N,
        Variant.LARGE: True,
        Variant.REVERSED: m <= n and common.primitive_bitwidth > 16 and m < FULL_BITMAP_N,
        Variant.FILTERED: common.primitive_bitwidth > 16
        and n > SMALL_N
        and _can_filter(common, m, n),
    }
    return [variant for variant, can in able.items() if can]
