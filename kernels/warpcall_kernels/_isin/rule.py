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
MOST_PAIRS = 1 << 27  # of an element and a test element, up to which SCAN is measured
# Test elements, or elements, from which on LARGE is measured.
LEAST_LARGE, MANY_LARGE = 1 << 10, 1 << 26

# The rule of `choose`, from grids of 12 x 17 sizes of dense and sparse int32 and int64 on an H200 and an H100
# (docs/benchmarks/isin-grid.md). Nothing knows before the launch whether values are dense or sparse, so
# each number is the one whose worse case is better.
# COMPARE: (test elements, elements) up to which it is taken. On an H100, 2^14 int64 in 2^7, sparse and
# dense: 5.1 and 5.0 us, SCAN 5.2 and 5.6, SEARCH 6.7 and 5.0.
COMPARED = ((1 << 2, 1 << 62), (1 << 4, 1 << 17), (1 << 7, 1 << 16))
SHORT_COMPARED = 32  # the same for types of 1 and 2 bytes
# SCAN: by the bytes of a value (2 for 1, too), test elements and elements up to which it is taken. The
# first pair with enough test elements decides. There are more than SCANNED_FROM test elements, and up to
# SCANNED_PAIRS of an element and a test element. On an H100, 2^12 sparse int64 in 2^12: 6.7 us, LARGE
# 9.5. 2^12 int32 in 2^14, sparse and dense: 10.1 and 10.3 us, LARGE 10.1 and 8.3. Integers of 64 bits take
# longer if they are found.
SCANNED_FROM, SCANNED_PAIRS = 1 << 5, 1 << 25
SCANNED = {
    2: ((1 << 11, 1 << 14), (1 << 13, 1 << 12), (1 << 15, 1 << 10)),
    4: ((1 << 7, 1 << 12), (1 << 15, 1 << 15), (1 << 16, 1 << 8)),
    8: ((1 << 7, 1 << 12), (1 << 11, 1 << 14), (1 << 15, 1 << 13)),
}
# REVERSED: from so many test elements on, the least of them for each element; and the most elements.
# 2^20 int32 in 2^22: 167 us, LARGE 395. 2^19 dense int64 in 2^20: 75 us, LARGE 113. On an H100, sparse and
# dense: 2^12 int32 in 2^18 14.4 and 13.9 us, LARGE 20.6 and 15.9; in 2^16 12.6 and 10.9, LARGE 12.1 and 10.7.
REVERSED, REVERSED_MAX_M = ((1 << 17, 4), (1 << 20, 2)), 1 << 20
# FILTERED: the most elements for each test element, because of which the list of candidates has room
# for those that the filter lets pass by mistake, and the most elements, whose numbers must fit into a
# key of 32 bits.
FILTERED_RATIO, FILTERED_MAX_M = 8, (1 << 31) - 1


class Rule(NamedTuple):
    """Where SEARCH, SMALL and FILTERED are taken, for keys of one width.

    Args:
        searched: test elements and elements up to which SEARCH is taken. The first pair with enough test
            elements decides.
        small_n: test elements of more than that up to which SMALL is taken.
        some: elements from which on it is taken for SMALL_N test elements, too,
        most: elements up to which it is taken for LEAST_LARGE test elements or more.
        many: elements from which on SMALL makes sparse test elements a search tree rather than a hash set
        tree_pairs: only for so many pairs.
        filtered_n: test elements from which on FILTERED is taken,
        filtered_m: for so many elements or more.
    """

    searched: tuple[tuple[int, int], ...]
    small_n: int
    some: int
    most: int
    many: int
    tree_pairs: int
    filtered_n: int
    filtered_m: int


