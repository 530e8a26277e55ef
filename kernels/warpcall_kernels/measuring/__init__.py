"""Measures implementations of an op: checks their results, times them side by side, compares them.

docs/benchmarking.md describes the method and each number.
"""

from __future__ import annotations

from warpcall_kernels.execution.context import same_arithmetic
from warpcall_kernels.execution.failures import class_of
from warpcall_kernels.execution.implementations import (
    Implementation,
    implementations,
    load,
    register,
    remote_implementation,
    shipped,
)
from warpcall_kernels.execution.problem import RemoteProblem, remote_problem
from warpcall_kernels.execution.process import (
    Deadlines,
    Peer,
    RemoteProcess,
    StartPeer,
)
from warpcall_kernels.execution.serve import Loaded, serve
from warpcall_kernels.execution.spec import CODES, JobCase, count, expand, make_case
from warpcall_kernels.execution.verified import VerifiedProcess
from warpcall_kernels.measuring._blocks import Lease
from warpcall_kernels.measuring._installed import describe_installed
from warpcall_kernels.measuring._machine import environment_class, fingerprint, kernels_sha256
from warpcall_kernels.measuring._measure import Progress, measure
from warpcall_kernels.measuring._observe import minor_number
from warpcall_kernels.measuring._odd import OddCases, check_odd_cases
from warpcall_kernels.measuring._precision import PRECISIONS, Precision
from warpcall_kernels.measuring._profile import ProfileFailed, prepared, trace
from warpcall_kernels.measuring._racing import race
from warpcall_kernels.measuring._result import (
    CaseResult,
    ImplementationResult,
    Masked,
    Ratio,
    Readings,
)
from warpcall_kernels.measuring._rounds import compare_runs, median_of_run
from warpcall_kernels.measuring._spread import between_runs
from warpcall_kernels.measuring._statistics import MARGIN, Comparison

__all__ = [
    "CODES",
    "MARGIN",
    "PRECISIONS",
    "CaseResult",
    "Comparison",
    "Deadlines",
    "Implementation",
    "ImplementationResult",
    "JobCase",
    "Lease",
    "Loaded",
    "Masked",
    "OddCases",
    "Peer",
    "Precision",
    "ProfileFailed",
    "Progress",
    "Ratio",
    "Readings",
    "RemoteProblem",
    "RemoteProcess",
    "StartPeer",
    "VerifiedProcess",
    "between_runs",
    "check_odd_cases",
    "class_of",
    "compare_runs",
    "count",
    "describe_installed",
    "environment_class",
    "expand",
    "fingerprint",
    "implementations",
    "kernels_sha256",
    "load",
    "make_case",
    "measure",
    "median_of_run",
    "minor_number",
    "prepared",
    "race",
    "register",
    "remote_implementation",
    "remote_problem",
    "same_arithmetic",
    "serve",
    "shipped",
    "trace",
]
