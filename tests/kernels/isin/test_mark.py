"""isin of the fewest elements in many test elements, which are read once."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.suite import assert_right
from warpcall_kernels import isin
from warpcall_kernels._isin import few_plan, rule
from warpcall_kernels._isin.plan import plan
from warpcall_kernels._isin.table import SetPlan
from warpcall_kernels.op.launch import layout_key

MANY = rule.LEAST_MARKED


def variant(elements: torch.Tensor, tests: torch.Tensor) -> str:
    planned = plan(layout_key(elements), layout_key(tests), False)
    assert planned is not None
    return planned.launches[-1][0].variant if isinstance(planned, SetPlan) else planned.variant


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("dtype", "tests_dtype"),
    [
        (torch.int64, torch.int64),
        (torch.int32, torch.int32),
        (torch.int16, torch.int16),
        (torch.uint8, torch.uint8),
        (torch.bool, torch.bool),
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.int64, torch.float32),
        (torch.float16, torch.int32),
        (torch.int8, torch.uint8),
    ],
)
@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("invert", [False, True])
def test_elements_are_found_wherever_they_are(
    dtype: torch.dtype, tests_dtype: torch.dtype, count: int, invert: bool, device: str
) -> None:
    tests = torch.randint(0, 90, (MANY + 77,), device=device).to(tests_dtype)
    elements = torch.tensor([97, 5, 120, 89][:count], device=device).to(dtype)
    tests[-1] = 120

    out = isin.isin(elements, tests, invert=invert)

    assert variant(elements, tests) == "mark"
    assert_right(isin.OP, {"elements": elements, "test_elements": tests}, {"invert": invert}, out)


@pytest.mark.parametrize(
    ("dtype", "count", "many", "marked"),
    [
        (torch.int64, 32, MANY, True),
        (torch.int64, 33, MANY, False),
        (torch.int64, 9, 1 << 20, False),
        (torch.int64, 8, 1 << 20, True),
        (torch.int32, 32, 1 << 20, True),
        (torch.float64, 16, 1 << 22, True),
        (torch.float32, 17, 1 << 22, False),
        (torch.int16, 5, 1 << 22, False),
    ],
)
def test_few_elements_are_marked_and_more_if_test_elements_are_not_many(
    dtype: torch.dtype, count: int, many: int, marked: bool, device: str
) -> None:
    tests = (torch.arange(many, device=device) % 30_000 * 3).to(dtype)
    elements = (torch.arange(count, device=device) * 7).to(dtype)
    tests[many // 2] = elements[-1]
    if not marked or many > MANY:  # what the interpreter would take minutes for
        assert (variant(elements, tests) == "mark") == marked
        return

    out = isin.isin(elements, tests)

    assert (variant(elements, tests) == "mark") == marked
    assert_right(isin.OP, {"elements": elements, "test_elements": tests}, {}, out)


def test_fewer_test_elements_are_not_marked(device: str) -> None:
    elements = torch.arange(3, device=device)

    assert variant(elements, torch.arange(MANY - 1, device=device)) != "mark"


def test_nan_is_in_nothing_and_zeros_are_equal(device: str) -> None:
    tests = torch.full((MANY,), torch.nan, device=device)
    tests[-3] = -0.0
    elements = torch.tensor([torch.nan, 0.0, torch.inf], device=device)

    assert isin.isin(elements, tests).tolist() == [False, True, False]


def test_a_program_takes_several_blocks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_plan, "multiprocessors", lambda: 1)
    plan.cache_clear()
    tests = torch.zeros(MANY + 5, dtype=torch.int32, device=device)
    tests[0], tests[MANY // 3], tests[-1] = 11, 12, 13
    elements = torch.tensor([[11, 12], [13, 14]], dtype=torch.int32, device=device)

    out = isin.isin(elements, tests)

    plan.cache_clear()
    assert out.tolist() == [[True, True], [True, False]]
