"""Calls of masked softmax and its gradient with few rows, which many programs share or none waits for."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from tests.kernels.layouts import at, masks_of_any_value
from tests.kernels.suite import assert_right
from warpcall_kernels import masked_softmax as forward
from warpcall_kernels import masked_softmax_backward as backward
from warpcall_kernels._softmax import constants
from warpcall_kernels._softmax.mask import ALIGNED, BYTES, WORDS
from warpcall_kernels.op.launch import layout_key


@pytest.mark.thinned
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("columns", [32_768, 40_005])
@pytest.mark.parametrize(
    ("offset", "step", "how"), [(0, 1, None), (4, 1, WORDS), (1, 1, BYTES), (0, 2, BYTES)]
)
@pytest.mark.parametrize("lengths", [False, True])
def test_few_long_rows_are_shared_whatever_counts_of_them(
    columns: int,
    dtype: torch.dtype,
    offset: int,
    step: int,
    how: tl.constexpr | None,
    lengths: bool,
    device: str,
) -> None:
    mask = masks_of_any_value(4, step * columns, offset, device)[:, ::step]
    mask[0, 7:9], mask[1], mask[2], mask[2, -1] = 1, 0, 1, 0
    kept = torch.tensor([columns, columns - 3, columns, 4100], device=device) if lengths else None
    x = torch.randn(4, columns, device=device).to(dtype)
    x[1, 5] = torch.nan
    x[3, 4200] = torch.nan
    mask[3, 4200] = 1

    out = forward.masked_softmax(x, mask, kept)

    plan = forward._plan(
        *(layout_key(x), layout_key(mask)),
        *(None if kept is None else layout_key(kept), 1.0, False),
    )
    assert plan is not None
    assert plan.variant == "split"
    if how is not None:
        assert plan.arguments["HOW"] == how.value
    else:
        assert plan.arguments["HOW"] in (ALIGNED.value, WORDS.value)
    assert_right(forward.OP, {"x": x, "mask": mask, "lengths": kept}, {}, out)
    assert not out[mask.bool()].any()
    assert out[1].isnan().any()
    assert not out[3].isnan().any()


@pytest.mark.parametrize(("rows", "taken"), [(200, "split"), (201, "long")])
def test_many_rows_with_a_mask_and_a_limit_are_read_twice(rows: int, taken: str) -> None:
    keys = at(0, (rows, 50_000), torch.bfloat16), at(0, (rows, 50_000), torch.bool)

    launch = forward._plan(*keys, at(0, (rows,), torch.int64), 1.0, False)

    assert launch is not None
    assert launch.variant == taken


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "taken"),
    [
        (200, 8192, torch.bfloat16, "tile"),
        (201, 8192, torch.bfloat16, "split"),
        (3, 16_384, torch.float32, "tile"),
        (3, 16_392, torch.bfloat16, "split"),
    ],
)
def test_few_rows_of_the_backward_are_held_if_they_can_be(
    rows: int, columns: int, dtype: torch.dtype, taken: str, device: str
) -> None:
    plan = backward._plan(at(0, (rows, columns), dtype), at(0, (rows, columns), dtype), 1.0)

    assert plan is not None
    assert plan.variant == taken
    if rows == 3:
        y = torch.softmax(torch.randn(rows, columns, device=device), -1).to(dtype)
        g = torch.randn(rows, columns, device=device).to(dtype)
        grad = backward.masked_softmax_backward(g, y)
        assert_right(backward.OP, {"grad_output": g, "output": y}, {}, grad)


@pytest.mark.parametrize(("rows", "taken"), [(1, 1), (1023, 1), (1024, 2), (8192, 16), (10**6, 32)])
def test_a_tile_of_few_rows_leaves_rows_to_other_programs(rows: int, taken: int) -> None:
    keys = at(0, (rows, 32), torch.float16)

    for launch in (
        forward._plan(keys, None, None, 1.0, False),
        backward._plan(keys, keys, 1.0),
    ):
        assert launch is not None
        most = 32 if launch.kernel.fn.__name__ == "masked_softmax_kernel" else 16
        assert launch.arguments["ROWS"] == min(taken, most)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("columns", [3, 5, 9, 17])
@pytest.mark.parametrize("counts", ["mask", "mask and lengths", "mask and causal"])
@pytest.mark.usefixtures("many_rows")
def test_masks_of_short_rows_are_read_as_the_rows_are(
    dtype: torch.dtype, columns: int, counts: str, device: str
) -> None:
    shape = (2, 72, columns)
    x = torch.randn(shape, device=device).to(dtype)
    mask = torch.rand(shape, device=device) < 0.4
    mask[0, 3], mask[1, -1], mask[0, 0] = True, True, False
    x[0, 0, 1] = torch.nan
    lengths = torch.randint(0, columns + 1, (2, 72), device=device)
    kept = lengths if "lengths" in counts else None
    causal = "causal" in counts

    out = forward.masked_softmax(x, mask, kept, causal=causal)

    plan = forward._plan(
        *(layout_key(x), layout_key(mask), None if kept is None else layout_key(kept)),
        *(1.0, causal),
    )
    assert plan is not None
    wide = columns > constants.SHORT_MASKED_COLUMNS[dtype.itemsize] and counts == "mask"
    assert plan.variant == ("tile" if wide else "short")
    given = {"x": x, "mask": mask, "lengths": kept}
    assert_right(forward.OP, given, {"causal": causal}, out)
    assert not out[mask].any()


@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("apart", [5, 6])
@pytest.mark.usefixtures("many_rows")
def test_masks_that_lie_otherwise_are_read_by_tiles(offset: int, apart: int, device: str) -> None:
    x = torch.randn(70, 5, device=device, dtype=torch.float16)
    stored = torch.rand(70 * apart + offset, device=device) < 0.4
    mask = stored[offset:].view(70, apart)[:, :5]

    out = forward.masked_softmax(x, mask)

    plan = forward._plan(layout_key(x), layout_key(mask), None, 1.0, False)
    assert plan is not None
    assert plan.variant == ("short" if apart == 5 and offset % 8 == 0 else "tile")
    assert_right(forward.OP, {"x": x, "mask": mask}, {}, out)


@pytest.mark.parametrize(("rows", "taken"), [(32_767, "tile"), (32_768, "short")])
def test_few_short_rows_are_tiles(rows: int, taken: str) -> None:
    launch = forward._plan(at(0, (rows, 5), torch.float16), None, None, 1.0, False)

    assert launch is not None
    assert launch.variant == taken
