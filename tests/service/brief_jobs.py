"""Lets quick jobs end soon, for the server's `job_modules`: they take seconds on a CPU otherwise.

It is for tests of jobs that ask nothing of the times that are measured.
"""

from __future__ import annotations

import dataclasses

from warpcall_kernels import measuring
from warpcall_kernels.measuring import Implementation, _clock

IMPLEMENTATIONS: tuple[Implementation, ...] = ()

measuring.PRECISIONS = {
    **measuring.PRECISIONS,
    "quick": dataclasses.replace(
        measuring.PRECISIONS["quick"], seconds=0.05, warm_seconds=0.05, warm_window_s=0.01
    ),
}
_clock.MAX_CPU_CACHE = 1 << 20  # the bytes overwritten before each sample depend on it
