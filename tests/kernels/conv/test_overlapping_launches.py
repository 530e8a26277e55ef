"""Kernels are launched before the one that they wait for has ended only on GPUs that can do it."""

from __future__ import annotations

import pytest
import torch

from warpcall_kernels._conv import backward
from warpcall_kernels.conv_backward import conv_backward
from warpcall_kernels.op.launch import layout_key, overlaps_launches

BF16 = torch.bfloat16


@pytest.mark.parametrize("compiles_for", [80, 89, 90, 100], indirect=True)
@pytest.mark.parametrize("taps", [3, 31])
def test_the_launches_of_gradients_overlap_from_capability_90_on(
    compiles_for: int, taps: int
) -> None:
    x, weight = torch.empty(2, 4, 64, dtype=BF16), torch.empty(2, taps, dtype=BF16)

    plan = backward.plan(layout_key(x), layout_key(x), layout_key(weight), taps - 1, False)

    overlaps = compiles_for >= 90
    assert overlaps_launches() == overlaps
    assert plan.reduce is not None
    assert plan.main.arguments["PDL"] == plan.reduce.arguments["PDL"] == overlaps
    for each in (plan.main, plan.reduce):
        assert ("launch_pdl" in each.arguments) == overlaps


def test_nothing_overlaps_in_the_interpreter(device: str) -> None:
    if device != "cpu":
        pytest.skip("nothing is interpreted on a GPU")

    assert not overlaps_launches()


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("length", "taps"), [(32, 3), (32, 31), (256, 31), (256, 70), (250, 31)])
def test_calls_in_a_row_wait_for_what_they_read_and_overwrite(
    length: int, taps: int, dtype: torch.dtype, device: str
) -> None:
    # In the interpreter nothing overlaps: see above.
    shape = (1, 8, length) if device == "cpu" else (64, 512, length)
    draws = [[torch.randint(-3, 4, shape).to(device, dtype) for _ in range(2)] for _ in range(3)]
    weights = [torch.randn(8, taps).to(device, dtype) for _ in range(3)]
    alone = []
    for (g, x), weight in zip(draws, weights, strict=True):
        alone.append(conv_backward(g, x, weight)[:2])
        if device != "cpu":
            torch.cuda.synchronize()
    g, x, weight = (torch.empty_like(t) for t in (*draws[0], weights[0]))
    got = []

    for i in (0, 1, 2) * (1 if device == "cpu" else 10):
        weight.copy_(weights[i])
        g.copy_(draws[i][0])
        x.copy_(draws[i][1])
        grads = conv_backward(g, x, weight)
        got.append((i, grads[0].clone(), grads[1].clone()))
        del grads  # the next call takes this memory

    for i, grad_x, grad_weight in got:
        assert torch.equal(grad_x, alone[i][0])
        assert torch.equal(grad_weight, alone[i][1])
