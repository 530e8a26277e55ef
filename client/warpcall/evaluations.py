"""The types of the evaluations API: one verdict on one candidate, small enough for programs.

An evaluation is one implementation of a job, seen against the job's first implementation. The SDK
returns these types, and the server builds its answers and its OpenAPI from them: this module is the
only list of their fields. docs/for-programs.md describes how programs use them.

A client ignores fields that it does not know, so a newer server may send more than a class has
here. Fields are never removed, and keep their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from warpcall.jobs import Payload, Precision, Verdict

EvaluationState = Literal["waiting", "running", "done"]
"""Where an evaluation stands: its job waits, its job runs, or its verdict is final."""

FailureKind = Literal[
    "import_error",
    "compile_error",
    "error",
    "wrong_result",
    "timeout",
    "crashed",
    "oom",
    "cuda_error",
    "invalid",
    "unchecked",
    "cancelled",
    "killed",
    "interrupted",
]
"""What failed: the source could not be imported ("import_error"), a status of a row of results, or how
the job ended before the case was measured."""

NEXT_STEPS: dict[str, str] = {
    "import_error": "Mend the line that the text names. The source is imported as a module without a "
    "GPU, so that code which needs one belongs into the function.",
    "compile_error": "Mend the kernel in the line that the text names: Triton or the compiler refuses "
    "it for these arguments.",
    "error": "Mend the line at the end of the traceback: the function raised an exception in this "
    "case.",
    "wrong_result": "Compare with the reference in this case: check masks at the ends of rows, the "
    "dtype of sums, strides, and memory that is never written.",
    "timeout": "A call did not end in time: look for loops without an end, deadlocks between blocks, "
    "and autotuners with many configurations.",
    "crashed": "The process of the source ended: look for accesses out of bounds, and for calls of "
    "exit or abort.",
    "oom": "Allocate less memory, or evaluate a smaller case.",
    "cuda_error": "The kernel made the device fail, mostly by an access out of bounds: check offsets "
    "and masks.",
    "invalid": "The times cannot be true. Do the whole work in each call, on the current stream, and "
    "keep no results between calls.",
    "unchecked": "Evaluate it on a server with a GPU: this case cannot be checked without one.",
    "cancelled": "Somebody cancelled the job. Send the evaluation again.",
    "killed": "The job ended without the fault of a known implementation. Send the evaluation again.",
    "interrupted": "The server stopped during the job. Send the evaluation again.",
}
"""What to do next, by the kind of a failure."""


@dataclass(frozen=True, kw_only=True)
class Failure(Payload):
    """Why a candidate has no valid time."""

    kind: FailureKind
    """What failed."""
    text: str
    """The message with the line or the traceback, at most 2 KB."""
    next: str
    """What to do next, for the author of the source."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedCase(Payload):
    """The verdict on a candidate in one case."""

    position: int
    """Number of the case in the job, from 0."""
    case: str
    """Key of the case, such as "permute x=F32[8,8] dims=1,0"."""
    right: bool | None
    """Whether the result is that of the reference; null if it could not be checked."""
    time_us: float | None
    """Median device time of a call in microseconds; null without a valid time."""
    ratio: float | None
    """Time over that of the baseline, above 1 is slower; null where one of the two times is no basis
    for a verdict."""
    ratio_low: float | None
    """Lower end of the 95 % interval of `ratio`; null if there are too few samples."""
    ratio_high: float | None
    """Upper end of the 95 % interval of `ratio`; null if there are too few samples."""
    verdict: Verdict | None
    """What the interval says; null without a ratio."""
    share_of_limit: float | None
    """Time of a copy of as many bytes over `time_us`; 1 is the speed of a copy."""
    marks: list[str]
    """What a reader should know, such as "suspect", "interpreted" or "wrong in odd cases"."""
    failure: Failure | None
    """Why there is no valid time; null if there is one, or if the result is right and was only
    checked."""
    why: str
    """Why there is no ratio although the candidate did not fail, or why the verdict is undecided;
    empty otherwise."""


@dataclass(frozen=True, kw_only=True)
class EvaluationLinks(Payload):
    """Paths on the server. None of them needs anything but the caller's key."""

    evaluation: str
    """This evaluation."""
    job: str
    """The job that measures it."""
    results: str
    """All that the job has measured, with all implementations."""
    page: str
    """The job's page, for people."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Payload):
    """The verdict on one candidate, in each case and in all of them together."""

    id: str | None
    """Names the evaluation: its job, and the place of the candidate in it. Null if the source cannot
    be imported, because there is no job then."""
    index: int
    """Place of the source in the batch, from 0; 0 outside of a batch."""
    state: EvaluationState
    """Where it stands. The fields below are as far as known until it is "done"."""
    op: str
    """Name of the op, "user/name" of a problem."""
    implementation: str
    """Name of the candidate, "user/name" of a source."""
    source_sha256: str | None
    """Version of the candidate, or SHA-256 of its source; null before its job has looked at it."""
    verified: bool | None = None
    """Whether only its compiled kernels are timed; null before its job has looked at it."""
    baseline: str
    """Name of what its time is compared with."""
    precision: Precision
    """How long each implementation of each case is measured."""
    compiled: bool | None
    """Whether the source could be imported and its kernels compiled in each case; null if it is not
    known yet."""
    right: bool | None
    """Whether the result is right in each case; false as soon as it is wrong or missing in one. Null if
    it is not known."""
    time_us: float | None
    """Geometric mean of the times of all cases, in microseconds; null if one of them is missing."""
    ratio: float | None
    """Geometric mean of the ratios of all cases, above 1 is slower; null unless each case has one. So
    a candidate that fails in some cases has no ratio."""
    ratio_low: float | None
    """Lower end of the 95 % interval of `ratio`; null without one."""
    ratio_high: float | None
    """Upper end of the 95 % interval of `ratio`; null without one."""
    verdict: Verdict | None
    """What the interval says of all cases together; null without a ratio."""
    share_of_limit: float | None
    """Geometric mean of the shares of the limit of all cases; null if one of them is missing."""
    marks: list[str]
    """The marks of all cases."""
    failure: Failure | None
    """The first failure; null if there is none."""
    why: str
    """Why there is no ratio although nothing failed, or why the verdict is undecided; empty otherwise."""
    cases: list[EvaluatedCase]
    """The cases that are measured, in order. There may be more until the evaluation is "done"."""
    reused: bool
    """Whether a job that existed before has the answer."""
    links: EvaluationLinks | None
    """Where to read more; null without a job."""

    @property
    def done(self) -> bool:
        """Whether the verdict is final."""
        return self.state == "done"

    @property
    def ok(self) -> bool:
        """Whether it is right in each case, and measured in each if anything was to be timed."""
        timed = self.precision == "check" or self.time_us is not None
        return self.done and bool(self.right) and timed
