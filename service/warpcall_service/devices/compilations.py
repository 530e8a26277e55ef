"""How long a process has compiled kernels."""

from __future__ import annotations

from typing import Any

import triton


class Compilations:
    """Adds up the times of Triton's compilations, without those that its cache had.

    Attributes:
        seconds: of all compilations since `listen`.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def listen(self) -> None:
        """Let Triton report each compilation of this process."""
        triton.knobs.compilation.listener = self

    def __call__(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        """What Triton calls: `times.total` is in microseconds."""
        if not cache_hit:
            self.seconds += times.total * 1e-6
