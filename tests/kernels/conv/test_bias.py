"""The gradient of a bias of conv-backward."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.suite import assert_right
from warpcall_kernels import conv_backward as backward
from warpcall_kernels._conv import bias
from warpcall_kernels._conv.bias import plan_bias
from warpcall_kernels.op.launch import Launch, layout_key


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (3, 2, 5000), (40, 3, 17), (2, 130, 64), (300, 2, 8), (5, 7, 1031), (1, 3, 2048)],
)
@pytest.mark.parametrize(
    "layout",
    [
        "contiguous",
        *(
            pytest.param(layout, marks=pytest.mark.slow)
            for layout in ("offset", "strided", "transposed", "expanded")
        ),
    ],
)
def test_the_sum_of_each_channel_is_right(
    dtype: torch.dtype, shape: tuple[int, int, int], layout: str, device: str
) -> None:
    batches, channels, length = shape
    generator = torch.Generator().manual_seed(length)
    sizes = {
        "offset": (batches, channels, length + 1),
        "strided": (batches, channels, 2 * length),
        "transposed": (batches, length, channels),
        "expanded": (1, channels, length),
    }.get(layout, shape)
    g = torch.randn(sizes, generator=generator).to(device, dtype)
    if layout == "offset":
        g = g[..., 1:]
    elif layout == "strided":
        g = g[..., ::2]
    elif layout == "transposed":
        g = g.transpose(1, 2)
    elif layout == "expanded":
        g = g.expand(shape)
    x = torch.randn(shape, generator=generator).to(device, dtype)
    weight = torch.randn(1, 3, generator=generator).to(device, dtype)

    grads = backward.conv_backward(g, x, weight, 1, False, True)

    inputs = {"grad_output": g, "x": x, "weight": weight}
    assert_right(backward.OP, inputs, {"padding_l": 1, "bias": True}, grads)


def test_few_channels_have_many_parts_and_many_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias, "multiprocessors", lambda: 10)

    few = plan_bias(layout_key(torch.empty(64, 2, 4096)))
    many = plan_bias(layout_key(torch.empty(64, 500, 4096)))

    assert few.parts == 20  # 40 programs for 2 channels
    assert many.parts == 1


@pytest.mark.parametrize(
    ("shape", "taps", "softmax", "kernels"),
    [
        ((3, 5, 40), 3, False, ["_fma_kernel", "_reduce_and_sum_kernel"]),
        ((3, 5, 40), 3, True, ["_fma_kernel", "_reduce_and_sum_kernel"]),
        ((2, 3, 9000), 3, False, ["_fma_kernel", "_bias_kernel", "_reduce_both_kernel"]),
        ((2, 3, 9000), 3, True, ["_fma_kernel", "_bias_kernel", "_reduce_both_kernel"]),
        ((1, 2, 8), 5000, True, ["_fma_kernel", "_fma_kernel"]),  # torch reduces
    ],
)
def test_the_bias_ends_where_the_filters_are_reduced(
    shape: tuple[int, int, int],
    taps: int,
    softmax: bool,
    kernels: list[str],
    device: str,
    launched: list[Launch],
) -> None:
    generator = torch.Generator().manual_seed(taps)
    g, x = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
    weight = torch.randn(1, taps, generator=generator).to(device)

    grads = backward.conv_backward(g, x, weight, None, softmax, True)

    assert [launch.kernel.fn.__name__ for launch in launched] == kernels
    inputs = {"grad_output": g, "x": x, "weight": weight}
    assert_right(backward.OP, inputs, {"softmax_weight": softmax, "bias": True}, grads)


def test_nan_and_infinity_stay_in_their_channel(device: str) -> None:
    g = torch.zeros(2, 3, 700, device=device)
    g[0, 0, 650], g[1, 2, 3] = torch.nan, torch.inf

    found = backward.conv_backward(
        g, torch.ones_like(g), torch.ones(1, 1, device=device), 0, False, True
    )[2]

    assert found is not None
    assert found[0].isnan()
    assert found[1:].tolist() == [0.0, torch.inf]
