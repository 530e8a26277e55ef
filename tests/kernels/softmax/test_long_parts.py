"""Few long rows that programs share in two launches, and rows with a negative scale."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.kernels.layouts import masks_of_any_value
from tests.kernels.suite import assert_right
from warpcall_kernels import masked_softmax as forward
from warpcall_kernels import masked_softmax_backward as backward
from warpcall_kernels._softmax import constants
from warpcall_kernels._softmax.forward_long import SUMS, part_of_row
from warpcall_kernels.op.launch import Launch, layout_key


def rows_of(layout: str, columns: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Three rows of random scores that are not shared in one launch."""
    x = torch.randn(3, 2 * columns + 1, device=device).to(dtype)
    if layout == "strided":
        return x[:, 1::2][:, :columns]
    return x[:, :columns] if layout == "apart" else x[:, 1 : 1 + columns]


def planned(
    x: torch.Tensor, mask: torch.Tensor | None, lengths: torch.Tensor | None, scale: float = 1.0
) -> Launch | None:
    keys = [None if t is None else layout_key(t) for t in (x, mask, lengths)]
    return forward._plan(*keys, scale, False)


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize(
    ("columns", "dtype", "layout"),
    [
        (40_000, torch.bfloat16, "strided"),
        (40_013, torch.float16, "beside"),
        (20_001, torch.float32, "apart"),
        (9000, torch.float64, "apart"),
        (12_345, torch.float64, "strided"),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_few_long_rows_that_are_not_read_by_16_bytes_are_shared_in_two_launches(
    columns: int, dtype: torch.dtype, layout: str, masked: bool, limited: bool, device: str
) -> None:
    x = rows_of(layout, columns, dtype, device)
    x[1, 3], x[2, 9] = torch.nan, torch.nan
    mask = masks_of_any_value(3, columns, 1, device) if masked else None
    lengths = torch.tensor([columns - 7, 5, 0], device=device) if limited else None

    out = forward.masked_softmax(x, mask, lengths)

    launch = planned(x, mask, lengths)
    assert launch is not None
    assert launch.variant == "long"
    assert launch.then is not None
    assert launch.arguments["parts"] > 1
    assert_right(forward.OP, {"x": x, "mask": mask, "lengths": lengths}, {}, out)


@pytest.mark.parametrize("scale", [0.0, -(2.0**70), 2.0**70])
def test_a_row_of_only_minus_infinity_and_scales_that_are_not_folded(
    scale: float, device: str
) -> None:
    x = torch.randn(2, 40_000, dtype=torch.float16, device=device)
    x[0] = -torch.inf

    out = forward.masked_softmax(x, scale=scale)

    launch = forward._plan(layout_key(x), None, None, scale, False)
    assert launch is not None
    assert launch.then is not None
    assert_right(forward.OP, {"x": x}, {"scale": scale}, out)


@pytest.mark.slow
def test_skewed_rows_have_both_ends_in_the_first_part(device: str) -> None:
    columns = 524_301  # of more parts than one launch shares
    x = torch.randn(3, columns, dtype=torch.bfloat16, device=device)
    x[1, 0], x[1, -1] = 30.0, 29.0
    g = torch.randn_like(x)

    out = forward.masked_softmax(x)
    grad = backward.masked_softmax_backward(g, out)

    launch = forward._plan(layout_key(x), None, None, 1.0, False)
    assert launch is not None
    assert launch.arguments["SKEWED"]
    assert launch.then is not None
    assert_right(forward.OP, {"x": x}, {}, out)
    assert_right(backward.OP, {"grad_output": g, "output": out}, {}, grad)


@pytest.mark.parametrize(
    ("columns", "dtype", "layout"),
    [
        (40_000, torch.bfloat16, "strided"),
        (40_013, torch.float16, "beside"),
        (40_001, torch.float32, "apart"),
        (10_000, torch.float64, "apart"),
    ],
)
def test_the_gradient_of_few_long_rows_is_shared_in_two_launches(
    columns: int, dtype: torch.dtype, layout: str, device: str
) -> None:
    y = rows_of(layout, columns, dtype, device).float().softmax(-1).to(dtype)
    g = rows_of(layout, columns, dtype, device)
    g[1, 7] = torch.nan

    out = backward.masked_softmax_backward(g, y, 0.5)

    launch = backward._plan(layout_key(g), layout_key(y), 0.5)
    assert launch is not None
    assert launch.variant == "long"
    assert launch.then is not None
    assert_right(backward.OP, {"grad_output": g, "output": y}, {"scale": 0.5}, out)


@triton.jit(do_not_specialize=("whole", "parts"))
def _ends(
    out_ptr: tl.tensor, whole: tl.tensor, parts: tl.tensor, step: tl.tensor, PASS: tl.constexpr
) -> None:
    """Where each part of a row begins and ends, as numbers of 32 bits."""
    _part, begin, end = part_of_row(tl.zeros([], tl.int32) + whole, parts, step, PASS)
    tl.store(out_ptr + 2 * tl.program_id(0), begin)
    tl.store(out_ptr + 2 * tl.program_id(0) + 1, end)


@pytest.mark.parametrize("columns", [2**31 - 4096, 2**31 - 2**21, 5 * 4096 + 7])
def test_the_parts_of_a_row_of_nearly_two_to_the_31_cover_it(columns: int, device: str) -> None:
    row = ((1, columns), (columns, 1), torch.float16, 0)
    launch = backward._plan(row, ((1, columns), (columns, 1), torch.float16, 2), 1.0)
    assert launch is not None
    parts, step = launch.arguments["parts"], launch.arguments["step"]
    assert not launch.arguments["WIDE"]
    found = torch.zeros(parts, 2, dtype=torch.int64, device=device)

    _ends[(parts,)](found, columns, parts, step, SUMS)

    begins = list(range(0, columns, step))
    assert found.tolist() == [[begin, min(begin + step, columns)] for begin in begins]


def test_more_rows_are_read_by_a_program_each() -> None:
    rows = ((constants.FEW_LONG_ROWS[8] + 1, 9000), (9000, 1), torch.float64, 0)

    forwards, backwards = (
        forward._plan(rows, None, None, 1.0, False),
        backward._plan(rows, rows, 1.0),
    )

    assert forwards is not None
    assert backwards is not None
    assert (forwards.variant, forwards.then, forwards.words) == ("long", None, 0)
    assert (backwards.variant, backwards.then, backwards.words) == ("long", None, 0)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("columns", [40_000, 40_005])
@pytest.mark.parametrize("masked", [False, True])
def test_rows_with_a_negative_scale_are_shared_in_one_launch(
    columns: int, dtype: torch.dtype, masked: bool, device: str
) -> None:
    x = torch.randn(4, columns, device=device).to(dtype)
    x[0, 100], x[1, 200], x[2, 300] = torch.inf, -torch.inf, torch.nan
    mask = masks_of_any_value(4, columns, 0, device) if masked else None
    lengths = torch.tensor([columns, 250, 200, 0], device=device) if masked else None

    out = forward.masked_softmax(x, mask, lengths, -2.0)

    launch = planned(x, mask, lengths, -2.0)
    assert launch is not None
    assert launch.variant == "split"
    assert_right(forward.OP, {"x": x, "mask": mask, "lengths": lengths}, {"scale": -2.0}, out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_many_whole_rows_with_a_negative_scale(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "SPLIT_PROGRAMS", {2: 1, 4: 1})
    forward._plan.cache_clear()
    x = torch.randn(9, 32_768 * 2, device=device).to(dtype)
    x[0, 5], x[1, 6] = -torch.inf, torch.inf

    out = forward.masked_softmax(x, scale=-1.5)

    forward._plan.cache_clear()
    assert_right(forward.OP, {"x": x}, {"scale": -1.5}, out)


@pytest.mark.parametrize(
    ("shape", "lengths_shape", "one_dim"),
    [
        ((50, 3, 2, 70), None, True),
        ((50, 3, 2, 70), (50, 3, 2), True),
        ((50, 3, 5, 9), (50, 1, 1), False),
        ((7, 300, 40), None, True),
        ((1, 1, 30, 64), None, False),
        ((20, 1, 1, 33), None, True),
    ],
)
def test_the_rows_of_causal_matrices_are_one_dim(
    shape: tuple[int, ...], lengths_shape: tuple[int, ...] | None, one_dim: bool, device: str
) -> None:
    x = torch.randn(shape, dtype=torch.float16, device=device)
    lengths = None
    if lengths_shape:
        lengths = torch.randint(0, shape[-1] + 1, lengths_shape, device=device)

    out = forward.masked_softmax(x, None, lengths, causal=True)

    key = None if lengths is None else layout_key(lengths)
    launch = forward._plan(layout_key(x), None, key, 1.0, True)
    assert launch is not None
    assert launch.arguments["queries"] == (shape[-2] if one_dim else None)
    assert_right(forward.OP, {"x": x, "lengths": lengths}, {"causal": True}, out)


def test_many_short_rows_of_causal_matrices(device: str) -> None:
    x = torch.randn(constants.SHORT_ROWS // 3 + 5, 3, 17, dtype=torch.bfloat16, device=device)

    out = forward.masked_softmax(x, causal=True)

    launch = forward._plan(layout_key(x), None, None, 1.0, True)
    assert launch is not None
    assert launch.variant == "short"
    assert_right(forward.OP, {"x": x}, {"causal": True}, out)
