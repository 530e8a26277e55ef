"""Gives the CPU lane of a server, and its jobs, the model that the variable MODEL names.

Python imports this at its start where this folder is in PYTHONPATH. The jobs end soon.
"""

from __future__ import annotations

import os
import sys

import tests.service.brief_jobs.sitecustomize  # noqa: F401

PROGRAMS = {"warpcall_service.worker.main", "warpcall_bench.programs.job_main"}

if PROGRAMS & {*sys.orig_argv}:
    from warpcall_kernels.measuring import _machine

    _machine._cpu_name = lambda: os.environ["MODEL"]
