"""What the API of verifications accepts. Its answers are the types of `warpcall.verifications`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from warpcall.compile_reports import GPU
from warpcall.implementations import Language
from warpcall_bench.jobs.models import CaseSpec, Name, OpName
from warpcall_bench.uploads.answers import MAX_CASES
from warpcall_bench.uploads.models import Function, SourceFiles
from warpcall_service.http.openapi_parts import Text


class VerificationRequest(SourceFiles):
    """Source with kernels, some cases, and the architecture to compile for. Nothing is stored.

    `op` is one of the library's, or a problem such as "ann/row-norm". `cases` are written as in a job.
    `source` is a whole file in the `language`. `function` is that of a source in Python, by default the
    op's name with `_` for `-`. `launches` declares what a call launches, which a source in CUDA C++ must
    have; without it, what the source declares or what a call of the function launches is taken. `entry`
    and `files` are as of an upload of several files.
    """

    model_config = ConfigDict(extra="forbid")

    op: OpName
    cases: Annotated[list[CaseSpec], Field(min_length=1, max_length=MAX_CASES, fail_fast=True)]
    source: Annotated[Text, StringConstraints(min_length=1)]
    language: Language = "python"
    function: Function | None = None
    launches: dict[str, Any] | None = None
    gpu: Name = GPU
