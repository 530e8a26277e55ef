"""The answers of the processes that check sources. None of them is to be trusted.

Code of the source runs in these processes and could answer in their name. So each answer has bounds,
and texts in it are made printable.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from warpcall_bench.runs.results import Strict

MAX_SOURCES = 64  # that one process checks
MAX_ENTRIES = 32  # of each list in a declaration
MAX_DIMS = 64
MAX_LIST = 64  # entries of a parameter that is a list
# Of a compile report; `warpcall_kernels.compile.launches` keeps to them.
MAX_KERNELS = 32
MAX_ARGUMENTS = 128
MAX_TEXT_BYTES = 256 << 10
# Of a verification; `warpcall_kernels.verified.plan` keeps to them.
MAX_CASES = 8
MAX_STEPS = 32
MAX_CHOICES = 64


def one_line(text: str) -> str:
    """Text with spaces for all characters that are not printable."""
    return "".join(c if c.isprintable() else " " for c in text)


def _lines(text: str) -> str:
    return "\n".join(map(one_line, text.split("\n")))


Line = Annotated[str, StringConstraints(max_length=1000), AfterValidator(one_line)]
Lines = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_lines)]
Log = Annotated[str, StringConstraints(max_length=5000), AfterValidator(_lines)]
Shape = Annotated[str, StringConstraints(max_length=4000), AfterValidator(one_line)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Code = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,15}$")]  # of a dtype
Word = Annotated[str, StringConstraints(pattern=r"^[a-z_-]{1,32}$")]
Integer = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Integers = Annotated[list[Integer], Field(max_length=MAX_LIST, fail_fast=True)]
ParamValue = bool | Integer | Finite | Integers | None
Codes = Annotated[list[Code], Field(max_length=MAX_ENTRIES, fail_fast=True)]


class CheckAnswer(Strict):
    """What all answers have: why the request is refused, and which part of it is wrong."""

    error: Line | None = None
    field: Line = "source"

    @property
    def is_complete(self) -> bool:
        """Whether it has what an answer without `error` must have."""
        raise NotImplementedError


class ImplementationAnswer(CheckAnswer):
    """`doc` is the first line of the function's docstring."""

    doc: Line | None = None
    field: Literal["source", "function", "launches"] = "source"

    @property
    def is_complete(self) -> bool:
        return self.doc is not None


class SourcesAnswer(CheckAnswer):
    """The answers to the checks of several sources, in order; None for one whose process has none."""

    answers: Annotated[
        list[ImplementationAnswer | None] | None, Field(max_length=MAX_SOURCES, fail_fast=True)
    ] = None

    @property
    def is_complete(self) -> bool:
        return self.answers is not None


class _Input(Strict):
    name: Name
    dtypes: Codes
    shape: Shape
    doc: Line
    optional: Literal[False]


class _Output(Strict):
    name: Name
    dtype: Code | None
    shape: Shape
    doc: Line
    when: Line


class _Items(Strict):
    type: Literal["integer"]
    minimum: Integer | None = None
    maximum: Integer | None = None


class _Schema(Strict):
    type: Literal["boolean", "integer", "number", "array"]
    description: Line
    minimum: Integer | None = None
    maximum: Integer | None = None
    items: _Items | None = None
    maxItems: Count | None = None  # noqa: N815  # as JSON Schema has it
    default: ParamValue = None


class _Param(Strict):
    name: Name
    kind: Literal["bool", "int", "float", "ints"]
    doc: Line
    default: ParamValue
    required: Literal[False]
    json_schema: Annotated[_Schema, Field(alias="schema")]


class _Size(Strict):
    name: Name
    doc: Line
    default: Integer | Line
    minimum: Integer
    choices: Annotated[list[Line], Field(max_length=MAX_ENTRIES, fail_fast=True)]


class Declaration(Strict):
    """A problem as `Op.describe` describes it."""

    name: Line
    summary: Line
    description: Lines
    equivalent: Line
    limits: Line
    inputs: Annotated[list[_Input], Field(min_length=1, max_length=MAX_ENTRIES, fail_fast=True)]
    outputs: Annotated[list[_Output], Field(min_length=1, max_length=MAX_ENTRIES, fail_fast=True)]
    params: Annotated[list[_Param], Field(max_length=MAX_ENTRIES, fail_fast=True)]
    sizes: Annotated[list[_Size], Field(max_length=MAX_ENTRIES, fail_fast=True)]
    dtypes: Annotated[Codes, Field(min_length=1)]
    source_sha256: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]

    def to_json(self) -> dict[str, Any]:
        """The declaration as plain data."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class ProblemAnswer(CheckAnswer):
    """`doc` is the first line of the module's docstring, `function` the name of the reference."""

    doc: Line | None = None
    function: Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,63})?$")] = ""
    declaration: Declaration | None = None

    @property
    def is_complete(self) -> bool:
        return self.doc is not None and self.declaration is not None


