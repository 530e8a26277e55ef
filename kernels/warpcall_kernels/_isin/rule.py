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

SMALL_N = 1 << 12  # test elements up to which one program can build the set
# Test elements of 32-bit types from which on a bitmap of all 2^32 values is smaller than a hash
# set.
FULL_BITMAP_N = 1 << 25

# Sizes for which `variants` has a variant at all. Outside of them it is slower by far.
# Most test elements of COMPARE and SEARCH.
MOST_COMPARED, MOST_SEARCHED = 1 << 7, 1 << 10
# Most elements of SCAN, and most pairs of an element and a test element.
MOST_SCANNED, MOST_PAIRS = 1 << 16, 1 << 27
# LARGE has at least so many test elements or elements.
LEAST_LARGE, MANY_LARGE = 1 << 10, 1 << 26

# COMPARE: (test elements, elements) up to which it is taken. 2^14 int64 in 2^7, sparse and dense:
# 5.1 and 5.0 us, SCAN 5.2 and 5.6, SEARCH 6.7 and 5.0.
COMPARED = ((1 << 2, 1 << 62), (1 << 4, 1 << 17), (1 << 7, 1 << 16))
SHORT_COMPARED = 32  # test elements of 1 or 2 bytes up to which it is taken
# SCAN is taken for more test elements than SCANNED_FROM and up to SCANNED_PAIRS pairs.
SCANNED_FROM, SCANNED_PAIRS = 1 << 5, 1 << 25
# Test elements and elements up to which SCAN is taken, by the bytes of a value (2 for 1, too). The
# first pair with enough test elements decides. 2^12 sparse int64 in 2^12: 6.7 us, LARGE 9.5; 2^12
# int32 in 2^14, sparse and dense: 10.1 and 10.3 us, LARGE 10.1 and 8.3. Integers of 64 bits take
# longer if they are found.
SCANNED = {
    2: ((1 << 11, 1 << 14), (1 << 13, 1 << 12), (1 << 15, 1 << 10)),
    4: ((1 << 7, 1 << 12), (1 << 15, 1 << 15), (1 << 16, 1 << 8)),
    8: ((1 << 7, 1 << 12), (1 << 11, 1 << 14), (1 << 15, 1 << 13)),
}
# REVERSED: (test elements, how many of them for each element) from which on it is taken. 2^20 int32
# in 2^22 on an H200: 167 us, LARGE 395; 2^19 dense int64 in 2^20 on an H200: 75 us, LARGE 113. 2^12
# int32 in 2^18, sparse and dense: 14.4 and 13.9 us, LARGE 20.6 and 15.9; in 2^16: 12.6 and 10.9,
# LARGE 12.1 and 10.7.
REVERSED = ((1 << 17, 4), (1 << 20, 2))
REVERSED_MAX_M = 1 << 20  # elements up to which it is taken
# FILTERED: most elements for each test element. The list of candidates has room for those that the
# filter lets pass by mistake.
FILTERED_RATIO = 8
FILTERED_MAX_M = (1 << 31) - 1  # most elements, whose numbers must fit into a key of 32 bits


class Rule(NamedTuple):
    """Where SEARCH, SMALL and FILTERED are taken, for keys of one width.

    Args:
        searched: test elements and elements up to which SEARCH is taken. The first pair with enough
            test elements decides.
        small_n: test elements of more than that up to which SMALL is taken.
        some: elements from which on SMALL is taken for up to SMALL_N test elements, too.
        most: elements up to which SMALL is taken for LEAST_LARGE test elements or more.
        many: elements from which on SMALL may make sparse test elements a hash set. Fewer elements
            have a search tree.
        tree_pairs: pairs up to which many elements have a search tree, too.
        filtered_n: test elements from which on FILTERED is taken.
        filtered_m: elements from which on FILTERED is taken.
    """

    searched: tuple[tuple[int, int], ...]
    small_n: int
    some: int
    most: int
    many: int
    tree_pairs: int
    filtered_n: int
    filtered_m: int


# Keys of 32 bits. Times of sparse and of dense values:
# 2^22 in 2^7: SEARCH 17.0 and 13.0 us, SMALL 19.3 and 14.2.
# 2^20 in 2^10: SMALL with a tree 12.5 and 8.9 us, with a hash set 15.7 and 9.1, SEARCH 22.
# 2^26 in 2^10: SMALL with a hash set 242 and 120 us, LARGE 227 and 122.
# 2^22 in 2^22: FILTERED 215 and 174 us, LARGE 384 and 179.
# 2^26 sparse in 2^24 on an H200: FILTERED 989 us, LARGE 2,023; if all are found, 3,451 and 3,323.
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
# Keys of 64 bits. Times of sparse and of dense values:
# 2^22 in 2^7: SEARCH 26.7 and 19.7 us, SMALL 25.5 and 20.5.
# 2^22 in 2^8: SEARCH 32.8 and 20.0 us, SMALL 26.3 and 20.7.
# 2^20 sparse in 2^10: SMALL with a tree 16.5 us, with a hash set 20; 2^24: 115 and 85.
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
    # Floats that are drawn alike are often equal, and then most elements pass the filter: 2^26
    # normal fp32 in 2^24 took 2,515 us by FILTERED on an H200, and 1,981 by LARGE.
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
    """The elements of the first pair with at least n test elements, 0 if there is none."""
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
