"""Lets quick jobs end soon in the process that imports it; they take seconds on a CPU otherwise.

It is for tests of jobs that ask nothing of the times that are measured. A job's process that is a
fork imports it where BRIEF_JOBS is set; others need a `sitecustomize` that does.
"""

from __future__ import annotations

import dataclasses

from warpcall_kernels import measuring
from warpcall_kernels.measuring import _clock

measuring.PRECISIONS = {
    **measuring.PRECISIONS,
    "quick": dataclasses.replace(
        measuring.PRECISIONS["quick"], seconds=0.05, warm_seconds=0.05, warm_window_s=0.01
    ),
}
_clock.MAX_CPU_CACHE = 1 << 20  # the bytes overwritten before each sample depend on it
