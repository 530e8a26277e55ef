"""Lets jobs end soon unless their precision is `publish`; they measure for seconds otherwise.

It is for tests of jobs that ask nothing of the times that are measured. Python imports it at its
start where this folder is in PYTHONPATH, also in the sandbox. A job's process that is a fork does
so, too (tests/template.py), and so does a `sitecustomize` that stands before this one.
"""

from __future__ import annotations

import sys

PROGRAMS = {"warpcall_bench.programs.job_main", "warpcall_bench.programs.upload_main"}

if PROGRAMS & {*sys.orig_argv}:
    import dataclasses

    from warpcall_kernels import measuring
    from warpcall_kernels.execution import clock as _clock

    # Bounded by rounds, not by time: a busy machine shall not make results of too few samples.
    brief = {"max_rounds": 40, "warm_seconds": 0.05, "warm_window_s": 0.01, "extras": False}
    measuring.PRECISIONS = {
        name: precision if name == "publish" else dataclasses.replace(precision, **brief)  # type: ignore[arg-type]
        for name, precision in measuring.PRECISIONS.items()
    }
    _clock.MAX_CPU_CACHE = 1 << 20  # the bytes overwritten before each sample depend on it
    _clock.CpuClock.short_us = 0  # no call is that short after a whole cache was overwritten
