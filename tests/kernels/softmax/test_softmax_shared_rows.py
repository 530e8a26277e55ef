"""Long rows of softmax and of its gradient that several programs share, also if none may wait."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.layouts import at, masks_of_any_value
from tests.kernels.suite import assert_right
from warpcall_kernels import masked_softmax as forward
from warpcall_kernels import masked_softmax_backward as backward
from warpcall_kernels._softmax import backward_plan, constants, forward_plan
from warpcall_kernels._softmax.forward_rows import softmax_split_kernel
from warpcall_kernels._softmax.rows import Variant
from warpcall_kernels.op.launch import Layout, layout_key

pytestmark = pytest.mark.usefixtures("many_rows")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("columns", "dtype", "parts"),
    [
        (4096, torch.bfloat16, 1),
        (4104, torch.float16, 2),
        (4103, torch.bfloat16, 1),
        (12_301, torch.bfloat16, 4),
        (2048 * 3, torch.float32, 3),
        (2048 * 3 + 5, torch.float32, 4),
    ],
)
def test_rows_of_the_backward_are_shared_by_programs_that_need_not_wait(
    columns: int,
    dtype: torch.dtype,
    parts: int,
    waits: bool,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where each program makes the words of all parts, for it does not wait for others."""
    if not waits:
        monkeypatch.setattr(backward_plan, "tries", lambda: 0)
    y = torch.softmax(torch.randn(2, 3, columns, device=device), -1)
    y[0, 1, ::3] = 0  # as if these were masked
    y[1, 0] = 0
    y = y.to(dtype)
    g = torch.randn(2, 3, columns, device=device).to(dtype)
    g[0, 1, ::3] = torch.nan
    launch = backward_plan.plan(Layout(*layout_key(g)), Layout(*layout_key(y)), 2.0)
    assert launch is not None
    assert launch.variant == Variant.SPLIT
    assert launch.arguments["parts"] == parts

    for _ in range(2):  # the words of one call say nothing to the next one
        g = -g
        grad = torch.full_like(y, 7)
        words = [y.new_zeros(launch.words, dtype=torch.int64)] if parts > 1 else []
        launch(g, y, grad, *words)

        assert_right(backward.OP, {"grad_output": g, "output": y}, {"scale": 2.0}, grad)
        assert not grad[y == 0].any()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("columns", "dtype", "counts", "kernel", "parts"),
    [
        (1024 * 3, torch.bfloat16, "all", "softmax_split_kernel", 3),
        (1024 * 2, torch.float16, "all", "softmax_split_kernel", 2),
        (512 * 5, torch.float32, "all", "softmax_split_kernel", 5),
        (1024 * 2, torch.bfloat16, "mask", "masked_softmax_split_kernel", 2),
        (1024 * 2 + 13, torch.float16, "mask", "masked_softmax_split_kernel", 3),
        (512 * 2 + 9, torch.float32, "mask", "masked_softmax_split_kernel", 3),
        (1024 * 3 + 8, torch.bfloat16, "lengths", "masked_softmax_split_kernel", 4),
        (512 * 2 + 3, torch.float32, "causal", "masked_softmax_split_kernel", 2),
        (1024 * 2 + 3, torch.float16, "rows", "masked_softmax_split_kernel", 2),
    ],
)
def test_rows_are_shared_by_programs_that_need_not_wait(
    columns: int,
    dtype: torch.dtype,
    counts: str,
    kernel: str,
    parts: int,
    waits: bool,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where each program makes the words of all parts, for it does not wait for others."""
    if not waits:
        monkeypatch.setattr(forward_plan, "tries", lambda: 0)
    monkeypatch.setattr(constants, "SPLIT_FORWARD", {2: (1024, 4, None), 4: (512, 4, None)})
    monkeypatch.setattr(constants, "SPLIT_ROWS", {2: (1024, 4, None), 4: (512, 4, None)})
    monkeypatch.setattr(constants, "SPLIT_BYTES_FORWARD", {2: 2048, 4: 2048})
    monkeypatch.setattr(constants, "HELD_BYTES_MASKED", 2048)
    monkeypatch.setattr(constants, "SPLIT_PROGRAMS", {2: 0, 4: 0})
    monkeypatch.setattr(constants, "SPLIT_TAKE", 4)
    rows = (2, 7) if counts == "all" else (2, 3)  # a program takes 4 of them, or what is left
    x = torch.randn(*rows, columns, device=device).to(dtype)
    x[0, 1, 5], x[1, 0], x[1, 1, ::2] = torch.nan, -torch.inf, -torch.inf
    x[0, 0, : columns // 2] -= 1000  # the maxima of its parts differ by more than exponents reach
    x[0, 2, 0] = torch.inf
    mask = masks_of_any_value(6, columns, 0, device)[:3].contiguous() if counts == "mask" else None
    if mask is not None:
        mask[2], mask[1, 7] = 1, 1
    lengths = None
    if counts == "lengths":
        lengths = torch.tensor([[0, 1500, columns], [3, columns + 9, -2]], device=device)
    launch = forward._plan.__wrapped__(
        *(layout_key(x), None if mask is None else layout_key(mask)),
        *(None if lengths is None else layout_key(lengths), 0.5, counts == "causal"),
    )
    assert launch is not None
    assert launch.kernel.fn.__name__ == kernel
    assert launch.arguments["parts"] == parts
    expected = forward.masked_softmax_reference(x.double(), mask, lengths, 0.5, counts == "causal")

    out = torch.full_like(x, 7)
    words = x.new_zeros(launch.words, dtype=torch.int64)
    tensors = (x, out, words) if counts == "all" else (x, mask, lengths, out, words)
    launch(*tensors)

    params = {"scale": 0.5, "causal": counts == "causal"}
    assert_right(forward.OP, {"x": x, "mask": mask, "lengths": lengths}, params, out)
    assert not out[expected == 0].any()


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "taken", "several"),
    [
        (1023, 32_768, torch.bfloat16, "split", False),
        (1024, 32_768, torch.bfloat16, "split", True),
        (512, 65_536, torch.float16, "split", True),
        (511, 65_536, torch.float16, "split", False),
        (3, 65_536, torch.float16, "split", False),
        (1024, 65_528, torch.float16, "split", False),
        (1024, 34_816, torch.bfloat16, "split", True),
        (1024, 65_536, torch.float32, "split", True),
        (1023, 65_536, torch.float32, "split", False),
        (2048, 16_384, torch.float32, "tile", False),
        (4096, 524_288, torch.bfloat16, "split", True),
        (3, 524_288, torch.bfloat16, "split", False),
        (4096, 528_384, torch.bfloat16, "long", False),
    ],
)
def test_programs_take_the_same_part_of_several_rows_if_there_are_enough(
    rows: int, columns: int, dtype: torch.dtype, taken: str, several: bool
) -> None:
    plan = forward._plan(at(0, (rows, columns), dtype), None, None, 1.0, False)

    assert plan is not None
    assert plan.variant == taken
    assert (plan.kernel is softmax_split_kernel) == several


@pytest.mark.parametrize(
    ("columns", "dtype", "block", "warps"),
    [
        (131_072, torch.bfloat16, 2048, 1),
        (135_168, torch.bfloat16, 4096, 2),
        (131_072, torch.float32, 2048, 2),
        (135_168, torch.float32, 2048, 2),
    ],
)
def test_programs_that_share_whole_rows_have_larger_parts_of_longer_rows(
    columns: int, dtype: torch.dtype, block: int, warps: int
) -> None:
    """So that a program does not read more than 128 words of a row of two bytes a position."""
    plan = forward._plan(at(0, (2048, columns), dtype), None, None, 1.0, False)

    assert plan is not None
    assert plan.kernel is softmax_split_kernel
    assert (plan.arguments["BLOCK"], plan.arguments["num_warps"]) == (block, warps)
    assert plan.arguments["parts"] == columns // block


@pytest.mark.parametrize("scale", [0.0, -(2.0**65), 2.0**65])
def test_rows_whose_scale_is_not_folded_are_not_shared(scale: float) -> None:
    mask = at(0, (1, 50_021), torch.bool)

    plan = forward._plan(at(0, (3, 50_021), torch.bfloat16), mask, None, scale, False)

    assert plan is not None
    assert plan.variant == Variant.LONG
