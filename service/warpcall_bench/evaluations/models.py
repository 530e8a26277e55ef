"""What the evaluations API accepts. Its answers are the types of `warpcall.evaluations`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from warpcall.jobs import Precision, Priority
from warpcall_bench.jobs.models import (
    CHECK,
    CaseSpec,
    GpuModel,
    ImplementationName,
    JobRequest,
    NodeName,
    OpName,
    Sweep,
    Word,
    is_problem,
)
from warpcall_bench.runs.messages import Language
from warpcall_bench.runs.operator_modules import KERNELS
from warpcall_bench.uploads.models import Function, Name, SourceFiles
from warpcall_service.http.openapi_parts import Model, Text

MAX_CASES = 64  # of an evaluation: its verdict names each, and shall stay small
MAX_SOURCES = 256  # of a batch
# What is left of a job's implementations beside the baseline. docs/for-programs.md has what was measured.
MOST_TOGETHER = 7
TORCH = "torch"
OF_SOURCE = (
    "function",
    "name",
    "verified",
    "language",
    "launches",
    "entry",
    "files",
)  # members of a source


class Candidate(SourceFiles):
    """What is evaluated: a Python `source`, or an `implementation` that is stored.

    `source` is a whole module. Its `function`, by default the one with the op's name and `_` for `-`,
    takes the op's inputs and parameters by name. `name` is what results call it, by default the
    function's name. Of a `verified` candidate only the compiled kernels are timed; it, its `language`
    and its `launches` are those of an upload. `implementation` is the name of an upload, such as "ann/fast" or
    "ann/fast@3f2a91c0", or of any other implementation that jobs can time. `entry` and `files` are as of
    an upload of several files.
    """

    model_config = ConfigDict(extra="forbid")

    source: Annotated[Text, StringConstraints(min_length=1)] | None = None
    function: Function | None = None
    name: Name | None = None
    verified: bool = False
    language: Language = "python"
    launches: dict[str, Any] | None = None
    implementation: ImplementationName | None = None

    @model_validator(mode="after")
    def _check_candidate(self) -> Self:
        if (self.source is None) == (self.implementation is None):
            raise ValueError("give either source or implementation")
        given = [name for name in OF_SOURCE if name in self.model_fields_set]
        if self.implementation is not None and given:
            raise ValueError(f"{given[0]} belongs to a source, not to an implementation")
        return self


class EvaluationOptions(Model):
    """What is measured, and how, as in a job.

    `baseline` is what times are compared with: "warpcall", for a problem "torch". Sources are kept until
    their jobs have ended, with `keep` until you delete them, as uploads. A source that you evaluated
    before in the same cases and the same environment, with a right result, is not measured again
    unless `fresh` is true.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    op: OpName
    cases: (
        Annotated[list[CaseSpec], Field(min_length=1, max_length=MAX_CASES, fail_fast=True)] | None
    ) = None
    sweep: Sweep | None = None
    precision: Precision = "quick"
    baseline: ImplementationName | None = None
    priority: Priority = "normal"
    tags: Annotated[list[Word], Field(max_length=16, fail_fast=True)] = Field(default_factory=list)
    private: bool | None = None
    keep: bool = False
    fresh: bool = False
    gpu: GpuModel | None = None
    node: NodeName | None = None

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        if (self.cases is None) == (self.sweep is None):
            raise ValueError("give either cases or sweep")
        return self

    @property
    def first(self) -> str:
        """The baseline."""
        return self.baseline or (TORCH if is_problem(self.op) else KERNELS)

    @property
    def is_timed(self) -> bool:
        """Whether anything is timed."""
        return self.precision != CHECK

    def job(self, implementations: list[str]) -> JobRequest:
        """The job that measures these implementations, the baseline first."""
        names = {*EvaluationOptions.model_fields} - {"baseline", "keep"}
        given: dict[str, Any] = {
            name: getattr(self, name) for name in names & self.model_fields_set
        }
        given |= {"precision": self.precision, "implementations": implementations}
        request = JobRequest.model_validate(given)
        request.check_form()
        return request


class EvaluationRequest(Candidate, EvaluationOptions):
    """One candidate: a source, or a stored implementation, with the cases to evaluate it in.

    The members are those of Candidate and of EvaluationOptions.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class BatchRequest(EvaluationOptions):
    """Up to 256 candidates of one op, which are evaluated in the same cases.

    `when_left` says what happens to jobs that have not begun if the client leaves before the end: they
    are cancelled, or with "continue" measured nevertheless.
    """

    sources: Annotated[list[Candidate], Field(min_length=1, max_length=MAX_SOURCES, fail_fast=True)]
    when_left: Literal["cancel", "continue"] = "cancel"

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for candidate in self.sources:
            if candidate.implementation == self.first:
                raise ValueError(f"{self.first} is the baseline, it is not evaluated itself")
        return self
