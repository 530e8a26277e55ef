"""Rows whose positions lie far apart, and which lie side by side themselves: softmax over another dim than the last."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.suite import assert_right
from warpcall_kernels import masked_softmax as forward
from warpcall_kernels import masked_softmax_backward as backward
from warpcall_kernels.op.launch import Launch, layout_key


def turned(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of this shape whose last two dims are swapped in memory."""
    return torch.randn(*shape[:-2], shape[-1], shape[-2], device=device).to(dtype).mT


def planned(x: torch.Tensor, mask: torch.Tensor | None = None) -> Launch | None:
    return forward._plan(
        layout_key(x), None if mask is None else layout_key(mask), None, 1.0, False
    )


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 200, 21), (65, 128), (2, 30, 33), (2, 3, 100, 70)])
@pytest.mark.parametrize("masked", ["no", "keys", "all"])
@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_they_are_read_where_they_lie(
    dtype: torch.dtype, shape: tuple[int, ...], masked: str, causal: bool, device: str
) -> None:
    x = turned(*shape, dtype=dtype, device=device)
    x[..., 5, 2] = torch.nan
    sizes = {"keys": shape[-1:], "all": shape}.get(masked)
    mask = None if sizes is None else torch.rand(sizes, device=device) < 0.3
    lengths = torch.randint(0, shape[-1] + 1, shape[:-1], device=device) if causal else None

    out = forward.masked_softmax(x, mask, lengths, 0.5, causal)

    launch = planned(x, mask)
    assert launch is not None
    assert launch.arguments["BESIDE"]
    inputs = {"x": x, "mask": mask, "lengths": lengths}
    assert_right(forward.OP, inputs, {"scale": 0.5, "causal": causal}, out)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 200, 21), (65, 60), (2, 3, 100, 33)])
@pytest.mark.parametrize("which", ["g", "y", "both"])
def test_the_gradient_reads_either_operand_so(
    dtype: torch.dtype, shape: tuple[int, ...], which: str, device: str
) -> None:
    g, y = (turned(*shape, dtype=dtype, device=device) for _ in range(2))
    y = y.float().softmax(-1).to(dtype)
    y = turned(*shape, dtype=dtype, device=device).copy_(y) if which != "g" else y.contiguous()
    g = g if which != "y" else g.contiguous()

    out = backward.masked_softmax_backward(g, y, 2.0)

    launch = backward._plan(layout_key(g), layout_key(y), 2.0)
    assert launch is not None
    assert (launch.arguments["G_BESIDE"], launch.arguments["Y_BESIDE"]) == (
        which != "y",
        which != "g",
    )
    assert_right(backward.OP, {"grad_output": g, "output": y}, {"scale": 2.0}, out)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((300, 5000), "long rows"),
        ((3, 200, 500), "tiles for few programs"),
        ((4, 15, 40), "few rows side by side"),
        ((500, 16, 3), "tiles of few bytes"),
    ],
)
def test_others_are_copied_first(shape: tuple[int, ...], reason: str, device: str) -> None:
    x = turned(*shape, dtype=torch.float32, device=device)

    out = forward.masked_softmax(x)

    assert planned(x) is None, reason
    assert_right(forward.OP, {"x": x}, {}, out)


def test_rows_with_gaps_between_positions_and_rows_are_copied_first(device: str) -> None:
    x = torch.randn(40, 50, 20, device=device)[:, :, ::10].movedim(0, -1)

    assert planned(x) is None
    assert_right(forward.OP, {"x": x}, {}, forward.masked_softmax(x))


def test_longer_rows_of_one_operand_of_the_gradient_are_copied_first() -> None:
    far, near = ((4096, 4096, 200), (819_200, 1, 4096)), ((4096, 4096, 200), (819_200, 200, 1))

    def launch(g: tuple[tuple[int, ...], ...], y: tuple[tuple[int, ...], ...]) -> Launch | None:
        return backward._plan((*g, torch.bfloat16, 0), (*y, torch.bfloat16, 0), 1.0)

    assert launch(far, far) is not None
    assert launch(far, near) is None
    assert launch(near, far) is None


@pytest.mark.parametrize(
    ("columns", "dtype", "rows", "block", "warps"),
    [
        (8, torch.float32, 128, 8, 2),
        (21, torch.float16, 64, 32, 2),
        (60, torch.float32, 16, 64, 2),
        (256, torch.float32, 16, 256, 8),
        (512, torch.bfloat16, 32, 512, 16),
        (9, torch.float64, 32, 16, 2),
    ],
)
def test_a_tile_has_64_bytes_of_each_position_or_more_of_short_rows(
    columns: int, dtype: torch.dtype, rows: int, block: int, warps: int
) -> None:
    x = ((64, 4096, columns), (4096 * columns, 1, 4096), dtype, 0)

    launch = forward._plan(x, None, None, 1.0, False)

    assert launch is not None
    found = [launch.arguments[name] for name in ("ROWS", "BLOCK", "num_warps")]
    assert found == [rows, block, warps]


def test_a_tile_has_no_more_rows_than_lie_side_by_side() -> None:
    x = ((4096, 40, 16), (40 * 16, 1, 40), torch.float32, 0)

    launch = forward._plan(x, None, None, 1.0, False)

    assert launch is not None
    assert launch.arguments["ROWS"] == 64
