"""What the tests of the benchmark share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bench.kernels.measure import Planned


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A benchmark of three small cases on the CPU; returns what it measures."""
    # not above: this file is read before TRITON_INTERPRET is set
    from bench.kernels import measure, run
    from tests.kernels.measuring.small_bench import EFFORT, MACHINE, PLANNED

    measured: list[str] = []

    class Noting(measure.Bench):
        def row(self, planned: Planned) -> dict[str, Any]:
            measured.append(planned.case.name)
            return super().row(planned)

    monkeypatch.setattr(run, "plan", lambda given: [*PLANNED])
    monkeypatch.setattr(run, "machine", lambda: dict(MACHINE))
    monkeypatch.setattr(run, "DEVICE", "cpu")
    monkeypatch.setattr(run, "SHORT", EFFORT)
    monkeypatch.setattr(run, "Bench", Noting)
    return measured
