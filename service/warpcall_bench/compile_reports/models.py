"""What the API of compile reports accepts. Its answers are the types of `warpcall.compile_reports`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from warpcall.compile_reports import GPU, TEXT_NAMES, TextName
from warpcall_bench.jobs.models import CaseSpec, ImplementationName, Name, OpName
from warpcall_bench.uploads.models import Function, SourceFiles
from warpcall_service.http.openapi_parts import Text


class CompileRequest(SourceFiles):
    """One implementation of an op, one case, and the architecture to compile for.

    `op` is one of the library's, or a problem such as "ann/row-norm". `case` is written as in a job.
    The kernels are those of `source`, which is not stored, or those of the uploaded `implementation`
    "user/name" or "user/name@3f2a91c0", by default those of the library. `function` is that of
    `source`, by default the op's name with `_` for `-`. `entry` and `files` are as of an upload of several files. `texts` are the texts of each kernel that the
    answer has.
    """

    model_config = ConfigDict(extra="forbid")

    op: OpName
    case: CaseSpec
    gpu: Name = GPU
    implementation: ImplementationName | None = None
    source: Annotated[Text, StringConstraints(min_length=1)] | None = None
    function: Function | None = None
    texts: Annotated[list[TextName], Field(max_length=len(TEXT_NAMES), fail_fast=True)] = Field(
        default_factory=lambda: list(TEXT_NAMES)
    )
