"""Plans of softmax and its backward promise only the alignment that their tensors have.

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
from warpcall_kernels import masked_softmax as forward
from warpcall_kernels import masked_softmax_backward as backward
from warpcall_kernels._softmax.mask import ALIGNED, BYTES, WORDS
from warpcall_kernels._softmax.rows import Variant
from warpcall_kernels.op.launch import Launch, LayoutKey

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

pytestmark = pytest.mark.usefixtures("many_rows")


def softmax(x: LayoutKey, mask: LayoutKey | None = None) -> Launch | None:
    return forward._plan(x, mask, None, 1.0, False)


def softmax_backward(grad: LayoutKey, output: LayoutKey) -> Launch | None:
    return backward._plan(grad, output, 1.0)


@pytest.mark.parametrize("address", [4, 8, 12])
@pytest.mark.parametrize(
    ("columns", "dtype"), [(33, FP32), (10_007, FP32), (66, FP16), (16_393, BF16)]
)
def test_rows_of_softmax_are_skewed_only_where_x_begins_at_16_bytes(
    columns: int, dtype: torch.dtype, address: int
) -> None:
    aligned = arguments(softmax(at(0, (3, columns), dtype)))
    misaligned = arguments(softmax(at(address, (3, columns), dtype)))

    assert aligned["SKEWED"]
    assert aligned["ALIGN"] * dtype.itemsize == 16
    assert not misaligned["SKEWED"]
    assert misaligned["ALIGN"] == math.gcd(columns, address // dtype.itemsize, 8)


@pytest.mark.parametrize("address", [4, 8, 12])
@pytest.mark.parametrize("columns", [33, 10_007])
@pytest.mark.parametrize("misaligned", ["grad", "output"])
def test_rows_of_the_backward_are_skewed_only_where_both_operands_begin_at_16_bytes(
    columns: int, address: int, misaligned: str
) -> None:
    there, here = at(0, (3, columns), FP32), at(address, (3, columns), FP32)
    operands = (here, there) if misaligned == "grad" else (there, here)

    assert arguments(softmax_backward(there, there))["SKEWED"]
    assert not arguments(softmax_backward(*operands))["SKEWED"]
    assert arguments(softmax_backward(*operands))["ALIGN"] == 1


def test_rows_are_skewed_only_where_they_begin_as_those_of_the_result() -> None:
    """Rows 37 positions apart begin at the same places in groups of 4 as rows of 33 do; 36, not."""
    same, other = at(0, (3, 33), FP32, 37), at(0, (3, 33), FP32, 36)
    tight = at(0, (3, 33), FP32)

    assert arguments(softmax(same))["SKEWED"]
    assert not arguments(softmax(other))["SKEWED"]
    assert arguments(softmax_backward(same, tight))["SKEWED"]
    assert arguments(softmax_backward(tight, same))["SKEWED"]
    assert not arguments(softmax_backward(other, tight))["SKEWED"]
    assert not arguments(softmax_backward(tight, other))["SKEWED"]


@pytest.mark.parametrize("columns", [64, 40_000])
@pytest.mark.parametrize("address", ADDRESSES)
def test_whole_rows_of_softmax_are_read_as_widely_as_their_address_allows(
    columns: int, address: int
) -> None:
    there, here = at(0, (3, columns), BF16), at(address, (3, columns), BF16)

    assert arguments(softmax(there))["ALIGN"] == 8
    assert arguments(softmax_backward(there, there))["ALIGN"] == 8
    for launch in (softmax(here), softmax_backward(here, there), softmax_backward(there, here)):
        assert arguments(launch)["ALIGN"] * 2 == WHOLE[address]


@pytest.mark.parametrize("address", [2, 8, 14])
def test_short_rows_are_one_run_only_where_operands_begin_at_16_bytes(address: int) -> None:
    there, here = at(0, (64, 17), BF16), at(address, (64, 17), BF16)

    assert variant(softmax(there)) == Variant.SHORT
    assert variant(softmax_backward(there, there)) == Variant.SHORT
    for launch in (softmax(here), softmax_backward(here, there), softmax_backward(there, here)):
        assert variant(launch) != Variant.SHORT


def test_short_rows_are_one_run_only_where_each_batch_of_them_begins_at_16_bytes() -> None:
    aligned = (4, 64, 17), (64 * 17 * 2, 17, 1), BF16, 0
    misaligned = (4, 64, 17), (64 * 17 + 1, 17, 1), BF16, 0

    assert variant(softmax(aligned)) == Variant.SHORT
    assert variant(softmax(misaligned)) != Variant.SHORT


@pytest.mark.parametrize("columns", [32_768, 32_775])
@pytest.mark.parametrize("address", [2, 4, 8])
def test_rows_of_the_backward_are_split_only_where_both_operands_begin_at_16_bytes(
    columns: int, address: int
) -> None:
    there, here = at(0, (3, columns), BF16), at(address, (3, columns), BF16)

    assert variant(softmax_backward(there, there)) == Variant.SPLIT
    assert variant(softmax_backward(here, there)) == Variant.LONG
    assert variant(softmax_backward(there, here)) == Variant.LONG


@pytest.mark.parametrize(
    ("address", "how"),
    [(0, ALIGNED), (8, ALIGNED), (4, WORDS), (12, WORDS), (1, BYTES), (2, BYTES), (6, BYTES)],
)
def test_masks_of_long_rows_are_read_as_their_address_allows(address: int, how: Any) -> None:
    """A group of 8 positions of bf16 has 8 bytes of mask, or two or three words of 4 bytes."""
    x = at(0, (3, 65_536), BF16)

    assert arguments(softmax(x, at(address, (3, 65_536), torch.bool)))["HOW"] == how.value


@pytest.mark.parametrize(("pitch", "how"), [(65_544, ALIGNED), (65_540, WORDS), (65_537, WORDS)])
def test_masks_of_long_rows_are_read_as_the_distance_of_their_rows_allows(
    pitch: int, how: Any
) -> None:
    x = at(0, (3, 65_536), BF16)

    assert arguments(softmax(x, at(0, (3, 65_536), torch.bool, pitch)))["HOW"] == how.value


@pytest.mark.parametrize(
    ("dtype", "address", "how"),
    [(FP32, 0, WORDS), (FP32, 8, BYTES), (BF16, 8, BYTES), (torch.float64, 0, BYTES)],
)
def test_masks_are_read_as_words_only_for_groups_of_4_or_8_positions_that_fill_16_bytes(
    dtype: torch.dtype, address: int, how: Any
) -> None:
    x, mask = at(address, (3, 65_536), dtype), at(0, (3, 65_536), torch.bool, 65_537)

    assert arguments(softmax(x, mask))["HOW"] == how.value


@pytest.mark.parametrize(("address", "how"), [(0, ALIGNED), (8, ALIGNED), (4, WORDS), (1, BYTES)])
def test_masks_of_skewed_rows_are_read_as_their_address_allows(address: int, how: Any) -> None:
    x = at(0, (3, 65_553), BF16)

    plan = arguments(softmax(x, at(address, (3, 65_553), torch.bool)))

    assert plan["SKEWED"]
    assert plan["HOW"] == how.value


@pytest.mark.parametrize(
    ("address", "pitch", "align"),
    [(0, 64, 16), (8, 64, 8), (4, 64, 4), (1, 64, 1), (0, 72, 8), (0, 65, 1)],
)
def test_masks_of_whole_rows_are_read_as_widely_as_address_and_distance_allow(
    address: int, pitch: int, align: int
) -> None:
    x, mask = at(0, (3, 64), BF16), at(address, (3, 64), torch.bool, pitch)

    assert arguments(softmax(x, mask))["MASK_ALIGN"] == align


@pytest.mark.parametrize(("address", "align"), [(0, 4), (4, 4), (8, 4), (1, 1), (2, 1)])
def test_masks_of_skewed_rows_in_a_tile_are_aligned_in_themselves(address: int, align: int) -> None:
    x, mask = at(0, (3, 33), FP32), at(address, (3, 33), torch.bool)

    plan = arguments(softmax(x, mask))

    assert plan["SKEWED"]
    assert plan["MASK_ALIGN"] == align


@pytest.mark.parametrize(("pitch", "align"), [(37, 4), (33, 4), (36, 1), (34, 1)])
def test_masks_of_skewed_rows_are_aligned_where_their_rows_begin_as_those_of_the_result(
    pitch: int, align: int
) -> None:
    x, mask = at(0, (3, 33), FP32), at(0, (3, 33), torch.bool, pitch)

    assert arguments(softmax(x, mask))["MASK_ALIGN"] == align
