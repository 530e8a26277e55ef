"""The search variant of isin: each program makes a bitmap of near test elements, else a search tree."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tests.kernels.isin.forced import by_comparison, by_variant, planned
from warpcall_kernels._isin import few_plan as module
from warpcall_kernels._isin.rule import EVERY, Variant
from warpcall_kernels.op.launch import Launch

TYPES = [torch.int32, torch.int64, torch.float32, torch.float64]
WHOLE = [torch.int32, torch.int64]
NAN = float("nan")


def planned_search(x: Tensor, test: Tensor) -> Launch:
    plan = planned(Variant.SEARCH, x, test)
    assert isinstance(plan, Launch)
    return plan


by_search = functools.partial(by_variant, Variant.SEARCH)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 31, 129, 600])
@pytest.mark.parametrize("step", [3, 400_009], ids=["dense", "sparse"])
def test_any_number_of_test_elements_in_any_order(
    step: int, n: int, dtype: torch.dtype, device: str
) -> None:
    order = torch.randperm(n, device=device)
    test = (torch.arange(-(n // 2), n - n // 2, device=device) * step)[order].to(dtype)
    x = torch.cat([test, test + 1, test - 1, -test, test + 1024, test - 1024])[: 2 * n + 1500]

    assert torch.equal(by_search(x, test), by_comparison(x, test))
    assert torch.equal(by_search(x, test, invert=True), ~by_comparison(x, test))


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("n", [2, 40, 513])
@pytest.mark.parametrize("beyond", [-1, 0], ids=["fits", "does not fit"])
@pytest.mark.parametrize("end", ["least", "middle", "greatest"])
def test_the_bitmap_may_lie_anywhere_and_be_full(
    end: str, beyond: int, n: int, dtype: torch.dtype, device: str
) -> None:
    info = torch.iinfo(dtype)
    span = 32 * planned_search(*(torch.zeros(n, dtype=dtype),) * 2).arguments["WORDS"] + beyond
    low = {"least": info.min, "middle": -7, "greatest": info.max - span}[end]
    apart = torch.randint(0, span + 1, (n,), device=device).to(dtype)
    apart[0], apart[-1] = span, 0
    test = apart + low
    near = torch.arange(-40, span + 40, device=device).to(dtype) + low  # it may wrap around

    assert torch.equal(by_search(near, test), by_comparison(near, test))


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("first", [0, -1])
def test_the_least_and_the_greatest_integer_are_not_neighbours(
    first: int, dtype: torch.dtype, device: str
) -> None:
    info = torch.iinfo(dtype)
    ends = torch.tensor([info.min, info.max, info.min + 3], dtype=dtype, device=device)
    test = ends.roll(first)
    x = torch.cat([ends, ends + 1, ends - 1, torch.zeros_like(ends)])

    assert torch.equal(by_search(x, test), by_comparison(x, test))


@pytest.mark.parametrize("apart", [1 << 30, 1 << 31, 1 << 32, 1 << 33, 1 << 62])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_that_differ_in_high_bits_only_differ(sign: int, apart: int, device: str) -> None:
    test = torch.tensor([5, 7, 5 + sign * apart], device=device)
    x = torch.cat([test, test + apart, test - apart, test + 2])

    assert torch.equal(by_search(x, test), by_comparison(x, test))
    assert torch.equal(by_search(x, test[:2]), by_comparison(x, test[:2]))


@pytest.mark.parametrize("dtype", TYPES)
def test_equal_test_elements(dtype: torch.dtype, device: str) -> None:
    x = torch.arange(-6, 6, device=device).to(dtype)
    for n in (1, 2, 33):
        test = torch.full((n,), -5, dtype=dtype, device=device)
        assert torch.equal(by_search(x, test), by_comparison(x, test))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [4, 5, 100])
def test_nan_is_in_no_set_and_minus_zero_is_zero(n: int, dtype: torch.dtype, device: str) -> None:
    test = torch.tensor([NAN, -0.0, float("-inf"), 1.5], dtype=dtype, device=device)
    x = torch.cat([test, -test, test + 1])
    test = test.repeat(n)[:n]

    assert torch.equal(by_search(x, test), by_comparison(x, test))
    assert torch.equal(by_search(x, test, invert=True), ~by_comparison(x, test))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("step", [3, 400_009], ids=["dense", "sparse"])
@pytest.mark.parametrize("m", [3 * 1024, 4 * 1024 - 5, 5 * 1024 + 1])
def test_a_program_looks_up_several_blocks(
    m: int, step: int, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MULTIPROCESSORS", 2)
    shapes = ((0, EVERY, 1024, 4, 4),)  # 8 warps in all
    monkeypatch.setattr(module, "SEARCHING", {4: shapes, 8: shapes})
    test = (torch.arange(20, device=device) * step).to(dtype)
    x = torch.arange(m, device=device).to(dtype) * (step // 3)

    assert planned_search(x, test).arguments["BLOCKS"] > 1
    assert torch.equal(by_search(x, test), by_comparison(x, test))


@pytest.mark.parametrize("step", [1, 100], ids=["dense", "sparse"])
def test_dtypes_may_differ(step: int, device: str) -> None:
    test = torch.arange(0, 50 * step, step, device=device)
    x = torch.tensor([0, 1, 49, 50, 100, -1, -128], dtype=torch.int8, device=device)
    truths = torch.tensor([True, False], device=device)

    for elements in (x, truths, x.int(), x.to(torch.uint8)):
        assert torch.equal(by_search(elements, test), by_comparison(elements, test))
    assert torch.equal(by_search(test.int(), x.int()), by_comparison(test.int(), x.int()))
