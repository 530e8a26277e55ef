"""The odd cases of an op contain what kernels are often wrong on, and nothing that the op refuses."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.problems.row_norm import problem
from tests.kernels.suite import assert_right
from warpcall_kernels import InvalidInput, Op, Problem, Sample, Size, ops
from warpcall_kernels.op.cases import Case
from warpcall_kernels.op.odd_cases import LAYOUTS, LONG, MOST_ELEMENTS_IF_SMALL, odd_cases

pytestmark = pytest.mark.slow

MATRICES = [op for op in ops().values() if op.name in ("permute", "transpose-add")]


@pytest.fixture(params=ops().values(), ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Op:
    found: Op = request.param
    return found


def test_all_dtypes_and_layouts_are_there(op: Op) -> None:
    first = op.inputs[0]

    samples = [case.inputs[first.name] for case in odd_cases(op)]

    assert {sample.dtype for sample in samples} == set(first.dtypes)
    assert {sample.layout for sample in samples} >= set(LAYOUTS)


def test_none_one_and_many_elements_are_there(op: Op) -> None:
    sizes = [math.prod(case.inputs[op.inputs[0].name].shape) for case in odd_cases(op)]

    assert min(sizes) == 0
    assert max(sizes) >= 2 * LONG


def test_each_input_of_a_matrix_has_each_layout_alone() -> None:
    for op in MATRICES:
        alone = {
            (name, sample.layout)
            for case in odd_cases(op)
            for name, sample in case.inputs.items()
            if all(other.layout == "contiguous" for n, other in case.inputs.items() if n != name)
        }

        assert alone >= {(i.name, layout) for i in op.inputs for layout in LAYOUTS}


def test_every_op_is_right_in_its_odd_cases(op: Op, device: str) -> None:
    small = device == "cpu"
    for case in odd_cases(op, small=small):
        if small and case in op.cases:  # tests/kernels/test_ops.py interprets these
            continue
        inputs = case.tensors(device)
        params = op.check_params(case.params)

        assert_right(op, inputs, params, op.function(**inputs, **params))


def test_small_cases_are_small(op: Op) -> None:
    for case in odd_cases(op, small=True):
        assert elements(case) <= MOST_ELEMENTS_IF_SMALL


def test_a_problem_has_odd_sizes_and_long_ones() -> None:
    found = odd_cases(problem().op("ann/row-norm"))

    shapes = {case.inputs["x"].shape for case in found}
    assert shapes >= {(31, 33), (1, 1), (31, 0), (31, 1), (LONG, 2), (2, LONG)}
    assert {case.inputs["x"].dtype for case in found} == set(problem().dtypes)
    assert {"special"} <= {case.inputs["x"].values for case in found}
    assert {case.inputs["x"].layout for case in found} >= set(LAYOUTS)


def test_sizes_and_values_that_a_problem_refuses_are_left_out() -> None:
    found = odd_cases(Problem(_finite, _at_least_two, sizes=(Size("n", "", 8),)).op("ann/finite"))

    assert {case.inputs["x"].shape for case in found} >= {(8,), (31,), (LONG,)}
    assert all(math.prod(case.inputs["x"].shape) >= 2 for case in found)
    assert {case.inputs["x"].values for case in found} == {"normal"}


def _finite(x: torch.Tensor) -> torch.Tensor:
    if x.device.type != "meta" and not x.isfinite().all():
        raise ValueError("x must be finite")
    return x + 1


def _at_least_two(dtype: torch.dtype, n: int) -> dict[str, Sample]:
    if n < 2:
        raise InvalidInput("n", "n must be at least 2")
    return {"x": Sample((n,), dtype)}


def elements(case: Case) -> int:
    return sum(math.prod(sample.shape) for sample in case.inputs.values())