class InputSpec(Strict):
    """An input of a case, as `measuring` describes it."""

    shape: Annotated[list[Count], Field(max_length=MAX_DIMS, fail_fast=True)]
    dtype: Code
    values: Word
    low: Integer | None = None
    high: Integer | None = None
    layout: Word | None = None
    scale: Annotated[float, Field(allow_inf_nan=False)] | None = None
    shift: Annotated[float, Field(allow_inf_nan=False)] | None = None


class _Spec(Strict):
    inputs: Annotated[dict[Name, InputSpec], Field(min_length=1, max_length=MAX_ENTRIES)]
    params: Annotated[dict[Name, ParamValue], Field(max_length=MAX_ENTRIES)]


class CaseAnswer(Strict):
    """A case that was checked, as `runs.messages.CheckedCase`."""

    spec: _Spec
    key: Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(one_line)]
    device_bytes: Count


class CasesAnswer(CheckAnswer):
    """The cases of a job, each of which is still to be checked: it must be a `CaseAnswer`."""

    cases: list[Any] | None = None

    @property
    def is_complete(self) -> bool:
        return self.cases is not None


class PackedText(Strict):
    """A text of a kernel: base64 of zlib, and the size of the whole text in bytes."""

    packed: Annotated[str, StringConstraints(max_length=2 * MAX_TEXT_BYTES)]
    nbytes: Count


Words = Annotated[dict[Line, Line], Field(max_length=MAX_ARGUMENTS)]
Few = Annotated[int, Field(ge=0, le=1 << 31)]


class KernelNumbers(Strict):
    """A kernel of a compile report without its texts."""

    name: Line
    config: Line
    launches: Count
    grid: Annotated[list[Count], Field(min_length=3, max_length=3)]
    arguments: Words
    constants: Words
    registers: Few
    spill_store_bytes: Few
    spill_load_bytes: Few
    stack_bytes: Few
    static_shared_bytes: Few
    dynamic_shared_bytes: Few
    warps: Few
    stages: Few
    ctas: Few
    resident_blocks: Few
    resident_warps: Few
    max_warps: Annotated[int, Field(ge=1, le=1 << 31)]
    limited_by: Annotated[list[Line], Field(max_length=4, fail_fast=True)]


class KernelAnswer(KernelNumbers):
    """A kernel of a compile report, as `warpcall.compile_reports.KernelReport`."""

    texts: Annotated[dict[Word, PackedText], Field(max_length=4)]


class CompileAnswer(CheckAnswer):
    """A compile report, as `warpcall.compile_reports.CompileReport`."""

    case: Annotated[str, StringConstraints(max_length=4096), AfterValidator(one_line)] = ""
    kernels: Annotated[list[KernelAnswer], Field(max_length=MAX_KERNELS, fail_fast=True)] | None = (
        None
    )
    failures: Annotated[list[Line], Field(max_length=MAX_KERNELS, fail_fast=True)] = Field(
        default_factory=list
    )
    stopped: Line = ""
    triton: Line = ""
    ptxas: Line = ""

    @property
    def is_complete(self) -> bool:
        return self.kernels is not None and bool(self.case)


Three = Annotated[list[Count], Field(min_length=3, max_length=3)]


class ActionAnswer(Strict):
    """An action of a launch plan, as `warpcall.verifications.PlannedAction`."""

    kind: Literal["launch", "fill", "copy"]
    kernel: Line | None = None
    grid: Three | None = None
    threads: Three | None = None
    cluster: Three | None = None
    shared_bytes: Few | None = None
    registers: Few | None = None
    nbytes: Count | None = None


class ChoiceAnswer(Strict):
    """A choice of a step, as `warpcall.verifications.PlannedChoice`."""

    label: Line
    actions: Annotated[list[ActionAnswer], Field(max_length=MAX_STEPS, fail_fast=True)]


class StepAnswer(Strict):
    """A step of a launch plan, as `warpcall.verifications.PlannedStep`."""

    choices: Annotated[
        list[ChoiceAnswer], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
    ]


class VerifiedCaseAnswer(Strict):
    """A case of a verification, as `warpcall.verifications.VerifiedCase`."""

    case: Annotated[str, StringConstraints(max_length=4096), AfterValidator(one_line)]
    reason: Log
    steps: Annotated[list[StepAnswer], Field(max_length=MAX_STEPS, fail_fast=True)]
    kernels: Few
    scratch_bytes: Count


class VerifyAnswer(CheckAnswer):
    """A verification, as `warpcall.verifications.Verification`."""

    cases: (
        Annotated[list[VerifiedCaseAnswer], Field(max_length=MAX_CASES, fail_fast=True)] | None
    ) = None
    declaration: dict[str, Any] | None = None
    remarks: Annotated[list[Line], Field(max_length=MAX_ENTRIES, fail_fast=True)] = Field(
        default_factory=list
    )
    compiler: Line = ""

    @property
    def is_complete(self) -> bool:
        return bool(self.cases)
