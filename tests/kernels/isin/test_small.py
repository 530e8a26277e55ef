"""The small variant of isin: sets that are a bitmap if values are dense, else a search tree."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tests.kernels.isin.forced import by_comparison, by_variant, planned
from warpcall_kernels._isin.rule import Variant
from warpcall_kernels._isin.table import SetPlan
from warpcall_kernels.op.launch import overlaps_launches

TYPES = [torch.int32, torch.int64, torch.float32, torch.float64]
NAN = float("nan")


def planned_small(x: Tensor, test: Tensor) -> SetPlan:
    plan = planned(Variant.SMALL, x, test)
    assert isinstance(plan, SetPlan)
    return plan


by_small = functools.partial(by_variant, Variant.SMALL)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 31, 129, 2047])
@pytest.mark.parametrize("step", [3, 400_009], ids=["dense", "sparse"])
def test_any_number_of_test_elements_in_any_order(
    step: int, n: int, dtype: torch.dtype, device: str
) -> None:
    order = torch.randperm(n, device=device)
    test = (torch.arange(-(n // 2), n - n // 2, device=device) * step)[order].to(dtype)
    x = torch.cat([test, test + 1, test - 1, -test])[: 2 * n + 1500]

    assert torch.equal(by_small(x, test), by_comparison(x, test))
    assert torch.equal(by_small(x, test, invert=True), ~by_comparison(x, test))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("apart", [1, 1 << 30])
def test_equal_test_elements_keep_the_places_of_others(
    apart: int, dtype: torch.dtype, device: str
) -> None:
    test = torch.tensor([-apart, 0, apart], dtype=dtype, device=device)
    x = torch.cat([test, test + 1, test * 2])
    for counts in ([700, 1, 1], [1, 700, 1], [1, 1, 700], [300, 300, 300]):
        repeated = test.repeat_interleave(torch.tensor(counts, device=device))
        for shuffled in (repeated, repeated[torch.randperm(len(repeated), device=device)]):
            assert torch.equal(by_small(x, shuffled), by_comparison(x, test))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [4, 5, 600])
def test_nan_is_in_no_set_and_minus_zero_is_zero(n: int, dtype: torch.dtype, device: str) -> None:
    inf = float("inf")
    x = torch.tensor([NAN, -0.0, 0.0, 1.0, inf, -inf, -NAN], dtype=dtype, device=device)
    for members in ([NAN, 0.0, inf], [-0.0, -NAN, NAN], [NAN]):
        test = torch.tensor(members, dtype=dtype, device=device).repeat(n)[:n]

        assert torch.equal(by_small(x, test), by_comparison(x, test))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("below", [-1, 0, 1, 2])
def test_a_bitmap_of_the_widest_range_and_another_set_of_a_wider_one(
    below: int, dtype: torch.dtype, device: str
) -> None:
    n, low = 100, torch.iinfo(dtype).min
    plan = planned_small(torch.empty(1, dtype=dtype), torch.empty(n, dtype=dtype))
    span = plan.launches[0][0].arguments["slots"] * 8 * dtype.itemsize - below
    test = torch.full((n,), low, dtype=dtype, device=device)
    test[17] += span
    x = torch.tensor([0, 1, span - 1, span, span + 1, 2 * span], device=device).to(dtype) + low
    x = torch.cat([x, -x, x - 1])

    assert torch.equal(by_small(x, test), by_comparison(x, test))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.bool, torch.int64),
        (torch.uint8, torch.int32),
        (torch.int64, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float64),
        (torch.int32, torch.bool),
    ],
)
def test_both_are_promoted(one: torch.dtype, other: torch.dtype, device: str) -> None:
    drawn = torch.randint(-300, 300, (900,), device=device)
    x, test = drawn[:500].to(one), drawn[300:].to(other)

    assert torch.equal(by_small(x, test), by_comparison(x, test))
    assert torch.equal(by_small(test, x), by_comparison(test, x))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_tensors_that_begin_anywhere(offset: int, dtype: torch.dtype, device: str) -> None:
    stored = torch.arange(3000, device=device).mul(977).to(dtype)
    x, test = stored[offset:1500], stored[offset + 700 : 2001]

    assert torch.equal(by_small(x, test), by_comparison(x, test))


def test_calls_in_a_row_wait_for_what_they_read_and_overwrite(device: str) -> None:
    m, n, times = (2000, 500, 1) if device == "cpu" else (1 << 20, 1 << 11, 20)
    draws = [
        (
            torch.randint(-high, high, (m,), device=device),
            torch.randint(-high, high, (n,)).to(device),
        )
        for high in (4 * n, 1 << 40, n, 1 << 62)
    ]
    expected = [torch.isin(x, test) for x, test in draws]

    got = [(i, by_small(*draws[i])) for i in (0, 1, 2, 3) * times]

    for i, out in got:
        assert torch.equal(out, expected[i])


@pytest.mark.parametrize("compiles_for", [80, 90, 100], indirect=True)
def test_the_lookup_begins_while_the_set_is_built_from_capability_90_on(compiles_for: int) -> None:
    build, probe = (
        step for step, _ in planned_small(torch.empty(1000), torch.empty(1000)).launches
    )

    overlaps = compiles_for >= 90
    assert overlaps_launches() == overlaps
    assert build.arguments["PDL"] == probe.arguments["PDL"] == overlaps
    assert ("launch_pdl" in probe.arguments) == overlaps
    assert "launch_pdl" not in build.arguments
