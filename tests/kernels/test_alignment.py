"""Plans of convolutions, permutations and sums promise only the alignment that their tensors have.

A GPU faults on a misaligned access, and returns wrong data where the compiler was promised an
alignment that does not hold. The interpreter does neither, so these tests read the plans. They need
no tensors: a plan depends on nothing but layouts.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.kernels.layouts import ADDRESSES, WHOLE, arguments, at, variant
from warpcall_kernels import transpose_add as adding
from warpcall_kernels._conv import backward, forward
from warpcall_kernels._conv.tiling import Alignment
from warpcall_kernels._transpose import plan as permutation
from warpcall_kernels._transpose import unaligned
from warpcall_kernels.op.launch import Launch, LayoutKey, layout_key

BF16 = torch.bfloat16


def test_a_layout_has_the_address_modulo_16_bytes() -> None:
    x = torch.zeros(32, dtype=torch.uint8)

    assert [layout_key(x[i:])[3] for i in range(17)] == [(x.data_ptr() + i) % 16 for i in range(17)]


# Convolution.


@pytest.mark.parametrize("misaligned", [0, 1])
@pytest.mark.parametrize("address", [2, 4, 8, 14])
def test_rows_of_a_convolution_are_skewed_only_where_all_operands_begin_at_16_bytes(
    address: int, misaligned: int
) -> None:
    operands = [at(0, (8, 4, 41), BF16), at(0, (8, 4, 41), BF16)]
    assert Alignment.of(*operands) == (1, 8, False)

    operands[misaligned] = at(address, (8, 4, 41), BF16)

    assert Alignment.of(*operands) == (1, 0, False)


@pytest.mark.parametrize("misaligned", [0, 1])
@pytest.mark.parametrize(
    ("strides", "skew"),
    [
        ((4 * 41, 41, 1), 8),
        ((4 * 41 + 8, 41, 1), 8),
        ((4 * 41 + 4, 41, 1), 0),
        ((4 * 49, 49, 1), 8),
        ((4 * 48, 48, 1), 0),
        ((4 * 41 + 11, 42, 1), 0),  # where the tensor ends does not give it away
        ((2 * 4 * 41, 2 * 41, 2), 0),
        ((4 * 41 + 192, 41 + 48, 2), 0),
    ],
)
def test_rows_of_a_convolution_are_skewed_only_where_each_begins_as_that_of_the_result(
    strides: tuple[int, int, int], skew: int, misaligned: int
) -> None:
    operands = [at(0, (8, 4, 41), BF16), at(0, (8, 4, 41), BF16)]

    operands[misaligned] = (8, 4, 41), strides, BF16, 0

    assert Alignment.of(*operands).skew == skew


def test_rows_of_a_part_are_skewed_only_where_no_group_of_16_bytes_crosses_its_end() -> None:
    """Batches are 8 elements further apart than they need be."""
    eight = (2, 8, 41), (8 * 41 + 8, 41, 1), BF16, 0
    three = (2, 3, 41), (3 * 41 + 8, 41, 1), BF16, 0

    assert Alignment.of(eight) == (1, 8, False)
    assert Alignment.of(three).skew == 0
    assert Alignment.of(at(0, (2, 3, 41), BF16)) == (1, 8, True)


@pytest.mark.parametrize("misaligned", [0, 1])
@pytest.mark.parametrize("address", ADDRESSES)
def test_rows_of_a_convolution_are_read_as_widely_as_all_addresses_allow(
    address: int, misaligned: int
) -> None:
    operands = [at(0, (8, 4, 64), BF16), at(0, (8, 4, 64), BF16)]
    assert Alignment.of(*operands) == (8, 0, False)

    operands[misaligned] = at(address, (8, 4, 64), BF16)

    assert Alignment.of(*operands) == (WHOLE[address] // 2, 0, False)


@pytest.mark.parametrize(
    ("shape", "strides", "unit"),
    [
        ((8, 4, 64), (256, 64, 1), 8),
        ((8, 4, 60), (256, 64, 1), 4),
        ((8, 4, 64), (256, 66, 1), 2),
        ((8, 4, 64), (257, 64, 1), 1),
        ((8, 4, 64), (512, 128, 2), 1),
        ((1, 4, 64), (257, 64, 1), 8),
        ((8, 1, 64), (256, 66, 1), 8),
    ],
)
def test_rows_of_a_convolution_are_read_as_widely_as_all_distances_allow(
    shape: tuple[int, ...], strides: tuple[int, ...], unit: int
) -> None:
    there, here = at(0, shape, BF16), (shape, strides, BF16, 0)

    for operands in ((here,), (here, there), (there, here)):
        assert Alignment.of(*operands).unit == unit


@pytest.mark.parametrize("taps", [3, 31])
@pytest.mark.parametrize("length", [41, 64])
@pytest.mark.parametrize("address", [0, *ADDRESSES])
def test_kernels_of_convolutions_know_the_alignment_of_their_rows(
    address: int, length: int, taps: int
) -> None:
    there, here = at(0, (8, 4, length), BF16), at(address, (8, 4, length), BF16)
    weight = at(0, (2, taps), BF16)

    def promised(launch: Launch) -> tuple[Any, ...]:
        given = launch.arguments  # kernels for aligned rows only have no SKEW
        return given["UNIT"], given.get("SKEW", 0), given.get("TAIL", False)

    def gradient(g: LayoutKey, x: LayoutKey) -> Launch:
        return backward.plan(g, x, weight, taps - 1, False).main

    assert promised(forward.plan(here, weight, None, None, False)) == Alignment.of(here)
    assert promised(gradient(here, there)) == Alignment.of(here)
    assert promised(gradient(there, here)) == Alignment.of(here)


# Permute and transpose-add.


@pytest.mark.parametrize("address", ADDRESSES)
def test_rows_that_are_gathered_are_read_as_widely_as_their_address_allows(address: int) -> None:
    def align(address: int, chosen: str) -> int:
        plan = permutation.plan_permute((30, 40, 7, 8), (2240, 56, 8, 1), (1, 0, 2, 3), 2, address)
        assert variant(plan) == chosen
        assert plan is not None
        words = {"int16": 2, "int32": 4, "int64": 8}
        at_once = int(plan.arguments["ALIGN"]) if chosen == "rows" else 1
        return at_once * words[str(plan.element_types[0])]

    assert align(0, "rows") == 16
    assert align(address, "flat") == WHOLE[address]  # word by word, in the widest words


@pytest.mark.parametrize("address", ADDRESSES)
def test_tiles_of_a_permutation_are_read_as_widely_as_their_address_allows(address: int) -> None:
    def plan(address: int) -> Any:
        launch = permutation.plan_permute((512, 512), (512, 1), (1, 0), 2, address)
        assert variant(launch) == "tiles"
        return arguments(launch)

    assert plan(0)["ALIGN_X"] == 8
    assert plan(address)["ALIGN_X"] * 2 == WHOLE[address]
    assert plan(address)["ALIGN_OUT"] == 8


@pytest.mark.parametrize("address", ADDRESSES)
def test_tiles_of_a_sum_are_read_as_widely_as_each_address_allows(address: int) -> None:
    def aligns(a: int, b: int) -> tuple[int, int]:
        _, launch = adding._plan(at(a, (512, 256), BF16), at(b, (256, 512), BF16))
        assert variant(launch) == "tiles"
        return arguments(launch)["ALIGN_W"], arguments(launch)["ALIGN_H"]

    assert aligns(0, 0) == (8, 8)
    assert aligns(address, 0) == (WHOLE[address] // 2, 8)
    assert aligns(0, address) == (8, WHOLE[address] // 2)


ODD = (5001, 4999)


@pytest.mark.parametrize("address", range(0, 16, 2))
def test_words_of_unaligned_tiles_are_counted_from_the_aligned_word_that_x_begins_in(
    address: int,
) -> None:
    moved = permutation.plan_permute(ODD, (ODD[1], 1), (1, 0), 2, address)
    _, added = adding._plan(at(address, ODD, BF16), at(0, ODD[::-1], BF16))

    for launch in (moved, added):
        assert variant(launch) == "unaligned"
        assert arguments(launch)["skew"] * 2 == address % unaligned.WORD_BYTES
        assert arguments(launch)["HEAD"] == (address % unaligned.WORD_BYTES > 0)
        assert arguments(launch)["SKEW_X"]
        assert arguments(launch)["end"] == arguments(launch)["skew"] + math.prod(ODD)


@pytest.mark.parametrize(
    ("address", "pitch", "shifted"),
    [(0, 5000, False), (8, 5000, False), (2, 5000, True), (4, 5000, True), (0, 5002, True)],
)
def test_unaligned_tiles_read_aligned_words_as_they_are_only_where_all_rows_begin_at_words(
    address: int, pitch: int, shifted: bool
) -> None:
    moved = permutation.plan_permute(ODD, (pitch, 1), (1, 0), 2, address)
    _, added = adding._plan(at(address, ODD, BF16, pitch), at(0, ODD[::-1], BF16))

    for launch in (moved, added):
        assert variant(launch) == "unaligned"
        assert arguments(launch)["SKEW_X"] == shifted
        assert arguments(launch)["SKEW_OUT"]


def test_unaligned_tiles_read_aligned_words_only_where_every_batch_begins_at_a_word() -> None:
    """A batch of 5000 x 5000 elements has whole words; one element more and the next has not."""
    shape, square = (2, 5000, 5000), 5000 * 5000

    whole = permutation.plan_permute((2, *ODD), (5001 * 5000, 5000, 1), (0, 2, 1), 2, 0)
    further = permutation.plan_permute((2, *ODD), (5001 * 5000 + 1, 5000, 1), (0, 2, 1), 2, 0)
    aligned = permutation.plan_permute(shape, (square, 5000, 1), (0, 2, 1), 2, 0)

    assert not arguments(whole)["SKEW_X"]
    assert arguments(further)["SKEW_X"]
    assert variant(aligned) == "tiles"


@pytest.mark.parametrize("address", range(0, 16, 2))
def test_unaligned_tiles_add_only_what_begins_at_a_word_as_the_result_does(address: int) -> None:
    _, launch = adding._plan(at(0, ODD, BF16), at(address, ODD[::-1], BF16))

    at_a_word = address % unaligned.WORD_BYTES == 0
    assert variant(launch) == ("unaligned" if at_a_word else "tiles")
    if not at_a_word:
        assert arguments(launch)["ALIGN_H"] == 1
