"""Tiles whose rows lie in one batch, and tiles whose rows do not: both find their rows."""

from __future__ import annotations

import pytest
import torch

from warpcall_kernels._conv.tiling import Tiling
from warpcall_kernels.conv import conv, conv_reference
from warpcall_kernels.conv_backward import TOLERANCE, conv_backward, conv_backward_reference
from warpcall_kernels.op.launch import Launch


def test_rows_of_a_tile_that_divide_a_head_lie_in_one_batch() -> None:
    tiling = Tiling(wide=4, tiles_wide=1, tiles=3, big=False)  # 16 rows for 64 pieces

    assert tiling.one_batch(64, 32)
    assert not tiling.one_batch(64, 24)
    assert not tiling.one_batch(64, 8)


@pytest.mark.parametrize(("group", "one_batch"), [(64, True), (48, False)])
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
    error = TOLERANCE[dtype]

    out = conv(x, weight, bias, padding)
    grads = conv_backward(g, x, weight, padding)

    # The last launch adds up the sums of taps.
    seen = [launch.arguments["ONE_BATCH"] for launch in launched[:-1]]
    assert seen == [each and one_batch for each in aware]
    expected = conv_reference(x.double(), weight.double(), bias.double(), padding)
    torch.testing.assert_close(out.double(), expected, rtol=error, atol=taps * error)
    wanted = conv_backward_reference(g.double(), x.double(), weight.double(), padding)
    for grad, right in zip(grads[:2], wanted[:2], strict=True):
        assert grad is not None
        assert right is not None
        torch.testing.assert_close(grad.double(), right, rtol=error, atol=taps * error)
