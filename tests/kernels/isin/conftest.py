"""Fixtures of the tests of isin's variants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def compiles_for(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[int]:
    """Plan as `compile/warm.py` does for this compute capability."""
    import triton  # not above: this file is read before TRITON_INTERPRET is set

    from warpcall_kernels.compile.warm import CompileOnlyDriver
    from warpcall_kernels.op import launch

    capability: int = request.param
    active = triton.runtime.driver.active
    monkeypatch.setattr(launch, "_takes_metas", True)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    triton.runtime.driver.set_active(CompileOnlyDriver(capability))
    yield capability
    triton.runtime.driver.set_active(active)
