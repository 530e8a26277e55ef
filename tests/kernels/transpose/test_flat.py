"""Which permutations of larger tiles are gathered word by word."""

from __future__ import annotations

import math

import pytest

from warpcall_kernels._transpose import flat
from warpcall_kernels._transpose.plan import Variant, plan_permute
from warpcall_kernels._transpose.strides import Dim, contiguous_strides

TUBELETS = (0, 2, 4, 6, 3, 5, 7, 1)


@pytest.mark.parametrize(
    ("shape", "dims", "itemsize", "variant"),
    [
        ((32, 3, 8, 2, 169, 8, 2, 8), TUBELETS, 4, Variant.FLAT),
        ((111, 64, 2, 2, 4, 80), (0, 1, 4, 2, 5, 3), 2, Variant.FLAT),
        ((32, 4, 8, 2, 169, 8, 2, 8), TUBELETS, 4, Variant.TILES),  # no lane is idle
        ((2, 3, 8, 2, 16, 8, 2, 8), TUBELETS, 4, Variant.TILES),  # few tiles
        ((3, 4298561), (1, 0), 2, Variant.TILES),  # many words in a tile
    ],
)
def test_many_tiles_with_few_words_and_idle_lanes_are_left(
    shape: tuple[int, ...], dims: tuple[int, ...], itemsize: int, variant: Variant
) -> None:
    launch = plan_permute(shape, contiguous_strides(shape), dims, itemsize, 0)

    assert launch is not None
    assert launch.variant == variant


@pytest.mark.parametrize(
    ("sizes", "strides", "begin", "read"),
    [
        ((5000,), (1,), 0, 1.0),
        ((5000,), (1,), 1, 129 / 128),  # the last sector ends behind the block
        ((5000,), (8,), 0, 8.0),  # a sector for each word
        ((4, 2), (1, 4), 0, 1.0),  # less than a block
        ((500, 3), (1, 500), 0, (43 + 43 + 44) / 128),  # a block has words of three rows
    ],
)
def test_what_a_block_reads_is_counted_in_sectors(
    sizes: tuple[int, ...], strides: tuple[int, ...], begin: int, read: float
) -> None:
    steps = contiguous_strides(sizes)
    dims = [Dim(n, (x, out)) for n, x, out in zip(sizes, strides, steps, strict=True)]

    found = flat.read_for_each_byte(dims, 4, begin)

    assert math.isclose(found, read)
