"""The types of artefacts: files that belong to a job, such as a profile of an implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from warpcall.jobs import Payload


@dataclass(frozen=True, kw_only=True)
class Artefact(Payload):
    """A file that belongs to a job, or the reason why it could not be made or stored."""

    name: str
    """Name of the file, which no other artefact of the job has."""
    kind: str
    """What it is: "torch-profile", "torch-kernels", "ncu-report", "ncu-text", "compile-report" or "sanitizer-text"."""
    position: int | None
    """Number of the case that it is about, from 0; null if it is about the whole job."""
    implementation: str
    """Name of the implementation that it is about; empty if it is about all."""
    media_type: str
    """Media type of the file."""
    nbytes: int
    """Size of the file in bytes; 0 if there is none."""
    sha256: str
    """SHA-256 of the file in hex; empty if there is none."""
    node: str
    """Id of the server that has the file."""
    created_at: str
    """When it was stored."""
    expires_at: str
    """When it is deleted."""
    error: str
    """Why there is no file, for readers; empty if there is one."""


@dataclass(frozen=True, kw_only=True)
class ArtefactList(Payload):
    """The artefacts of a job, by case and name."""

    artefacts: list[Artefact]
    """All of them that have not expired, those included that could not be stored."""


@dataclass(frozen=True, kw_only=True)
class TopKernel(Payload):
    """A kernel, or an operator of torch, in a trace."""

    name: str
    """Its name, at most 200 characters of it."""
    launches: int
    """How often it was launched, or called."""
    total_us: float
    """Time of all of them, in microseconds."""
    mean_us: float
    """Time of one, in microseconds: the mean."""
    share: float
    """Share of the time of all kernels or operators in the trace, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class TopKernels(Payload):
    """What took the most time in the trace of an implementation in a case. Uploaded code can write
    anything into it."""

    what: Literal["kernels", "operators"]
    """"kernels" of a GPU, with copies and fills, or "operators" of torch on a CPU: the time of each
    without those that it calls."""
    calls: int
    """Number of calls that the trace has."""
    total_us: float
    """Time of all kernels or operators in the trace, in microseconds."""
    kernels: list[TopKernel]
    """At most 20 of them, the one with the most time first."""
    others: int
    """How many others there are."""
    position: int | None = None
    """Number of the case, from 0. The file does not have it, `Job.top_kernels` fills it in."""
    implementation: str = ""
    """Name of the implementation, likewise."""
