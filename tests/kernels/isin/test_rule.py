"""Which variant of isin the rule takes, by dtype and sizes."""

from __future__ import annotations

import triton.language as tl

from warpcall_kernels._isin.rule import Variant, choose


def test_the_rule_at_its_boundaries() -> None:
    taken = {
        (4, 1 << 26): Variant.COMPARE,
        (5, 1 << 26): Variant.SHARED,
        (16, 1 << 20): Variant.COMPARE,
        (16, (1 << 20) + 1): Variant.SHARED,
        (17, 1 << 15): Variant.COMPARE,
        (17, (1 << 15) + 1): Variant.SHARED,
        (65, 1 << 14): Variant.COMPARE,
        (65, (1 << 14) + 1): Variant.SHARED,
        (1 << 8, 1 << 12): Variant.COMPARE,
        (1 << 8, (1 << 12) + 1): Variant.SHARED,
        ((1 << 8) + 1, 1 << 11): Variant.SCAN,
        (1 << 9, (1 << 11) + 1): Variant.SHARED,
        ((1 << 9) + 1, 1 << 12): Variant.SCAN,
        (1 << 12, 1 << 12): Variant.SCAN,
        (1 << 12, (1 << 12) + 1): Variant.SHARED,
        (1 << 12, 1 << 26): Variant.SHARED,
        (1 << 13, 1 << 12): Variant.SCAN,
        (1 << 13, (1 << 12) + 1): Variant.LARGE,
        (1 << 13, (1 << 17) - 1): Variant.LARGE,
        (1 << 13, 1 << 17): Variant.SHARED,
        ((1 << 13) + 1, 1 << 26): Variant.LARGE,
        (1 << 15, 1 << 10): Variant.SCAN,
        (1 << 15, (1 << 10) + 1): Variant.LARGE,
        (1 << 14, 1 << 11): Variant.SCAN,
        (1 << 14, (1 << 11) + 1): Variant.LARGE,
        ((1 << 16) - 1, 1 << 8): Variant.SCAN,
        ((1 << 16) - 1, (1 << 8) + 1): Variant.LARGE,
        (1 << 16, 1 << 15): Variant.REVERSED,
        (1 << 16, (1 << 15) + 1): Variant.LARGE,
        ((1 << 18) - 1, 1 << 17): Variant.LARGE,
        ((1 << 18) - 1, (1 << 17) - 1): Variant.REVERSED,
        (1 << 18, 1 << 18): Variant.REVERSED,
        (1 << 18, (1 << 18) + 1): Variant.LARGE,
        (1 << 20, 1 << 20): Variant.REVERSED,
        (1 << 22, 1 << 20): Variant.REVERSED,
        (1 << 22, (1 << 20) + 1): Variant.FILTERED,
        ((1 << 21) + 1, (1 << 20) + 1): Variant.FILTERED,
        ((1 << 21) + 1, (1 << 25) + 16): Variant.FILTERED,
        ((1 << 21) + 1, (1 << 25) + 17): Variant.LARGE,
        (1 << 21, (1 << 20) + 1): Variant.LARGE,
        (1 << 21, 1 << 20): Variant.REVERSED,
        (1 << 21, (1 << 21) - 1): Variant.LARGE,
    }

    assert {(n, m): choose(tl.int32, m, n) for n, m in taken} == taken


def test_the_rule_for_keys_of_64_bits_at_its_boundaries() -> None:
    taken = {
        (1 << 2, 1 << 26): Variant.COMPARE,
        (1 << 4, 1 << 16): Variant.COMPARE,
        (1 << 4, (1 << 16) + 1): Variant.SHARED,
        (17, (1 << 12) + 1): Variant.SHARED,
        (1 << 7, 1 << 12): Variant.COMPARE,
        (1 << 7, (1 << 12) + 1): Variant.SHARED,
        ((1 << 7) + 1, 1 << 10): Variant.COMPARE,
        (1 << 8, 1 << 10): Variant.COMPARE,
        (1 << 8, (1 << 10) + 1): Variant.SHARED,
        ((1 << 8) + 1, 1): Variant.SHARED,
        (1 << 9, 1): Variant.SHARED,
        ((1 << 9) + 1, 1 << 12): Variant.SCAN,
        (1 << 12, 1 << 12): Variant.SCAN,
        (1 << 12, (1 << 12) + 1): Variant.SHARED,
        (1 << 12, 1 << 26): Variant.SHARED,
        ((1 << 12) + 1, 1 << 12): Variant.SCAN,
        ((1 << 12) + 1, 1 << 26): Variant.LARGE,
        (1 << 14, 1 << 10): Variant.SCAN,
        ((1 << 14) + 1, 1 << 10): Variant.LARGE,
        ((1 << 15) - 1, 1 << 12): Variant.LARGE,
        (1 << 15, 1 << 14): Variant.REVERSED,
        (1 << 15, (1 << 14) + 1): Variant.LARGE,
        ((1 << 16) - 1, 1 << 15): Variant.LARGE,
        ((1 << 16) - 1, (1 << 15) - 1): Variant.REVERSED,
        (1 << 16, 1 << 16): Variant.REVERSED,
        (1 << 16, (1 << 16) + 1): Variant.LARGE,
        (1 << 18, 1 << 18): Variant.REVERSED,
        (1 << 18, (1 << 18) + 1): Variant.LARGE,
        (1 << 20, 1 << 20): Variant.REVERSED,
        (1 << 20, (1 << 20) + 1): Variant.LARGE,
        ((1 << 20) + 1, (1 << 20) + 1): Variant.FILTERED,
        ((1 << 20) + 1, (1 << 24) + 16): Variant.FILTERED,
        ((1 << 20) + 1, (1 << 24) + 17): Variant.LARGE,
    }

    assert {(n, m): choose(tl.int64, m, n) for n, m in taken} == taken


