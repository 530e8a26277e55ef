"""Traps of masked softmax: rows without positions, NaN under a mask, odd lengths, rows far apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.layouts import at
from tests.kernels.suite import assert_right
from warpcall_kernels import InvalidInput
from warpcall_kernels import masked_softmax as forward
from warpcall_kernels._softmax.rows import Rows, Strides, Tile, Variant, is_wide
from warpcall_kernels.masked_softmax import (
    OP,
    masked_softmax,
    masked_softmax_reference,
)

quiet = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=1e-6)


def test_a_fully_masked_row_is_zeros_with_zero_gradient(device: str) -> None:
    x = torch.randn(3, 8, dtype=torch.float64, device=device, requires_grad=True)
    mask = torch.zeros(3, 8, dtype=torch.bool, device=device)
    mask[1] = True

    out = masked_softmax(x, mask)
    torch.autograd.backward(out.square().sum())

    assert x.grad is not None
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert torch.equal(x.grad[1], torch.zeros_like(x.grad[1]))
    assert not x.grad.isnan().any()
    assert x.grad[0].any()


@pytest.mark.parametrize("columns", [8, 1000, 20_000, 40_000])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_lies_under_a_mask_has_no_influence(columns: int, bad: float, device: str) -> None:
    x = torch.randn(2, columns, device=device)
    mask = torch.rand(2, columns, device=device) < 0.4
    expected = masked_softmax(x, mask)

    out = masked_softmax(x.masked_fill(mask, bad), mask)

    assert torch.equal(out, expected)


@pytest.mark.parametrize("columns", [5, 1000, 20_000])
def test_nan_and_inf_that_count_spoil_their_row_and_no_other(columns: int, device: str) -> None:
    x = torch.randn(4, columns, device=device)
    x[0, 3], x[2, 1] = float("nan"), float("inf")
    lengths = torch.tensor([columns, columns, 4, 2], device=device)

    out = masked_softmax(x, lengths=lengths)

    expected = masked_softmax_reference(x, lengths=lengths)
    assert torch.equal(out.isnan(), expected.isnan())
    assert out[0].isnan().all()
    assert not out[2, 4:].any()
    assert not out[1].isnan().any()


@pytest.mark.parametrize("columns", [1, 1000, 4097, 32_768])
@pytest.mark.parametrize("queries", [1, 3])
def test_rows_of_any_length_in_every_mask_form(columns: int, queries: int, device: str) -> None:
    x = torch.randn(2, queries, columns, device=device)
    key = torch.rand(2, 1, columns, device=device) < 0.3
    lengths = torch.randint(0, columns + 1, (2, 1), device=device)

    forms: list[dict[str, Any]] = [
        {},
        {"mask": key},
        {"mask": (torch.rand_like(x) < 0.3).to(torch.uint8)},
        {"lengths": lengths},
        {"causal": True},
        {"mask": key, "lengths": lengths, "causal": True, "scale": 0.3},
    ]

    for form in forms:
        assert_close(masked_softmax(x, **form), masked_softmax_reference(x.double(), **form))


def test_lengths_below_0_and_above_the_row_are_clamped(device: str) -> None:
    x = torch.randn(4, 6, device=device)
    given_lengths = torch.tensor([-5, 0, 6, 2**31 - 1], dtype=torch.int32, device=device)
    clamped = torch.tensor([0, 0, 6, 6], device=device)

    assert torch.equal(masked_softmax(x, lengths=given_lengths), masked_softmax(x, lengths=clamped))


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 7), (7, 3), (1, 5), (5, 1)])
def test_causal_counts_from_the_last_query(queries: int, keys: int, device: str) -> None:
    x = torch.zeros(queries, keys, device=device)

    out = masked_softmax(x, causal=True)

    allowed = torch.ones(queries, keys, device=device).tril(keys - queries)
    assert_close(out, allowed / allowed.sum(-1, keepdim=True).clamp(min=1))


@pytest.mark.parametrize("scale", [-2.0, 0.0, 1e-30, 1e30, -1e30])
def test_any_finite_scale(scale: float, device: str) -> None:
    x = torch.tensor([[1.0, -1.0, 0.5, 3.0, 2.0]], device=device)

    out = masked_softmax(x, lengths=torch.tensor([4], device=device), scale=scale)

    assert_close(out[0, :4], torch.softmax(x[0, :4].double() * scale, -1))
    assert out[0, 4] == 0


@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    columns=st.integers(1, 70),
    ones=st.lists(st.booleans(), min_size=5, max_size=5),
    missing=st.integers(0, 4),
    turned=st.booleans(),
    full=st.booleans(),
)
@quiet
def test_probabilities_sum_to_one_and_zeros_are_exact(
    rows: list[int],
    columns: int,
    ones: list[bool],
    missing: int,
    turned: bool,
    full: bool,
    device: str,
) -> None:
    generator = torch.Generator().manual_seed(columns)
    shape = (*rows, columns)
    x = torch.randn(shape, generator=generator).to(device)
    if turned:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    sizes = [1 if one and not full else n for one, n in zip(ones, shape, strict=False)][missing:]
    mask = (torch.rand(sizes, generator=generator) < 0.4).to(device)

    out = masked_softmax(x, mask)

    everywhere = mask.expand(shape)
    totals = out.sum(-1)
    assert not out[everywhere].any()
    assert_close(totals, (~everywhere.all(-1)).to(totals.dtype))
    assert_close(out, masked_softmax_reference(x.double(), mask))


@given(
    batch=st.integers(1, 3),
    queries=st.integers(1, 6),
    columns=st.sampled_from([1, 2, 7, 16, 33, 100, 1025]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    shared=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    by_batch=st.booleans(),
    causal=st.booleans(),
    scale=st.sampled_from([1.0, 0.125, -2.0, 0.0]),
    apart=st.integers(1, 3),
)
@quiet
def test_masks_lengths_and_causality_combine(
    batch: int,
    queries: int,
    columns: int,
    dtype: torch.dtype,
    shared: tuple[bool, bool, bool],
    by_batch: bool,
    causal: bool,
    scale: float,
    apart: int,
    device: str,
) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(batch, queries, columns, apart, generator=generator).to(device, dtype)[..., 0]
    sizes = [1 if one else n for one, n in zip(shared, x.shape, strict=True)]
    mask = (torch.rand(sizes, generator=generator) < 0.4).to(device)
    rows = (batch, 1 if by_batch else queries)
    lengths = torch.randint(-1, columns + 2, rows, generator=generator).to(device)
    form: dict[str, Any] = {"causal": causal, "scale": scale}

    out = masked_softmax(x, mask, lengths, **form)

    assert_right(OP, {"x": x, "mask": mask, "lengths": lengths}, form, out)
    assert not out[masked_softmax_reference(x.double(), mask, lengths, **form) == 0].any()


@pytest.mark.parametrize(
    ("columns", "dtype", "rows", "block", "warps"),
    [
        (64, torch.float16, 16, 64, 1),
        (2048, torch.float16, 1, 2048, 2),
        (8192, torch.float32, 1, 8192, 16),
        (16_384, torch.float32, 1, 16_384, 16),
        (16_384, torch.float16, 1, 16_384, 16),
        (524_300, torch.float16, None, 8192, 16),
        (524_292, torch.float32, None, 16_384, 32),
        (8193, torch.float64, None, 4096, 8),
    ],
)
@pytest.mark.usefixtures("many_rows")
def test_rows_share_a_program_or_take_one_or_are_read_twice(
    columns: int, dtype: torch.dtype, rows: int | None, block: int, warps: int
) -> None:
    launch = forward._plan(at(0, (500, columns), dtype), None, None, 1.0, False)

    assert launch is not None
    assert launch.variant == (Variant.LONG if rows is None else Variant.TILE)
    assert launch.arguments.get("ROWS") == rows
    assert (launch.arguments["BLOCK"], launch.arguments["num_warps"]) == (block, warps)


@pytest.mark.parametrize(
    ("shape", "mask", "rows", "shares"),
    [
        ((1, 4, 9000, 8), (9000, 8), 128, False),  # heads share too little for a tile
        ((1, 64, 900, 8), (900, 8), 64, True),
        ((40, 6, 49, 49), (40, 1, 49, 49), 16, False),
        ((40, 16, 49, 49), (40, 1, 49, 49), 16, True),
        ((8, 12, 10, 16), (8, 1, 10, 16), 16, True),  # no dim fills a tile
        ((8, 12, 192, 192), (8, 1, 1, 192), 4, True),
    ],
)
@pytest.mark.usefixtures("many_rows")
def test_rows_share_a_mask_where_that_fills_tiles(
    shape: tuple[int, ...], mask: tuple[int, ...], rows: int, shares: bool
) -> None:
    keys = at(0, shape, torch.float16), at(0, mask, torch.bool)

    launch = forward._plan(*keys, None, 1.0, False)

    assert launch is not None
    assert (launch.arguments["ROWS"], launch.arguments["SHARED"]) == (rows, shares)


@pytest.mark.parametrize("outer", [1, 65_535, 65_536, 200_000, 65_535**2])
def test_a_grid_has_few_idle_programs_within_the_limits_of_cuda(outer: int) -> None:
    tiles, y, z = Rows(count=9, inner=1, outer=outer, strides=()).grid(4)

    assert tiles == 3
    assert max(y, z) <= 65_535
    assert outer <= y * z < outer + z


@pytest.mark.parametrize(
    ("row_step", "columns", "column_step", "wide"),
    [
        (2048, 2048, 1, False),
        (2**31 - 2048, 2048, 1, True),
        (0, 2**28 - 4096, 8, False),  # strided rows: the offset overflows, not the position
        (0, 2**28, 8, True),
        (0, 2**31 - 8192, 1, False),
        (0, 2**31 - 4095, 1, True),  # a block reaches past the end of the row
        (0, 2**31 - 4095, 0, True),  # an expanded row: the positions themselves overflow
    ],
)
def test_offsets_are_64_bit_from_where_32_do_not_reach(
    row_step: int, columns: int, column_step: int, wide: bool
) -> None:
    rows = Rows(count=1, inner=1, outer=1, strides=(Strides(0, 0, row_step),))
    tile = Tile(rows=1, block=min(4096, columns), warps=8)

    assert is_wide(rows, tile, columns, (column_step, 0)) == wide


@pytest.mark.parametrize(("step", "wide"), [(2**23, False), (2**24, True)])
@pytest.mark.usefixtures("many_rows")
def test_offsets_of_lengths_are_64_bit_where_all_rows_of_a_program_take_that(
    step: int, wide: bool
) -> None:
    """A program of short rows takes 240 of them."""
    lengths = (200,), (step,), torch.int64, 0

    launch = forward._plan(at(0, (200, 17), torch.bfloat16), None, lengths, 1.0, False)

    assert launch is not None
    assert launch.variant == Variant.SHORT
    assert launch.arguments["TAKEN"] == 240
    assert launch.arguments["WIDE"] == wide


def far_apart(columns: int, dtype: str, device: str) -> Tensor:
    """Three rows of zeros, 2^30 elements apart; on the CPU the gaps between them take no memory."""
    far = 2**30
    zeros = torch.from_numpy(np.zeros(2 * far + columns, dtype))
    return zeros.to(device).as_strided((3, columns), (far, 1))


@pytest.mark.parametrize("columns", [8, 40_000])
def test_rows_2_to_the_30_apart_are_found(columns: int, device: str) -> None:
    x = far_apart(columns, "float16", device)
    x.copy_(torch.randn(3, columns))
    mask = far_apart(columns, "uint8", device)
    mask[:, ::3] = 1
    lengths = torch.tensor([columns, 5, columns - 1], device=device)
    form: dict[str, Any] = {"mask": mask, "lengths": lengths}

    out = masked_softmax(x, **form)

    assert_right(OP, {"x": x, **form}, {}, out)


@pytest.mark.parametrize("columns", [6, 40_000])
def test_positions_that_are_all_minus_infinity_are_nan_as_in_torch(
    columns: int, device: str
) -> None:
    x = torch.full((3, columns), -torch.inf, device=device)
    x[2, 1] = 0.5
    mask = torch.zeros(3, columns, dtype=torch.bool, device=device)
    mask[:, 2], mask[1] = True, True

    out = masked_softmax(x, mask)

    assert out[0].isnan().equal(~mask[0])
    assert not out[0, 2]
    assert not out[1].any()
    assert out[2].nonzero().tolist() == [[1]]
    assert out[2, 1] == 1


X = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: masked_softmax(torch.zeros(())), "x"),
        (lambda: masked_softmax(torch.zeros(3, dtype=torch.int32)), "x"),
        (lambda: masked_softmax(X, torch.zeros(3, 3, dtype=torch.bool)), "mask"),
        (lambda: masked_softmax(X, torch.zeros(1, 2, 3, 4, dtype=torch.bool)), "mask"),
        (lambda: masked_softmax(X, torch.zeros(4)), "mask"),
        (lambda: masked_softmax(X, lengths=torch.zeros(4, dtype=torch.int64)), "lengths"),
        (lambda: masked_softmax(X, lengths=torch.zeros(3)), "lengths"),
        (lambda: masked_softmax(X, scale=float("inf")), "scale"),
        (lambda: masked_softmax(torch.zeros(4), causal=True), "causal"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, argument: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        call()

    assert refused.value.argument == argument
