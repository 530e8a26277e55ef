"""A measurement that is over soon, for tests of what surrounds it."""

from __future__ import annotations

from typing import Any

from warpcall_kernels.measuring import Precision

BRIEF = Precision(
    *("test", 10),
    min_rounds=12,
    min_seconds=0,
    max_rounds=12,
    warm_window_s=0.02,
    warm_seconds=0.1,
    extras=False,
)
SPEC: dict[str, Any] = {"shape": [64, 96], "dtype": "F32", "params": {"dims": [1, 0]}}
