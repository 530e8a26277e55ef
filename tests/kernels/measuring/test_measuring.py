"""What the benchmark and the tuner are pointed at exists, and a report says what was measured."""

from __future__ import annotations

import importlib

import pytest

from bench.kernels import tune
from bench.kernels.report import markdown
from warpcall_kernels import ops

ROW = {
    "op": "permute",
    "group": "recorded",
    "case": "some case",
    "bytes": 1000,
    "extra_bytes": 2_000_000,
    "ms": 0.5,
    "p20_ms": 0.4,
    "p80_ms": 0.6,
    "method": "events",
    "copy_ms": 0.25,
    "eager_ms": 2.0,
    "compile_ms": None,
    "best_peer": "another",
    "best_peer_ms": 1.0,
    "error": None,
}
MACHINE = {"gpu": "a GPU", "torch": "1", "triton": "2", "cuda": "3", "python": "4", "date": "today"}


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


def test_a_report_has_times_ratios_and_shares() -> None:
    text = markdown({"machine": MACHINE, "rows": [ROW]})

    assert "| permute | 1 | 50 % | 4.00 x |  | 2.00 x |" in text
    assert (
        "| some case | 500.0 | 400.0 to 600.0 | 250.0 | 50 % | 2000.0 |  | 1000.0 another | 2.00 x | 2.0 |"
        in text
    )
