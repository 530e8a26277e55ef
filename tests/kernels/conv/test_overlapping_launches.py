"""Kernels are launched before the one that they wait for has ended only on GPUs that can do it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import triton

from warpcall_kernels._conv import backward
from warpcall_kernels.compile.warm import CompileOnlyDriver
from warpcall_kernels.op import launch
from warpcall_kernels.op.launch import layout_key, overlaps_launches

BF16 = torch.bfloat16


@pytest.fixture
def compiles_for(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[int]:
    """Plan as `compile/warm.py` does for this compute capability."""
    capability: int = request.param
    active = triton.runtime.driver.active
    monkeypatch.setattr(launch, "_takes_metas", True)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    triton.runtime.driver.set_active(CompileOnlyDriver(capability))
    yield capability
    triton.runtime.driver.set_active(active)


@pytest.mark.parametrize("compiles_for", [80, 89, 90, 100], indirect=True)
def test_the_reduction_of_a_filter_overlaps_from_capability_90_on(compiles_for: int) -> None:
    x, weight = torch.empty(2, 4, 64, dtype=BF16), torch.empty(2, 31, dtype=BF16)

    plan = backward.plan(layout_key(x), layout_key(x), layout_key(weight), 30, False)

    overlaps = compiles_for >= 90
    assert overlaps_launches() == overlaps
    assert plan.reduce is not None
    assert plan.main.arguments["PDL"] == plan.reduce.arguments["PDL"] == overlaps
    assert ("launch_pdl" in plan.reduce.arguments) == overlaps
    assert "launch_pdl" not in plan.main.arguments  # it does not wait for what came before


def test_nothing_overlaps_in_the_interpreter(device: str) -> None:
    if device != "cpu":
        pytest.skip("nothing is interpreted on a GPU")

    assert not overlaps_launches()