# On an H100, 2^22 int32 in 2^7, sparse and dense: SEARCH 17.0 and 13.0 us, SMALL 19.3 and 14.2.
# On an H100, 2^20 int32 in 2^10, sparse and dense: SMALL with a tree 12.5 and 8.9 us, with a hash set 15.7
# and 9.1, SEARCH 22. 2^26 int32 in 2^10: with a hash set 242 and 120 us, LARGE 227 and 122.
# 2^26 in 2^24, sparse: FILTERED 989 us, LARGE 2,023; all elements in the set: 3,451 and 3,323.
# On an H100, 2^22 in 2^22: FILTERED 215 us (sparse) and 174 (dense), LARGE 384 and 179.
NARROW = Rule(
    searched=((1 << 8, 1 << 62), (1 << 9, 1 << 18)),
    small_n=1 << 11,
    some=1 << 62,
    most=1 << 22,
    many=1 << 22,
    tree_pairs=1 << 34,
    filtered_n=1 << 22,
    filtered_m=1 << 22,
)
# On an H100, 2^22 int64 in 2^7, sparse and dense: SEARCH 26.7 and 19.7 us, SMALL 25.5 and 20.5; in 2^8 32.8
# and 20.0, SMALL 26.3 and 20.7.
# On an H100, 2^24 sparse int64 in 2^10: with a hash set 85 us, with a tree 115; 2^20 in 2^10: 20 and 16.5.
WIDE = NARROW._replace(
    searched=((1 << 7, 1 << 23), (1 << 9, 1 << 18)),
    some=1 << 22,
    most=1 << 62,
    tree_pairs=1 << 29,
)


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
        if n <= SHORT_COMPARED:
            return Variant.COMPARE
        return Variant.SMALL if n <= SMALL_N else Variant.LARGE
    rule = _rule(common)
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
    if m <= _most_elements(rule.searched, n):
        return Variant.SEARCH
    least = 0 if n <= rule.small_n else rule.some
    if n < LEAST_LARGE or (n <= SMALL_N and least <= m <= rule.most):
        return Variant.SMALL
    return Variant.LARGE


def has_tree(common: Any, m: int, n: int) -> bool:
    """Whether SMALL makes sparse test elements a search tree."""
    rule = _rule(common)
    return common.primitive_bitwidth > 16 and (m < rule.many or m * n <= rule.tree_pairs)


def _rule(common: Any) -> Rule:
    return WIDE if common.primitive_bitwidth == 64 else NARROW


def scanned_size(common: Any) -> int:
    """The bytes of a value by which SCAN has its constants: 2 for a byte, too."""
    size: int = common.primitive_bitwidth // 8
    return max(2, size)


def _scans(common: Any, m: int, n: int) -> bool:
    """Whether SCAN is taken."""
    size = scanned_size(common)
    return n > SCANNED_FROM and m <= _most_elements(SCANNED[size], n) and m * n <= SCANNED_PAIRS


def _most_elements(pairs: tuple[tuple[int, int], ...], n: int) -> int:
    """The elements of the first pair of test elements and elements with at least n of the former."""
    return next((elements for tests, elements in pairs if n <= tests), 0)


def _can_filter(common: Any, m: int, n: int) -> bool:
    """Whether FILTERED can do a call in some reasonable time."""
    fits = common.primitive_bitwidth == 64 or n < FULL_BITMAP_N
    return fits and n <= FILTERED_MAX_M and m <= min(FILTERED_MAX_M, FILTERED_RATIO * n)


def variants(common: Any, m: int, n: int) -> list[Variant]:
    """All variants that can do a call in some reasonable time; for measurements."""
    able = {
        Variant.COMPARE: n <= MOST_COMPARED,
        Variant.SCAN: n >= SCANNED_FROM and m <= MOST_SCANNED and m * n <= MOST_PAIRS,
        Variant.SEARCH: 1 < n <= MOST_SEARCHED,
        Variant.SMALL: n <= SMALL_N,
        Variant.LARGE: n >= LEAST_LARGE or m >= MANY_LARGE,
        Variant.REVERSED: m <= n and common.primitive_bitwidth > 16 and m < FULL_BITMAP_N,
        Variant.FILTERED: common.primitive_bitwidth > 16
        and n > SMALL_N
        and _can_filter(common, m, n),
    }
    return [variant for variant, can in able.items() if can]
