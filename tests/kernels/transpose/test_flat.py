"""Which permutations of larger tiles are gathered word by word."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from warpcall_kernels._transpose import flat
from warpcall_kernels._transpose.kernels import size_of
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
        ((3, 4298561), (1, 0), 2, Variant.FLAT),  # narrow words that tiles store one by one
        ((3, 4298561), (1, 0), 4, Variant.TILES),  # many words in a tile
        ((8, 7, 140, 8, 192), (0, 1, 2, 4, 3), 2, Variant.TILES),  # tiles store 16 bytes at once
        ((6055, 21), (1, 0), 2, Variant.TILES),  # a sector of x for each word
        ((3000, 64, 33), (1, 0, 2), 2, Variant.FLAT),  # rows that begin at any word
        ((3000, 64, 33), (1, 0, 2), 1, Variant.FLAT),
        ((4, 12, 5, 104, 3, 467), (3, 0, 4, 1, 2, 5), 1, Variant.ROWS),  # many divisions for a byte
        ((4, 12, 5, 104, 3, 467), (3, 0, 4, 1, 2, 5), 2, Variant.FLAT),
        ((3000, 64, 7), (1, 0, 2), 2, Variant.ROWS),
        ((3000, 64, 40), (1, 0, 2), 2, Variant.ROWS),  # rows that are read 16 bytes at a time
    ],
)
def test_the_flat_variant_takes_what_others_move_with_idle_lanes(
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


@triton.jit
def _write_size(
    out_ptr: tl.tensor, units: tl.tensor, ALIGN: tl.constexpr, WIDE: tl.constexpr
) -> None:
    tl.store(out_ptr, size_of(units, ALIGN, WIDE).to(tl.int64))


def test_a_size_may_take_more_bits_than_its_units(device: str) -> None:
    out = torch.zeros(1, dtype=torch.int64, device=device)

    _write_size[(1,)](out, 2**27 + 1, 16, True)

    assert out.item() == 2**31 + 16
