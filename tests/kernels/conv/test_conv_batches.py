"""Tiles whose rows lie in one batch, and tiles whose rows do not: both find their rows."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.suite import assert_right
from warpcall_kernels._conv.tiling import Tiling, dot_pieces
from warpcall_kernels.conv import OP as FORWARD
from warpcall_kernels.conv import conv
from warpcall_kernels.conv_backward import OP as BACKWARD
from warpcall_kernels.conv_backward import conv_backward
from warpcall_kernels.op.launch import Launch


def test_rows_of_a_tile_that_divide_a_head_lie_in_one_batch() -> None:
    tiling = Tiling(wide=4, tiles_wide=1, tiles=3, big=False)  # 16 rows for 64 pieces

    assert tiling.one_batch(64, 32)
    assert not tiling.one_batch(64, 24)
    assert not tiling.one_batch(64, 8)


@pytest.mark.parametrize(
    ("rows", "length", "programs", "pieces"),
    [
        (1, 2439, 1, 16),  # 39 blocks
        (4, 1000, 1, 64),  # as many blocks as a usual tile has pieces
        (15, 1000, 16, 16),  # 240 pieces, which fit one tile of each program
        (16, 1000, 16, 64),
    ],
)
def test_heads_of_few_pieces_have_small_tiles(
    rows: int, length: int, programs: int, pieces: int
) -> None:
    assert dot_pieces(rows, length, 64, 1, programs, 64) == pieces


@pytest.mark.parametrize(("group", "one_batch"), [(64, True), (40, False)])
@pytest.mark.parametrize(
    ("dtype", "taps", "length", "aware"),
    [
        (torch.bfloat16, 3, 32, [True, False]),
        (torch.bfloat16, 31, 32, [True, True]),
        (torch.bfloat16, 70, 32, [True, True, True]),
        (torch.float32, 31, 32, [False, True]),
        (torch.bfloat16, 3, 25, [False, False]),  # skewed rows
    ],
)
def test_rows_are_found_in_one_batch_and_in_several(
    dtype: torch.dtype,
    taps: int,
    length: int,
    aware: list[bool],
    group: int,
    one_batch: bool,
    device: str,
    launched: list[Launch],
) -> None:
    shape = (3, 2 * group, length)
    x, g = (torch.randint(-3, 4, shape).to(device, dtype) for _ in range(2))
    weight, bias = torch.randn(2, taps, device=device), torch.randn(2 * group, device=device)
    weight, bias = weight.to(dtype), bias.to(dtype)
    padding = taps // 3

    out = conv(x, weight, bias, padding)
    grads = conv_backward(g, x, weight, padding)

    # The last launch adds up the sums of taps.
    seen = [launch.arguments["ONE_BATCH"] for launch in launched[:-1]]
    assert seen == [each and one_batch for each in aware]
    how = {"padding_l": padding}
    assert_right(FORWARD, {"x": x, "weight": weight, "bias": bias}, how, out)
    assert_right(BACKWARD, {"grad_output": g, "x": x, "weight": weight}, how, grads)
