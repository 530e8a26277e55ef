"""Which kernel rows of masked softmax and of its gradient take, and that each is right there."""

from __future__ import annotations

import pytest
import torch

from warpcall_kernels import masked_softmax as forward
from warpcall_kernels import masked_softmax_backward as gradient
from warpcall_kernels._torch import Launch, layout


def road(launch: Launch | None) -> str:
    """The kernel of a launch, and whether it takes the edges of rows apart."""
    assert launch is not None
    name = str(launch.kernel.fn.__name__).removesuffix("_kernel").rsplit("_", 1)[1]
    name = name if name in ("short", "long") else "tile"
    return f"{name}, edges" if launch.arguments.get("EDGES") else name


@pytest.mark.parametrize(
    ("columns", "dtype", "taken"),
    [
        (17, torch.bfloat16, "short"),
        (32, torch.bfloat16, "tile"),
        (33, torch.bfloat16, "tile"),
        (33, torch.float32, "tile, edges"),
        (63, torch.float16, "tile"),
        (66, torch.float16, "tile, edges"),
        (68, torch.float16, "tile"),
        (65, torch.float64, "tile"),
        (16_401, torch.float32, "long, edges"),
        (32_777, torch.bfloat16, "long, edges"),
        (32_776, torch.bfloat16, "long"),
    ],
)
def test_rows_take_the_road_that_is_fastest_for_their_length_and_where_they_begin(
    columns: int, dtype: torch.dtype, taken: str, device: str
) -> None:
    x = torch.randn(3, columns, dtype=dtype, device=device)
    mask = torch.rand(1, columns, device=device) < 0.3

    out = forward.masked_softmax(x, mask)

    plan = forward._plan(layout(x), layout(mask), None, 1.0, False)
    assert road(plan) == taken
    tolerance = forward.TOLERANCE[dtype]
    expected = forward.masked_softmax_reference(x.double(), mask)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("columns", "dtype", "taken"),
    [
        (5, torch.float32, "tile"),
        (17, torch.bfloat16, "tile"),
        (33, torch.bfloat16, "tile, edges"),
        (34, torch.bfloat16, "tile, edges"),
        (36, torch.bfloat16, "tile"),
        (10_007, torch.float32, "long, edges"),
        (10_008, torch.float32, "long"),
        (16_391, torch.bfloat16, "tile, edges"),
    ],
)
def test_gradients_take_the_road_that_is_fastest_for_their_rows(
    columns: int, dtype: torch.dtype, taken: str, device: str
) -> None:
    y = torch.softmax(torch.randn(3, columns, device=device), -1).to(dtype)
    g = torch.randn(3, columns, dtype=dtype, device=device)

    grad = gradient.masked_softmax_backward(g, y)

    assert road(gradient._plan(layout(g), layout(y), 1.0)) == taken
    tolerance = gradient.TOLERANCE[dtype]
    expected = gradient.masked_softmax_backward_reference(g.double(), y.double())
    torch.testing.assert_close(grad.double(), expected, rtol=tolerance, atol=tolerance)
