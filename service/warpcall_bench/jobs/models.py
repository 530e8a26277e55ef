"""What the jobs API accepts, as models.

The types of the answers are those of the SDK, in `warpcall.jobs` and `warpcall.jobs.results`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from warpcall.errors import InvalidInput
from warpcall.jobs import Precision, Priority, Profile
from warpcall.wire import op_name
from warpcall_bench.runs.operator_modules import KERNELS
from warpcall_service.http.openapi_parts import Model, Text
from warpcall_service.store.schema import CODE_LENGTH
from warpcall_service.text import printable

MAX_DIMS = 64
MAX_BODY_BYTES = 64 << 10  # 1,000 cases with a shape, a dtype and a parameter take 60 KB
MAX_ENTRIES = 64  # entries of a parameter that is a list
MAX_NAMES = 32  # inputs, parameters or sizes of a case: as many as a problem may have
MAX_VALUES = 4096  # entries of one list of a sweep; its product may have some 1,000 cases

MAX_IMPLEMENTATIONS = 8  # of a job
MAX_RACERS = 64  # implementations of a job in which they race
FEWEST_RACERS = 2
RACE_AT_ONCE = 8  # of them are timed at the same time; AT_ONCE of `measuring`
ENTRY_S = 2.0  # until an implementation races: its process, the check of its results

START_S = 6.0  # to start a job: its process, torch, the device
CASE_S = 0.5  # for each case besides its samples: inputs, the check of the results
CHECK: Precision = "check"  # compares results with the reference, and times nothing
SANITIZE_S = 120.0  # for both tools of compute-sanitizer on an upload in a case
PROFILE_S = {"torch": 1.0, "ncu": 60.0, "compile": 60.0}  # for each profile
MAX_KERNELS_CHARS = 200  # of the regular expression for kernels that are profiled
MAX_LAUNCH = 10_000
MAX_SECTIONS = 16
MAX_METRICS = 32

SCRATCH_S = 60.0  # that the command of a scratch run may take, unless its request says otherwise
MAX_ARGUMENTS = 256  # of a command, with the program
MAX_ARGUMENT = 4096  # characters
MAX_COMMAND_BYTES = 64 << 10  # of the JSON of a scratch run without its files
MAX_FETCH = 32  # files and folders that a scratch run sends back
MAX_NAME = 100  # characters of the name of a job
MAX_SHOWN_ARGUMENTS = 50

MAX_SEQUENCE = 2**31 - 1  # the database stores the sequence of an event in 4 bytes


def one_line(text: str) -> str:
    """The text itself, if it can stand in a line of a list."""
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


def regular_expression(text: str) -> str:
    """The text itself, if it is a regular expression of printable ASCII characters."""
    if not (text.isascii() and text.isprintable()):
        raise ValueError("must have printable ASCII characters only")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return text


Size = Annotated[int, Field(ge=0, lt=1 << 63)]
# Without `fail_fast`, a list of thousands of wrong entries would make as many errors.
Shape = Annotated[list[Size], Field(max_length=MAX_DIMS, fail_fast=True)]
Name = Annotated[Text, StringConstraints(min_length=1, max_length=64)]
# Names of problems and of uploaded implementations begin with their user's.
OpName = Annotated[
    Text, StringConstraints(min_length=1, max_length=CODE_LENGTH), AfterValidator(op_name)
]
ImplementationName = Annotated[Text, StringConstraints(min_length=1, max_length=CODE_LENGTH)]
# A model has at least one word; see jobs/placement.py.
GpuModel = Annotated[Text, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._()-]{0,63}$")]
NodeName = Annotated[Text, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,254}$")]
JobName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_NAME, strip_whitespace=True),
    AfterValidator(one_line),
]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,63}$")]
Entries = Annotated[list[int], Field(max_length=MAX_ENTRIES, fail_fast=True)]
ParamValue = bool | int | float | Entries | None
SizeValue = Size | Name
# These become arguments of Nsight Compute. None of them can begin with "-", or name several.
Kernels = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_KERNELS_CHARS),
    AfterValidator(regular_expression),
]
Section = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
Metric = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.:]{0,127}$")]
CaseKey = Annotated[Text, StringConstraints(min_length=1, max_length=4096)]


class _Model(Model):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TensorSpec(_Model):
    """An input whose values the server draws.

    `dtype` is a name such as BF16. `values`, `low` and `high` say which values are drawn, "normal"
    by default, which are then multiplied with `scale`, and `shift` is added. `layout` is the memory
    layout, "contiguous" by default.
    """

    shape: Shape
    dtype: Name
    values: Name | None = None
    low: int | None = None
    high: int | None = None
    layout: Name | None = None
    scale: float | None = None
    shift: float | None = None


class CaseSpec(_Model):
    """One case: all inputs, or what the inputs follow from.

    For an op of the library that is `shape` and `dtype` of the first input, and `sizes` for what
    the shape leaves open, such as the taps of a convolution. A problem has no `shape`; its inputs
    follow from `sizes` and from `dtype`, by default the first one that it declares.
    """

    inputs: dict[Name, TensorSpec] | None = Field(None, max_length=MAX_NAMES)
    shape: Shape | None = None
    dtype: Name | None = None
    params: dict[Name, ParamValue] = Field(default_factory=dict, max_length=MAX_NAMES)
    sizes: dict[Name, SizeValue] = Field(default_factory=dict, max_length=MAX_NAMES)


class Sweep(_Model):
    """A product of cases: each shape with each dtype, each value of each parameter and each size.

    A sweep of a problem has no `shapes`, and need not have `dtypes`.
    """

    shapes: (
        Annotated[list[Shape], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)] | None
    ) = None
    dtypes: (
        Annotated[list[Name], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)] | None
    ) = None
    params: dict[
        Name,
        Annotated[list[ParamValue], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)],
    ] = Field(default_factory=dict, max_length=MAX_NAMES)
    sizes: dict[
        Name, Annotated[list[SizeValue], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)]
    ] = Field(default_factory=dict, max_length=MAX_NAMES)


def _default_implementations(given: Mapping[str, Any]) -> list[str]:
    return ["torch"] if is_problem(given.get("op", "")) else [KERNELS, "torch"]


class JobChange(_Model):
    """What can be changed of a job after its submission."""

    private: bool


class ProfileOptions(_Model):
    """What Nsight Compute profiles: which kernels, and what it reads of them.

    `kernels` is a regular expression that is searched in the names of kernels, without their arguments.
    `launch` is the number of the only launch that is profiled, from 1, among those of these kernels.
    `sections` are profiled in place of the default ones, and `metrics` in place of all sections unless
    `sections` are given, too.
    """

    kernels: Kernels | None = None
    launch: Annotated[int, Field(ge=1, le=MAX_LAUNCH)] | None = None
    sections: (
        Annotated[list[Section], Field(min_length=1, max_length=MAX_SECTIONS, fail_fast=True)]
        | None
    ) = None
    metrics: (
        Annotated[list[Metric], Field(min_length=1, max_length=MAX_METRICS, fail_fast=True)] | None
    ) = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError(f"give at least one of {', '.join(type(self).model_fields)}")
        for name, given in (("sections", self.sections), ("metrics", self.metrics)):
            if len(set(given or ())) < len(given or ()):
                raise ValueError(f"{name} must name each once")
        return self


class JobRequest(_Model):
    """A benchmark of some implementations of an op on some cases.

    The precision "check" compares results with the reference and times nothing. Without `cases` and
    `sweep` it takes the op's odd cases: all dtypes, layouts, NaN and infinities, empty tensors, one
    element, odd sizes, long rows.
    `op` is one of the library's, or a problem such as "ann/row-norm" or "ann/row-norm@3f2a91c0". By
    default, `implementations` are "warpcall" and "torch", for a problem "torch". The others are
    compared with the first one. If a job of the same user measured the same in the same
    environment, that job is the answer, unless `fresh` is true. Only its
    user and administrators can read a job with `private`. By default a job is private if it is on a
    private problem or times a private upload, or if the server is set so. `gpu` and `node` say which
    devices it may run on: words of the GPU's model such as "H200", and the id of a server or the
    host name of its machine. With `profile` each implementation that has a time is also run under
    a profiler, after all cases are measured; a job with profiles is always a new one.
    `profile_options` say what the profiler "ncu" reads, of which kernels. With `sanitize` each
    uploaded implementation is also run under compute-sanitizer then, where that is installed. `name`
    is what lists call the job. With `race` its implementations, 2 to 64 of them, race in each case:
    whoever is surely slower than the fastest is timed no more, until one is surely the fastest, or the
    others are the same within 1 %.
    """

    op: OpName
    implementations: Annotated[
        list[ImplementationName],
        Field(min_length=1, max_length=MAX_RACERS, fail_fast=True),
    ] = Field(default_factory=_default_implementations)
    cases: Annotated[list[CaseSpec], Field(min_length=1, fail_fast=True)] | None = None
    sweep: Sweep | None = None
    precision: Precision = "standard"
    priority: Priority = "normal"
    tags: Annotated[list[Word], Field(max_length=16, fail_fast=True)] = Field(default_factory=list)
    name: JobName | None = None
    note: Annotated[Text, StringConstraints(max_length=1000)] = ""
    fresh: bool = False
    private: bool | None = None
    gpu: GpuModel | None = None
    node: NodeName | None = None
    profile: Profile | None = None
    profile_options: ProfileOptions | None = None
    sanitize: bool = False
    race: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.cases is not None and self.sweep is not None:
            raise ValueError("give either cases or sweep")
        if self.cases is None and self.sweep is None and self.precision != CHECK:
            raise ValueError(f"give either cases or sweep, or neither with the precision {CHECK}")
        for name, given in (("implementations", self.implementations), ("tags", self.tags)):
            if len(set(given)) < len(given):
                raise ValueError(f"{name} must name each once")
        if self.profile_options is not None and self.profile != "ncu":
            got = "none" if self.profile is None else self.profile
            raise ValueError(f"profile_options are for the profile ncu, got the profile {got}")
        if self.sanitize and not self.uploads:
            raise ValueError("sanitize needs an uploaded implementation, such as ann/mine")
        count = len(self.implementations)
        if not self.race and count > MAX_IMPLEMENTATIONS:
            raise ValueError(
                f"implementations may be {MAX_IMPLEMENTATIONS}, or {MAX_RACERS} with race, got {count}"
            )
        if self.race and (count < FEWEST_RACERS or self.precision == CHECK):
            raise ValueError(
                f"race needs {FEWEST_RACERS} implementations and a precision that times them, got "
                f"{count} at {self.precision}"
            )
        return self

    @property
    def uploads(self) -> list[str]:
        """The implementations that users have uploaded."""
        return [name for name in self.implementations if "/" in name]

    def nominal_s(self, cases: int, implementation_s: float) -> float:
        """Duration of the job in seconds if each measurement uses all the time that it may."""
        profile_s = PROFILE_S[self.profile] if self.profile is not None else 0.0
        count = len(self.implementations)
        timed = min(count, RACE_AT_ONCE) if self.race else count
        entry_s = count * ENTRY_S if self.race else 0.0
        profile_s = count * profile_s + (len(self.uploads) * SANITIZE_S if self.sanitize else 0.0)
        per_case_s = timed * implementation_s + profile_s + CASE_S + entry_s
        return START_S + cases * per_case_s

    def check_form(self) -> None:
        """Check that the cases are given in the form that the op takes.

        Raises:
            InvalidInput: they are not; the error names the field.
        """
        if self.sweep is not None:
            _check_sweep(self.sweep, is_problem(self.op))
        for number, case in enumerate(self.cases or ()):
            _check_case(f"cases.{number}", case, is_problem(self.op))


class ScratchRequest(_Model):
    """A command that runs once in the sandbox, with a device to itself for a bounded time.

    `command` is a program and its arguments; no shell reads them. It starts in a folder with `files`, the
    SHA-256 of each by its path, which must have been sent with `PUT /v1/files/{sha256}`. When it has ended,
    `fetch` says which files and folders below that become artefacts. It is ended after `limit_s` seconds.
    Only its user and administrators can read a run, unless `private` is false. `gpu` and `node` are those of
    a job. Scratch runs are not judged: they are in no history, board, comparison, export or verdict.
    """

    command: Annotated[
        list[Annotated[Text, StringConstraints(max_length=MAX_ARGUMENT)]],
        Field(min_length=1, max_length=MAX_ARGUMENTS, fail_fast=True),
    ]
    files: dict[str, str] = Field(default_factory=dict)
    fetch: Annotated[list[str], Field(max_length=MAX_FETCH, fail_fast=True)] = Field(
        default_factory=list
    )
    limit_s: Annotated[float, Field(gt=0, le=86_400)] = SCRATCH_S
    name: JobName | None = None
    private: bool = True
    gpu: GpuModel | None = None
    node: NodeName | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.command[0]:
            raise ValueError("command must begin with a program")
        if any("\0" in one for one in self.command):
            raise ValueError("command must have no NUL characters")
        return self

    @property
    def line(self) -> str:
        """The command as a line of a shell, for lists: printable, and not too long."""
        text = printable(shlex.join(self.command[:MAX_SHOWN_ARGUMENTS]))
        return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 4]} ..."


def is_problem(op: str) -> bool:
    """Whether a name is that of a problem, with or without a version."""
    return "/" in op


def without_version(op: str) -> str:
    """The name of an op. Jobs on all versions of a problem have the same."""
    user, slash, name = op.partition("/")
    return user + slash + name.partition("@")[0] if slash else op


def _check_sweep(sweep: Sweep, of_problem: bool) -> None:
    if of_problem:
        if sweep.shapes is not None:
            raise _refused("sweep.shapes", "a problem has no shapes, its inputs follow from sizes")
        return
    for name in ("shapes", "dtypes"):
        if getattr(sweep, name) is None:
            raise _refused(f"sweep.{name}", "Field required")


def _check_case(field: str, case: CaseSpec, of_problem: bool) -> None:
    if case.inputs is not None and (case.dtype is not None or case.sizes):
        raise _refused(field, "inputs have their own dtypes and sizes")
    if of_problem:
        if case.shape is not None:
            raise _refused(field, "a problem has no shape, its inputs follow from sizes")
    elif (case.inputs is None) == (case.shape is None):
        raise _refused(field, "give either inputs or shape")
    elif case.shape is not None and case.dtype is None:
        raise _refused(field, "a shape needs a dtype")


def _refused(field: str, why: str) -> InvalidInput:
    return InvalidInput(f"{field}: {why}", field=field)
