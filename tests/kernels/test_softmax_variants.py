"""Which variant takes which rows of softmax and its backward, and that its results are right."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from tests.kernels.layouts import at, masks_of_any_value
from tests.kernels.suite import assert_right
from warpcall_kernels import masked_softmax as forward
from warpcall_kernels import masked_softmax_backward as backward
from warpcall_kernels._softmax.mask import BYTES, WORDS
from warpcall_kernels._softmax.rows import Variant
from warpcall_kernels.op.launch import Launch, layout_key

pytestmark = pytest.mark.usefixtures("many_rows")


def variant(launch: Launch | None) -> str:
    """The variant of a launch, and whether it reads the unaligned ends of rows apart."""
    assert launch is not None
    return f"{launch.variant}, skewed" if launch.arguments.get("SKEWED") else launch.variant


@pytest.mark.parametrize(
    ("columns", "dtype", "taken"),
    [
        (17, torch.bfloat16, "short"),
        (31, torch.bfloat16, "short"),
        (32, torch.bfloat16, "tile"),
        (33, torch.bfloat16, "tile"),
        (33, torch.float32, "tile, skewed"),
        (63, torch.float16, "tile"),
        (66, torch.float16, "tile, skewed"),
        (68, torch.float16, "tile"),
        (65, torch.float64, "tile"),
        (8191, torch.float32, "tile, skewed"),
        (8194, torch.float64, "long"),
        (10_007, torch.float32, "split, skewed"),
        (16_384, torch.float32, "tile"),
        (16_388, torch.float32, "split"),
        (16_401, torch.float32, "split, skewed"),
        (16_387, torch.bfloat16, "tile, skewed"),
        (16_393, torch.bfloat16, "split, skewed"),
        (16_400, torch.bfloat16, "split"),
        (32_768, torch.float16, "split"),
        (32_772, torch.float16, "split, skewed"),
        (16_386, torch.float32, "split, skewed"),
        (65_553, torch.float16, "split, skewed"),
    ],
)
def test_rows_take_the_variant_that_is_fastest_for_their_length_and_where_they_begin(
    columns: int, dtype: torch.dtype, taken: str, device: str
) -> None:
    x = torch.randn(3, columns, dtype=dtype, device=device)
    mask = torch.rand(1, columns, device=device) < 0.3

    out = forward.masked_softmax(x, mask)

    plan = forward._plan(layout_key(x), layout_key(mask), None, 1.0, False)
    assert variant(plan) == taken
    assert_right(forward.OP, {"x": x, "mask": mask}, {}, out)


@pytest.mark.parametrize(
    ("columns", "dtype", "taken"),
    [
        (3, torch.float16, "short"),
        (3, torch.float32, "tile"),
        (5, torch.float32, "short"),
        (6, torch.float16, "tile"),
        (7, torch.float32, "short"),
        (9, torch.float32, "tile"),
        (9, torch.bfloat16, "short"),
        (17, torch.bfloat16, "short"),
        (3, torch.float64, "tile"),
        (31, torch.bfloat16, "short"),
        (33, torch.bfloat16, "tile, skewed"),
        (34, torch.bfloat16, "tile, skewed"),
        (36, torch.bfloat16, "tile"),
        (4096, torch.float32, "tile"),
        (4099, torch.float32, "tile, skewed"),
        (4100, torch.float32, "split"),
        (4101, torch.float32, "split, skewed"),
        (16_384, torch.float32, "split"),
        (8192, torch.float64, "tile"),
        (8194, torch.float64, "long"),
        (2048, torch.bfloat16, "tile"),
        (2055, torch.bfloat16, "tile, skewed"),
        (2056, torch.float16, "split"),
        (2057, torch.bfloat16, "split, skewed"),
        (4103, torch.float16, "split, skewed"),
        (4104, torch.float16, "split"),
        (32_792, torch.bfloat16, "split"),
    ],
)
def test_rows_of_the_backward_take_the_variant_that_is_fastest_for_them(
    columns: int, dtype: torch.dtype, taken: str, device: str
) -> None:
    y = torch.softmax(torch.randn(3, columns, device=device), -1).to(dtype)
    g = torch.randn(3, columns, dtype=dtype, device=device)

    grad = backward.masked_softmax_backward(g, y)

    assert variant(backward._plan(layout_key(g), layout_key(y), 1.0)) == taken
    assert_right(backward.OP, {"grad_output": g, "output": y}, {}, grad)


@pytest.mark.parametrize("whose", ["x", "g", "y"])
@pytest.mark.parametrize("columns", [5, 17])
def test_short_rows_are_found_where_each_operand_has_them(
    columns: int, whose: str, device: str
) -> None:
    stored = torch.randn(6, 16, columns, device=device)
    apart, tight = stored[::2], torch.randn(3, 16, columns, device=device)

    if whose == "x":
        out = forward.masked_softmax(apart)
        plan = forward._plan(layout_key(apart), None, None, 1.0, False)
        assert_right(forward.OP, {"x": apart}, {}, out)
    else:
        g, y = (apart, tight) if whose == "g" else (tight, apart)
        out = backward.masked_softmax_backward(g, y)
        plan = backward._plan(layout_key(g), layout_key(y), 1.0)
        assert_right(backward.OP, {"grad_output": g, "output": y}, {}, out)

    assert variant(plan) == ("short" if whose == "x" or columns == 5 else "tile, skewed")


@pytest.mark.parametrize(
    ("columns", "dtype", "step"),
    [
        (65_540, torch.bfloat16, (8192, 16)),
        (65_538, torch.float32, (16_384, 32)),
        (8193, torch.float64, (4096, 8)),
    ],
)
def test_rows_that_are_read_by_less_than_16_bytes_are_read_in_steps(
    columns: int, dtype: torch.dtype, step: tuple[int, int]
) -> None:
    rows = at(dtype.itemsize, (3, columns), dtype)

    plan = forward._plan(rows, None, None, 1.0, False)

    assert plan is not None
    assert plan.variant == Variant.LONG
    assert (plan.arguments["BLOCK"], plan.arguments["num_warps"]) == step


@pytest.mark.parametrize(
    ("columns", "dtype", "step"),
    [
        (50_021, torch.bfloat16, (16_384, 16)),
        (65_536, torch.bfloat16, (32_768, 32)),
        (100_003, torch.float32, (16_384, 32)),
    ],
)
def test_long_rows_of_the_backward_are_read_in_longer_steps_if_they_are_longer(
    columns: int, dtype: torch.dtype, step: tuple[int, int]
) -> None:
    rows = at(dtype.itemsize, (3, columns), dtype)

    plan = backward._plan(rows, rows, 1.0)

    assert plan is not None
    assert plan.variant == Variant.LONG
    assert (plan.arguments["BLOCK"], plan.arguments["num_warps"]) == step


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("columns", "dtype", "skewed"),
    [
        (10_007, torch.float32, True),
        (16_388, torch.float32, False),
        (16_400, torch.float16, False),
        (16_407, torch.bfloat16, True),
        (50_021, torch.float16, True),
    ],
)
@pytest.mark.parametrize(("offset", "how"), [(0, WORDS), (4, WORDS), (1, BYTES)])
@pytest.mark.parametrize("lengths", [False, True])
def test_masks_of_skewed_rows_are_read_as_words_and_not_beyond_their_end(
    columns: int,
    dtype: torch.dtype,
    skewed: bool,
    offset: int,
    how: tl.constexpr,
    lengths: bool,
    device: str,
) -> None:
    mask = masks_of_any_value(5, columns, offset, device)

    plan = check(columns, dtype, mask, lengths, device)

    taken = "long" if lengths else "split"
    assert variant(plan) == (f"{taken}, skewed" if skewed else taken)
    assert plan.arguments["HOW"] == how.value


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [16_392, 32_761, 32_768])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
def test_rows_are_held_or_split_by_what_counts_of_them(
    columns: int, dtype: torch.dtype, masked: bool, lengths: bool, device: str
) -> None:
    mask = masks_of_any_value(5, columns, 0, device).contiguous() if masked else None

    plan = check(columns, dtype, mask, lengths, device)

    taken = "tile" if masked and lengths else "split"
    assert variant(plan) == (f"{taken}, skewed" if columns % 8 else taken)


@pytest.mark.parametrize(
    ("columns", "dtype", "masked", "fewer"),
    [
        (4099, torch.bfloat16, False, True),
        (701, torch.float16, False, True),
        (4099, torch.bfloat16, True, False),
        (4096, torch.bfloat16, False, False),
        (4099, torch.float32, False, False),
    ],
)
def test_skewed_rows_with_lengths_take_fewer_registers(
    columns: int, dtype: torch.dtype, masked: bool, fewer: bool
) -> None:
    mask = at(0, (1, columns), torch.bool) if masked else None

    plan = forward._plan(at(0, (9, columns), dtype), mask, at(0, (9,), torch.int64), 1.0, False)

    assert plan is not None
    assert plan.variant == Variant.TILE
    assert ("maxnreg" in plan.arguments) == fewer


def check(
    columns: int, dtype: torch.dtype, mask: torch.Tensor | None, lengths: bool, device: str
) -> Launch:
    """Compare five rows with the reference and return the launch.

    Some have a NaN that counts or one that is masked, and in some no position counts.
    """
    x = torch.randn(5, columns, dtype=dtype, device=device)
    if mask is not None:
        mask[1], mask[2], mask[2, -1], mask[3, 0] = 1, 1, 0, 0
    kept = torch.tensor([columns, 0, columns, 3, columns - 5], device=device) if lengths else None
    x[3, 0] = torch.nan
    expected = forward.masked_softmax_reference(x.double(), mask, kept)
    x[4].masked_fill_(expected[4] == 0, torch.nan)

    out = forward.masked_softmax(x, mask, kept)

    plan = forward._plan(
        *(layout_key(x), None if mask is None else layout_key(mask)),
        *(None if kept is None else layout_key(kept), 1.0, False),
    )
    assert plan is not None
    assert_right(forward.OP, {"x": x, "mask": mask, "lengths": kept}, {}, out)
    assert not out[expected == 0].any()
    return plan
