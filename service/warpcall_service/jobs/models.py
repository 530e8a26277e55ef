"""What the jobs API takes and gives; times of day are RFC 3339 in UTC, all else has its unit's name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from warpcall_service.runs.messages import ExitClass

Precision = Literal["quick", "standard", "publish"]
Priority = Literal["high", "normal", "low"]
State = Literal[
    "queued",
    "preparing",
    "waiting_gpu",
    "running",
    "finalizing",
    "succeeded",
    "failed",
    "invalid",
    "cancelled",
    "timed_out",
    "interrupted",
]
Verdict = Literal["faster", "slower", "same", "inconclusive"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")  # as the database counts them
ACTIVE: tuple[State, ...] = ("preparing", "waiting_gpu", "running", "finalizing")
WAITING: tuple[State, ...] = ("queued", *ACTIVE)

MAX_DIMS = 64
MAX_BODY_BYTES = 64 << 10  # 1,000 cases with a shape, a dtype and a parameter have 60 KB
MAX_ENTRIES = 64  # of a parameter that is a list
MAX_VALUES = 4096  # of one list of a sweep, whose product is to have at most some 1,000 cases

MAX_SEQUENCE = 2**31 - 1  # of an event: what the database keeps in 4 bytes


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain the character NUL (U+0000)")
    return text


# PostgreSQL keeps no NUL in a text, so that no text of ours may have one.
Text = Annotated[str, AfterValidator(_without_nul)]
Size = Annotated[int, Field(ge=0, lt=1 << 63)]
# `fail_fast`: a list of thousands of wrong entries must not become as many errors.
Shape = Annotated[list[Size], Field(max_length=MAX_DIMS, fail_fast=True)]
Name = Annotated[Text, StringConstraints(min_length=1, max_length=64)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,63}$")]
Entries = Annotated[list[int], Field(max_length=MAX_ENTRIES, fail_fast=True)]
ParamValue = bool | int | float | Entries | None
SizeValue = Size | Name
CaseKey = Annotated[Text, StringConstraints(min_length=1, max_length=4096)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class TensorSpec(_Model):
    """An input to draw; the dtype as on the wire, such as BF16, the rest as cases of tests have it."""

    shape: Shape
    dtype: Name
    values: Name | None = None
    low: int | None = None
    high: int | None = None
    layout: Name | None = None


class CaseSpec(_Model):
    """One case: all inputs, or the shape and dtype of the first, from which the op derives the rest.

    `sizes` are those that the shape leaves open, such as the taps of a convolution.
    """

    inputs: dict[Name, TensorSpec] | None = Field(None, max_length=16)
    shape: Shape | None = None
    dtype: Name | None = None
    params: dict[Name, ParamValue] = Field(default_factory=dict, max_length=16)
    sizes: dict[Name, SizeValue] = Field(default_factory=dict, max_length=16)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.inputs is None) == (self.shape is None):
            raise ValueError("give either inputs or shape")
        if self.inputs is not None and (self.dtype is not None or self.sizes):
            raise ValueError("inputs have their own dtypes and sizes")
        if self.shape is not None and self.dtype is None:
            raise ValueError("a shape needs a dtype")
        return self


class Sweep(_Model):
    """Cases by their product: every shape with every dtype, and every value of each parameter."""

    shapes: Annotated[list[Shape], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)]
    dtypes: Annotated[list[Name], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)]
    params: dict[
        Name,
        Annotated[list[ParamValue], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)],
    ] = Field(default_factory=dict, max_length=16)
    sizes: dict[
        Name, Annotated[list[SizeValue], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)]
    ] = Field(default_factory=dict, max_length=16)


class JobRequest(_Model):
    """A benchmark: time these implementations of this op on these cases.

    The first implementation is the one that the others are compared with. `fresh` measures anew what
    was measured before in the same environment; otherwise that job is the answer.
    """

    op: Name
    implementations: Annotated[list[Name], Field(min_length=1, max_length=8, fail_fast=True)] = (
        Field(default_factory=lambda: ["warpcall", "torch"])
    )
    cases: Annotated[list[CaseSpec], Field(min_length=1, fail_fast=True)] | None = None
    sweep: Sweep | None = None
    precision: Precision = "standard"
    priority: Priority = "normal"
    tags: Annotated[list[Word], Field(max_length=16, fail_fast=True)] = Field(default_factory=list)
    note: Annotated[Text, StringConstraints(max_length=1000)] = ""
    fresh: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.cases is None) == (self.sweep is None):
            raise ValueError("give either cases or sweep")
        for name, given in (("implementations", self.implementations), ("tags", self.tags)):
            if len(set(given)) < len(given):
                raise ValueError(f"{name} must name each once")
        return self


class JobPreview(_Model):
    """What a submission would come to, without submitting it."""

    cases: int
    nominal_s: float
    estimated_s: float
    device_bytes: int = Field(description="that the largest case needs at most")
    environment: str
    reuses: str | None = Field(description="a finished job that answers it, unless it is fresh")


class Job(_Model):
    """A job as it is now.

    `position` counts from 1 and is null unless the job is queued; `starts_in_s` and `ends_in_s` are
    guesses from what past jobs took. `exit_class` says how it ended; `detail` why, for readers.
    """

    id: str
    user: str
    op: str
    implementations: list[str]
    precision: Precision
    priority: Priority
    tags: list[str]
    note: str
    state: State
    exit_class: ExitClass | None
    detail: str
    cases_total: int
    cases_done: int
    attempts: int
    cancel_requested: bool
    created_at: str
    started_at: str | None
    finished_at: str | None
    estimated_s: float
    took_s: float
    position: int | None
    starts_in_s: float | None
    ends_in_s: float | None
    device: str | None
    environment: str | None


class Submitted(Job):
    """A job that was submitted; `reused` if it was there before."""

    reused: bool


class JobDetails(Job):
    """A job, with what was asked of it and what ran it."""

    request: dict[str, Any]
    fingerprint: dict[str, Any] | None


class JobList(_Model):
    """Jobs, the latest first; `next` is the `before` of the following page, null on the last."""

    jobs: list[Job]
    next: str | None


class QueueEntry(_Model):
    """A job in the queue, or one that runs (`position` 0), as everyone may see it."""

    position: int
    id: str
    user: str
    op: str
    precision: Precision
    priority: Priority
    state: State
    cases_total: int
    cases_done: int
    estimated_s: float
    starts_in_s: float
    ends_in_s: float
    device: str | None


class Queue(_Model):
    """Who runs and who waits, in order; `devices` are those that jobs run on."""

    devices: int
    entries: list[QueueEntry]


class Measurement(_Model):
    """What one implementation did in one case: a row of the results. Times are of the device, in us.

    `status` is ok, or why there is no time. `ratio` is to the first implementation, above 1 is
    slower; None for that one. `share_of_limit` is 1 at the speed of a copy. All intervals are 95 %.
    """

    position: int
    case: str
    implementation: str
    status: str
    error: str | None
    method: str | None
    n: int
    median_us: float | None
    ci_low_us: float | None
    ci_high_us: float | None
    min_us: float | None
    p5_us: float | None
    p25_us: float | None
    p75_us: float | None
    p95_us: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    verdict: Verdict | None
    gb_per_s: float | None
    share_of_limit: float | None
    peak_bytes: int | None
    hot_us: float | None
    host_us: float | None
    energy_mj: float | None
    tags: list[str]


class CaseResults(_Model):
    """What the sampler says of one case; `a_a` compares the first implementation with itself."""

    position: int
    case: str
    spec: dict[str, Any]
    device: str
    clock: str
    column: str
    rounds: int
    masked: list[dict[str, Any]]
    converged: bool
    margin: float
    a_a: dict[str, Any] | None
    bytes_moved: int
    limit_us: float | None
    tags: list[str]
    finished_at: str
    samples_us: dict[str, list[float | None]] | None


class Results(_Model):
    """What a job has measured so far; `samples_us` by implementation, if they were asked for."""

    id: str
    state: State
    environment: str | None
    fingerprint: dict[str, Any] | None
    measurements: list[Measurement]
    cases: list[CaseResults]


class ComparedRow(_Model):
    """One implementation in one case, in two jobs; the ratio is b over a, above 1 means b is slower."""

    case: str
    implementation: str
    a_us: float
    b_us: float
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    verdict: Verdict


class Comparison(_Model):
    """Two jobs side by side.

    `differences` are the facts of the fingerprints that differ; `only_a` and `only_b` cases, with
    their implementation, that the other did not measure.
    """

    a: str
    b: str
    same_environment: bool
    differences: dict[str, list[Any]]
    rows: list[ComparedRow]
    only_a: list[str]
    only_b: list[str]


class HistoryPoint(_Model):
    """One measurement of a series; `changed` names what differs from the one before it in time."""

    job: str
    user: str
    finished_at: str
    environment: str
    changed: list[str]
    measurement: Measurement


class History(_Model):
    """A series, the latest first."""

    op: str
    implementation: str
    case: str
    points: list[HistoryPoint]
