"""Run GPU kernels on a Warpcall server.

    from warpcall import Client

    with Client("http://gpu-box:8000") as gpu:
        y = gpu.permute(x, dims=(2, 0, 1))

Public names: Client, StoredTensor, Program and Job with their forms for asyncio (AsyncClient,
AsyncStoredTensor, AsyncProgram, AsyncJob), Answer, what a job is asked for (JobRequest) and what it
returns (Results, Comparison, History and others), JobGroup for several models of a GPU, what declares the launches of verified kernels
(launches, Launch), the server's OpInfo, Device, Node and Health,
the user who calls (Me), and the errors of `warpcall.errors`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from warpcall.errors import (
    Busy,
    CallTimedOut,
    ConnectionFailed,
    Forbidden,
    InvalidInput,
    JobFailed,
    KernelFailed,
    NodeGone,
    NotFound,
    OnOtherNode,
    Problem,
    TimedOut,
    TooLarge,
    TransportError,
    Unauthorized,
    Unavailable,
    UnsupportedMedia,
    WarpcallError,
)

if TYPE_CHECKING:
    from warpcall._answer import Answer
    from warpcall._async_client import AsyncClient
    from warpcall._client import Client
    from warpcall._jobs.artefacts import AsyncJobArtefact, JobArtefact
    from warpcall._jobs.groups import AsyncJobGroup, JobGroup
    from warpcall._jobs.job import AsyncJob, Job
    from warpcall._jobs.scratch import ScratchResult
    from warpcall._launches import Launch, launches
    from warpcall._program import AsyncProgram, Program
    from warpcall._tensors import AsyncStoredTensor, StoredTensor
    from warpcall.artefacts import Artefact
    from warpcall.compile_reports import CompileReport, KernelReport
    from warpcall.devices import Device
    from warpcall.evaluations import EvaluatedCase, Evaluation, Failure
    from warpcall.groups import GroupInfo, GroupPart, GroupResults, GroupRow
    from warpcall.health import Health, Lane
    from warpcall.implementations import Implementation, ImplementationDetails
    from warpcall.jobs import (
        JobDetails,
        JobEvent,
        JobInfo,
        JobPreview,
        NewShare,
        Queue,
        QueueEntry,
        Share,
    )
    from warpcall.jobs.request import JobRequest
    from warpcall.jobs.results import (
        Board,
        CaseDetails,
        CaseResults,
        ComparedRow,
        Comparison,
        History,
        HistoryPoint,
        Measurement,
        Results,
    )
    from warpcall.monitors import (
        Monitor,
        MonitorDetails,
        MonitorNotification,
        MonitorStep,
        NewMonitor,
    )
    from warpcall.nodes import Node, NodeList
    from warpcall.ops import OpInfo, OpList
    from warpcall.problems import ProblemDetails, ProblemInfo
    from warpcall.regressions import Regression, RegressionRow
    from warpcall.users import Me, Quota, UserLimits, UserQuotas
    from warpcall.verifications import Verification, VerifiedCase

__version__ = "0.2.0"  # of both distributions
__all__ = [
    "Answer",
    "Artefact",
    "AsyncClient",
    "AsyncJob",
    "AsyncJobArtefact",
    "AsyncJobGroup",
    "AsyncProgram",
    "AsyncStoredTensor",
    "Board",
    "Busy",
    "CallTimedOut",
    "CaseDetails",
    "CaseResults",
    "Client",
    "ComparedRow",
    "Comparison",
    "CompileReport",
    "ConnectionFailed",
    "Device",
    "EvaluatedCase",
    "Evaluation",
    "Failure",
    "Forbidden",
    "GroupInfo",
    "GroupPart",
    "GroupResults",
    "GroupRow",
    "Health",
    "History",
    "HistoryPoint",
    "Implementation",
    "ImplementationDetails",
    "InvalidInput",
    "Job",
    "JobArtefact",
    "JobDetails",
    "JobEvent",
    "JobFailed",
    "JobGroup",
    "JobInfo",
    "JobPreview",
    "JobRequest",
    "KernelFailed",
    "KernelReport",
    "Lane",
    "Launch",
    "Me",
    "Measurement",
    "Monitor",
    "MonitorDetails",
    "MonitorNotification",
    "MonitorStep",
    "NewMonitor",
    "NewShare",
    "Node",
    "NodeGone",
    "NodeList",
    "NotFound",
    "OnOtherNode",
    "OpInfo",
    "OpList",
    "Problem",
    "ProblemDetails",
    "ProblemInfo",
    "Program",
    "Queue",
    "QueueEntry",
    "Quota",
    "Regression",
    "RegressionRow",
    "Results",
    "ScratchResult",
    "Share",
    "StoredTensor",
    "TimedOut",
    "TooLarge",
    "TransportError",
    "Unauthorized",
    "Unavailable",
    "UnsupportedMedia",
    "UserLimits",
    "UserQuotas",
    "Verification",
    "VerifiedCase",
    "WarpcallError",
    "launches",
]


_LAZY = {
    "Answer": "_answer",
    "Artefact": "artefacts",
    "AsyncClient": "_async_client",
    "AsyncJob": "_jobs.job",
    "AsyncJobArtefact": "_jobs.artefacts",
    "AsyncJobGroup": "_jobs.groups",
    "AsyncProgram": "_program",
    "AsyncStoredTensor": "_tensors",
    "Board": "jobs.results",
    "CaseDetails": "jobs.results",
    "CaseResults": "jobs.results",
    "Client": "_client",
    "ComparedRow": "jobs.results",
    "Comparison": "jobs.results",
    "CompileReport": "compile_reports",
    "Device": "devices",
    "EvaluatedCase": "evaluations",
    "Evaluation": "evaluations",
    "Failure": "evaluations",
    "GroupInfo": "groups",
    "GroupPart": "groups",
    "GroupResults": "groups",
    "GroupRow": "groups",
    "Health": "health",
    "History": "jobs.results",
    "HistoryPoint": "jobs.results",
    "Implementation": "implementations",
    "ImplementationDetails": "implementations",
    "Job": "_jobs.job",
    "JobArtefact": "_jobs.artefacts",
    "JobDetails": "jobs",
    "JobEvent": "jobs",
    "JobGroup": "_jobs.groups",
    "JobInfo": "jobs",
    "JobPreview": "jobs",
    "JobRequest": "jobs.request",
    "KernelReport": "compile_reports",
    "Lane": "health",
    "Launch": "_launches",
    "Me": "users",
    "Measurement": "jobs.results",
    "Monitor": "monitors",
    "MonitorDetails": "monitors",
    "MonitorNotification": "monitors",
    "MonitorStep": "monitors",
    "NewMonitor": "monitors",
    "NewShare": "jobs",
    "Node": "nodes",
    "NodeList": "nodes",
    "OpInfo": "ops",
    "OpList": "ops",
    "ProblemDetails": "problems",
    "ProblemInfo": "problems",
    "Program": "_program",
    "Queue": "jobs",
    "QueueEntry": "jobs",
    "Quota": "users",
    "Regression": "regressions",
    "RegressionRow": "regressions",
    "Results": "jobs.results",
    "ScratchResult": "_jobs.scratch",
    "Share": "jobs",
    "StoredTensor": "_tensors",
    "UserLimits": "users",
    "UserQuotas": "users",
    "Verification": "verifications",
    "VerifiedCase": "verifications",
    "launches": "_launches",
}


def __getattr__(name: str) -> Any:
    """Import the clients at their first use.

    The server imports this package too, but needs only its errors and its wire format.
    """
    if name in _LAZY:
        module = importlib.import_module(f"warpcall.{_LAZY[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also of what is imported at its first use, and the modules."""
    known = globals().items()
    kept = {n for n, value in known if n.startswith("__") or _is_ours(value)}
    return sorted({*kept, *__all__})


def _is_ours(value: object) -> bool:
    """Whether a value is a public module of this package."""
    name = getattr(value, "__name__", "")
    return isinstance(value, ModuleType) and name.startswith(f"{__name__}.")
