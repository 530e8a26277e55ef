"""What the benchmark and the tuner are pointed at exists."""

from __future__ import annotations

import importlib

import pytest

from bench.kernels import tune
from warpcall_kernels import ops


@pytest.mark.parametrize("name", ops())
def test_odd_cases_are_calls_that_the_op_takes(name: str) -> None:
    op = ops()[name]

    for case in op.sweep:
        assert op.check(case.metas(), op.check_params(case.params))
        assert case.size == "large"


@pytest.mark.parametrize("name", [op.name for op in tune.tunable()])
def test_what_is_tuned_is_there_and_its_shipped_value_a_candidate(name: str) -> None:
    large = [case.name for case in tune.large_cases(name)]

    for knob in ops()[name].tuning:
        module = importlib.import_module(f"warpcall_kernels.{knob.module}")
        shipped = tuple(tune._get(module, constant) for constant in knob.names)
        assert shipped in knob.candidates, (knob.names, shipped)
        for begin in knob.cases:
            assert any(case.startswith(begin) for case in large), begin