def test_the_rule_for_floats_at_its_boundaries() -> None:
    taken = {
        (tl.float32, 1 << 4, 1 << 22): Variant.COMPARE,
        (tl.float32, 1 << 4, (1 << 22) + 1): Variant.SHARED,
        (tl.float32, 1 << 6, 1 << 16): Variant.COMPARE,
        (tl.float32, 1 << 7, 1 << 14): Variant.COMPARE,
        (tl.float32, (1 << 7) + 1, 1): Variant.SHARED,
        (tl.float32, 1 << 12, 1 << 26): Variant.SHARED,
        (tl.float32, 1 << 13, (1 << 19) - 1): Variant.LARGE,
        (tl.float32, 1 << 13, 1 << 19): Variant.SHARED,
        (tl.float32, 1 << 16, 1 << 14): Variant.LARGE,
        (tl.float32, 1 << 17, 1 << 15): Variant.REVERSED,
        (tl.float32, 1 << 17, (1 << 15) + 1): Variant.LARGE,
        (tl.float32, 1 << 18, 1 << 17): Variant.REVERSED,
        (tl.float32, 1 << 18, (1 << 17) + 1): Variant.LARGE,
        (tl.float32, 1 << 24, 1 << 26): Variant.LARGE,
        (tl.float64, 1 << 4, 1 << 22): Variant.COMPARE,
        (tl.float64, 1 << 4, (1 << 22) + 1): Variant.SHARED,
        (tl.float64, 1 << 7, 1 << 14): Variant.COMPARE,
        (tl.float64, 1 << 7, (1 << 14) + 1): Variant.SHARED,
        (tl.float64, 1 << 9, 1 << 14): Variant.SHARED,
        (tl.float64, 1 << 11, 1 << 12): Variant.SCAN,
        (tl.float64, 1 << 11, (1 << 12) + 1): Variant.SHARED,
        (tl.float64, 1 << 12, (1 << 11) + 1): Variant.SHARED,
        (tl.float64, (1 << 12) + 1, 1 << 26): Variant.LARGE,
        (tl.float64, 1 << 16, 1 << 14): Variant.REVERSED,
        (tl.float64, (1 << 16) - 1, 1 << 13): Variant.LARGE,
        (tl.float64, (1 << 17) - 1, 1 << 16): Variant.LARGE,
        (tl.float64, 1 << 17, 1 << 17): Variant.REVERSED,
        (tl.float64, 1 << 17, (1 << 17) + 1): Variant.LARGE,
        (tl.float64, 1 << 18, 1 << 18): Variant.REVERSED,
        (tl.float64, 1 << 20, 1 << 22): Variant.LARGE,
        (tl.float64, (1 << 20) + 1, 1 << 22): Variant.FILTERED,
    }

    assert {call: choose(call[0], call[2], call[1]) for call in taken} == taken


def test_the_rule_at_the_boundaries_of_scan() -> None:
    taken = {
        (tl.int32, 1 << 12, 32): Variant.COMPARE,
        (tl.int32, 1 << 12, 1 << 9): Variant.SHARED,
        (tl.int32, 1 << 11, 1 << 9): Variant.SCAN,
        (tl.int32, 1 << 12, (1 << 9) + 1): Variant.SCAN,
        (tl.int32, 1 << 10, 1 << 15): Variant.SCAN,
        (tl.int32, 1 << 12, 1 << 13): Variant.SCAN,
        (tl.int32, (1 << 12) + 1, 1 << 13): Variant.LARGE,
        (tl.int64, 1 << 12, 1 << 9): Variant.SHARED,
        (tl.int64, 1 << 12, (1 << 9) + 1): Variant.SCAN,
        (tl.int64, 1 << 12, 1 << 13): Variant.SCAN,
        (tl.int64, 1 << 13, (1 << 12) + 1): Variant.LARGE,
        (tl.int64, 1 << 10, 1 << 14): Variant.SCAN,
        (tl.int64, 1 << 10, (1 << 14) + 1): Variant.LARGE,
        (tl.float64, 1 << 12, 1 << 11): Variant.SCAN,
        (tl.float64, 1 << 12, (1 << 11) + 1): Variant.SHARED,
        (tl.float64, 1 << 9, 1 << 14): Variant.SCAN,
        (tl.float64, (1 << 9) + 1, 1 << 14): Variant.LARGE,
        (tl.float32, 1 << 10, 1 << 15): Variant.SCAN,
    }

    assert {call: choose(*call) for call in taken} == taken


def test_the_rule_for_types_of_1_or_2_bytes_at_its_boundaries() -> None:
    taken = {
        (tl.int16, 1 << 22, 4): Variant.COMPARE,
        (tl.int16, (1 << 22) + 1, 4): Variant.SHARED,
        (tl.uint8, 1, 5): Variant.SHARED,
        (tl.uint8, 1 << 10, 1 << 15): Variant.SHARED,
        (tl.bfloat16, 1 << 26, (1 << 15) + 1): Variant.LARGE,
    }

    assert {call: choose(*call) for call in taken} == taken
