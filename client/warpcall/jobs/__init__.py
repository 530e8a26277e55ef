"""The types of the jobs API: the state of a job, its place in the queue, its events.

What a job is asked for is in `warpcall.jobs.request`. The SDK returns these types and those of
`warpcall.jobs.results`, and the server builds its answers
and its OpenAPI from them: these two modules are the only list of their fields. Times of day are
texts as in RFC 3339, UTC. Every other quantity has its unit in its name.

A client ignores fields that it does not know, so a newer server may send more than a class has
here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from warpcall._extras.field_texts import describe_fields
from warpcall._extras.tables import table_of_objects

State = Literal[
    "queued",
    "preparing",
    "waiting_gpu",
    "running",
    "finalizing",
    "succeeded",
    "partial",
    "failed",
    "invalid",
    "cancelled",
    "timed_out",
    "interrupted",
]
"""Where a job stands: the first five follow each other, the others are ends."""

ExitClass = Literal[
    "ok",
    "error",
    "wrong_result",
    "compile_error",
    "cuda_error",
    "oom",
    "timeout",
    "crashed",
    "unchecked",
    "killed",
    "cancelled",
    "invalid",
    "interrupted",
]
"""How a job ended: "ok" only if every implementation is right in every case."""

Precision = Literal["quick", "standard", "publish", "check"]
"""How long each implementation of each case is measured: 2, 10 or 60 seconds. "check" compares its
results with the reference and times nothing."""

Priority = Literal["high", "normal", "low"]
"""Jobs of a higher priority start first; "high" is for administrators."""

Profile = Literal["torch", "ncu", "compile"]
"""How implementations are profiled: "torch" makes a Chrome trace with torch's profiler, "ncu" a report
and a text with NVIDIA's Nsight Compute, "compile" a compile report of the kernels that are launched."""

Verdict = Literal["faster", "slower", "same", "undecided"]
"""What a ratio's interval says, given the margin within which two times are the same."""

JobKind = Literal["benchmark", "scratch"]
"""What a job is: a "scratch" run is one command, has no results, and is not judged."""

EventKind = Literal["state", "case", "progress", "output", "file"]

AN = frozenset("AEFHILMNORSX8")  # characters whose names begin with a vowel, as in "an H100"

STATES: tuple[State, ...] = get_args(State)
ACTIVE: tuple[State, ...] = ("preparing", "waiting_gpu", "running", "finalizing")
UNFINISHED: tuple[State, ...] = ("queued", *ACTIVE)
COMPLETED: tuple[State, ...] = ("succeeded", "partial")
"""The states of jobs that measured all their cases. In a "partial" one some implementation has no
valid time in some case."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
TIMED_PRECISIONS: tuple[Precision, ...] = tuple(p for p in PRECISIONS if p != "check")
PROFILES: tuple[Profile, ...] = get_args(Profile)
PRIORITIES: tuple[Priority, ...] = get_args(Priority)


class Payload:
    """Base of all types that the server answers with."""

    # The server makes its OpenAPI from these classes with pydantic, which reads this attribute. The
    # client does not need pydantic.
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "json_schema_extra": describe_fields,
        "allow_inf_nan": False,
        # The server sends every field, also one that older servers do not know.
        "json_schema_serialization_defaults_required": True,
    }

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as values that JSON has."""
        # Each class that inherits from this one is a dataclass.
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, Payload):
        return value.to_dict()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


@dataclass(frozen=True, kw_only=True)
class JobTimes(Payload):
    """Where the time of the runs of a job went. The queue before them is not in it."""

    device_wait_s: float
    """Seconds for which it waited for its device, which calls had between its timed blocks."""
    device_s: float
    """Seconds for which it had the device alone, block by block."""
    compile_s: float
    """Seconds for which implementations were imported and compiled: the imports of uploads, and the
    first call of each implementation in each measured case without the time of its second call."""
    setup_s: float = 0.0
    """Seconds of the setups of uploads in each measured case. Calls are timed after them."""


@dataclass(frozen=True, kw_only=True)
class Score(Payload):
    """How an implementation does against a baseline over many cases, in few numbers. See
    `warpcall.jobs.scores` for how they are computed."""

    implementation: str
    """Name of the implementation."""
    against: str
    """Name of the baseline."""
    ratio: float
    """Geometric mean of its times over those of the baseline; below 1 is faster."""
    ratio_low: float | None
    """Lower end of the 95 % interval of `ratio`; null if a ratio of some case has no interval."""
    ratio_high: float | None
    """Upper end of the 95 % interval of `ratio`; null if a ratio of some case has no interval."""
    compared: int
    """Number of cases that `ratio` covers: those in which both times are a basis for a verdict."""
    won: int
    """Number of cases in which it is faster than the baseline, by its interval and the margin."""
    cases: int
    """Number of all cases. One in which it failed is not won."""
    share_won: float
    """`won` over `cases`."""
    share_of_limit: float | None
    """Geometric mean of its shares of the limit, over the cases with a valid time; null without any."""


@dataclass(frozen=True, kw_only=True)
class JobOutcome(Payload):
    """How an implementation did against another one over the cases of a job so far. The words for it
    are in `warpcall.jobs.outcomes`."""

    implementation: str
    """Name of the implementation that the job is about: its upload, or else its first one."""
    against: str
    """Name of the one that it is compared with; empty if there is none."""
    counts: dict[str, int]
    """Number of cases by what they say of it: "faster", "slower", "same" or "undecided"; "right" if
    its result was only checked; "not timed" if it is right and no GPU ran its kernel; "timed" if
    there is nothing but the limit to compare with; "no verdict" or "no other" if a time is no basis
    for one, or missing; or the status of its row."""
    typical: float | None
    """Geometric mean of its times over those of the other one; null without any."""
    score: Score | None = None
    """The same with its interval, and how far it is from the limit; null without any ratio, and from
    older servers."""

    @property
    def cases(self) -> int:
        """Number of cases that are counted."""
        return sum(self.counts.values())

    @property
    def is_headline(self) -> bool:
        """Whether it says how the implementation did, and not only why this is unknown."""
        return self.typical is not None or "right" in self.counts


class Titled:
    """Base of what stands for a job in lists."""

    op: str
    name: str
    first_case: str
    cases_total: int

    @property
    def title(self) -> str:
        """What tells the job from others in a list: its name, or else what it measures."""
        return self.name or self.measured

    @property
    def measured(self) -> str:
        """Its first case, which begins with its op, and the number of the other cases. Older servers
        do not say which case."""
        more = f" + {self.cases_total - 1:,} more" if self.cases_total > 1 else ""
        return f"{self.first_case or self.op}{more}"


@dataclass(frozen=True, kw_only=True)
class JobInfo(Titled, Payload):
    """A job as it was when the server answered."""

    id: str
    """Name of the job on its server."""
    user: str
    """Name of the user who submitted it."""
    op: str
    """Name of the op that is measured, "user/name" of a problem."""
    implementations: list[str]
    """Names of the implementations that are timed; the others are compared with the first."""
    precision: Precision
    """How long each implementation of each case is measured."""
    priority: Priority
    """Jobs of a higher priority start first."""
    tags: list[str]
    """Words to find the job by."""
    note: str
    """A text for readers."""
    state: State
    """Where the job stands."""
    exit_class: ExitClass | None
    """How the job ended; null until then."""
    detail: str
    """Why the job ended as it did, for readers; empty until then."""
    cases_total: int
    """Number of cases."""
    cases_done: int
    """Number of cases that have a result."""
    attempts: int
    """Runs of the job; one that ended because its server stopped does not count."""
    cancel_requested: bool
    """Whether somebody asked to cancel the job."""
    created_at: str
    """When the job was submitted."""
    started_at: str | None
    """When the latest attempt started; null before the first."""
    finished_at: str | None
    """When the job ended; null until then."""
    estimated_s: float
    """Estimated duration of the whole job in seconds, from what such jobs took lately."""
    took_s: float
    """Duration of all attempts that ended, in seconds."""
    position: int | None
    """Place in the queue, from 1; null unless the job is queued."""
    starts_in_s: float | None
    """Estimated seconds until the job starts; null after its end, and without a device for it."""
    ends_in_s: float | None
    """Estimated seconds until the job ends; null after its end, and without a device for it."""
    device: str | None
    """Lane of the latest attempt, such as "cuda:0"; null before the first."""
    environment: str | None
    """Class of the machine and its software; null until the job has looked at them."""
    private: bool
    """Whether only its user and administrators can read it; all users can read other jobs."""
    first_case: str = ""
    """Key of its first case; empty from older servers."""
    name: str = ""
    """What its user calls it in lists; empty without a name, and from older servers."""
    outcome: JobOutcome | None = None
    """What it says of the implementation that it is about; null before its first case, of jobs that
    an older server measured, and from older servers."""
    node: str = ""
    """Id of the server of the latest attempt; empty before the first, and from older servers."""
    host: str = ""
    """Host name of the machine that measured; empty until the job has looked at it, in share links,
    and from older servers."""
    device_name: str = ""
    """Model of the device of the latest attempt, such as "NVIDIA H200"; empty before the first, and
    from older servers."""
    times: JobTimes | None = None
    """Where the time of its runs went; null until one has ended, and from older servers."""
    kind: JobKind = "benchmark"
    """What it is: "scratch" for a command, which has the op "scratch", no implementations and no cases."""
    gpu: str = ""
    """Model of the GPU that it asks for; empty if any will do, and from older servers."""
    group: str = ""
    """Id of the latest group of which it is a part; empty without one, in share links, and from older
    servers."""
    has_device: bool = True
    """False if it waits, and no server that runs has a device that it asks for. Its other estimates are
    null then. True from older servers."""

    @property
    def waits_for_device(self) -> bool:
        """Whether it waits until a server comes that has a device that it asks for."""
        return self.state == "queued" and not self.has_device


def lacking(job: JobInfo | QueueEntry) -> str:
    """What a job waits for while no server that runs has a device for it, such as "waiting for an H100"."""
    return f"waiting for {with_article(job.gpu) if job.gpu else 'the server that it asks for'}"


def with_article(gpu: str) -> str:
    """A model with its article, such as "an H100" or "a B200"."""
    first, *_ = gpu.split()
    vowel = first[0] in AN if first.upper() == first else first[0].lower() in "aeio"
    return f"{'an' if vowel else 'a'} {gpu}"


@dataclass(frozen=True, kw_only=True)
class SubmittedJob(JobInfo):
    """The job that answers a submission; its other fields are those of JobInfo."""

    reused: bool
    """Whether the job existed before the submission."""


@dataclass(frozen=True, kw_only=True)
class JobDetails(JobInfo):
    """A job with its request and the environment that it ran in; see JobInfo for its other fields."""

    request: dict[str, Any]
    """The submission, without the fields that it left out."""
    fingerprint: dict[str, Any] | None
    """Facts about the machine and its software; null until the job has looked at them."""
    sources: dict[str, str]
    """SHA-256 of the source of each implementation; "copy" has none, and old jobs have none."""
    problem_sha256: str | None
    """SHA-256 of the problem's source; null if the op is not a problem."""
    exit_status: int | None = None
    """Exit status of the command of a scratch run, 128 and its number for a signal; null until then, of a
    run that was ended, and of benchmarks."""


@dataclass(frozen=True, kw_only=True)
class JobPreview(Payload):
    """What a submission would cost, without submitting it."""

    cases: int
    """Number of cases."""
    first_cases: list[str]
    """Names of the first cases, at most 20."""
    nominal_s: float
    """Duration in seconds if each measurement uses all the time that its precision gives it."""
    estimated_s: float
    """Estimated duration in seconds, from what such jobs took lately."""
    device_bytes: int
    """Upper bound on the device memory that the largest case needs, in bytes."""
    environment: str
    """Class of the machine and its software."""
    reuses: str | None
    """Id of a finished job that would answer the submission, unless the submission is `fresh`."""


@dataclass(frozen=True, kw_only=True)
class JobList(Payload):
    """A page of jobs, the latest first."""

    jobs: list[JobInfo]
    """The jobs of this page."""
    next: str | None
    """Value of `before` that gives the following page; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class Share(Payload):
    """A share link, with which people without a key read one job or one comparison."""

    id: str
    """Names the link, in order to revoke it. It does not open the link."""
    job: str
    """Id of the job that it shows."""
    other: str | None
    """Id of the job that `job` is compared with; null for a link to one job."""
    user: str
    """Name of the user who made it."""
    created_at: str
    """When it was made."""
    expires_at: str | None
    """When it expires; null if it does not."""


@dataclass(frozen=True, kw_only=True)
class NewShare(Share):
    """A share link that was just made; its other fields are those of Share."""

    url: str
    """The link, which cannot be shown again. The server answers with its path."""


@dataclass(frozen=True, kw_only=True)
class ShareList(Payload):
    """Share links, the latest first."""

    shares: list[Share]
    """Links that have not expired."""


@dataclass(frozen=True, kw_only=True)
class SharedJobs(Payload):
    """What a share link shows."""

    job: JobDetails
    """The job, or the first one of the comparison. Facts that name its machine are left out."""
    other: JobDetails | None
    """The second job of the comparison; null for a link to one job."""
    expires_at: str | None
    """When the link expires; null if it does not."""


@dataclass(frozen=True, kw_only=True)
class QueueEntry(Titled, Payload):
    """A job that runs or waits, as every user may see it."""

    position: int
    """Place in the queue, from 1; 0 for a job that runs."""
    id: str
    """Name of the job on its server."""
    user: str
    """Name of the user who submitted it."""
    op: str
    """Name of the op that is measured, "user/name" of a problem."""
    precision: Precision
    """How long each implementation of each case is measured."""
    priority: Priority
    """Jobs of a higher priority start first."""
    state: State
    """Where the job stands."""
    cases_total: int
    """Number of cases."""
    cases_done: int
    """Number of cases that have a result."""
    estimated_s: float
    """Estimated duration of the whole job in seconds."""
    starts_in_s: float
    """Estimated seconds until the job starts; 0 for a job that runs."""
    ends_in_s: float
    """Estimated seconds until the job ends."""
    device: str | None
    """Lane of the latest attempt, such as "cuda:0"; null before the first."""
    node: str = ""
    """Id of the server of the latest attempt; empty before the first, and from older servers."""
    first_case: str = ""
    """Key of its first case; empty for those who may not read the job, and from older servers."""
    name: str = ""
    """What its user calls it; empty without a name, for those who may not read the job, and from
    older servers."""
    kind: JobKind = "benchmark"
    """What it is: "scratch" for a command, which has the op "scratch" and no cases."""
    gpu: str = ""
    """Model of the GPU that it asks for; empty if any will do, and from older servers."""
    group: str = ""
    """Id of the latest group of which it is a part; empty without one, and from older servers."""
    has_device: bool = True
    """False if it waits, and no server that runs has a device that it asks for. Its estimates count from
    when there is one then. True from older servers."""


@dataclass(frozen=True, kw_only=True)
class Queue(Payload):
    """All jobs that run or wait, in the order in which they end or start."""

    devices: int
    """Number of devices, of all servers that share the queue, that jobs can run on."""
    entries: list[QueueEntry]
    """Jobs that run, then jobs that wait."""

    def _repr_html_(self) -> str | None:
        columns = (
            "position",
            "id",
            "user",
            "title",
            "state",
            "cases_done",
            "cases_total",
            "device",
        )
        return table_of_objects(columns, self.entries)


@dataclass(frozen=True, kw_only=True)
class JobPhase(Payload):
    """A part of a job with the time that it took so far."""

    name: str
    """"queue", "start", "check" (compile, and compare with the reference), "warm", "rounds", or
    "extras" (hot times and energy)."""
    seconds: float
    """Seconds of all cases and attempts together."""


@dataclass(frozen=True, kw_only=True)
class JobActivity(Payload):
    """What a job does now."""

    phase: str
    """Phase of the sampler: "preparing", "correctness", "warmup", "rounds" or "extras"."""
    position: int
    """Number of the case in its job, from 0."""
    implementation: str | None
    """Name of the implementation that is prepared or checked; null in other phases."""
    rounds: int | None
    """Number of rounds so far; null outside of rounds."""
    half_width: float | None
    """Half the width of the widest interval of a log ratio so far; null if it is not known."""
    medians_us: dict[str, float]
    """Medians so far in microseconds, by implementation; empty outside of rounds."""


@dataclass(frozen=True, kw_only=True)
class JobProgress(Payload):
    """Where the time of a job went, and what it does now."""

    id: str
    """Id of the job."""
    state: State
    """Where the job stands."""
    phases: list[JobPhase]
    """Phases that took any time, in their order. Empty if it is not known: a day after a job's end
    its progress is deleted."""
    now: JobActivity | None
    """What it does now; null if it does not run, or has not said."""


@dataclass(frozen=True, kw_only=True)
class PrintedText(Payload):
    """What an uploaded implementation, or one of a problem, printed in a case."""

    position: int
    """Number of the case in its job, from 0."""
    case: str
    """Key of the case, such as "permute x=F32[8,8] dims=1,0"."""
    implementation: str
    """Name of the implementation."""
    text: str
    """Its standard output and standard error until its first call had returned, at most 64 KiB, of
    which the middle is left out. If it failed later, the last 16 KiB of what it printed after that."""


@dataclass(frozen=True, kw_only=True)
class PrintedList(Payload):
    """What uploads printed in the cases of a job."""

    id: str
    """Id of the job."""
    printed: list[PrintedText]
    """The texts, case by case. Those that printed nothing have none."""


@dataclass(frozen=True, kw_only=True)
class JobEvent(Payload):
    """Something that happened to a job."""

    sequence: int
    """Number of the event in its job, from 1; each event of a job has a higher one."""
    at: str
    """When it happened."""
    kind: EventKind
    """What `data` tells of: a new state, a case that was measured, or what the job does now. Of a scratch
    run also what its command wrote, and a file that it sent back."""
    data: dict[str, Any]
    """`state` with `exit_class` and `detail` at the end; `case` with `cases_done`; or `phase`. Of "output",
    `data` in base64, and in `at` the bytes before it; what is missing in between was left out. Of "file", its
    `path` and the name of its `artefact`, or an `error`."""

    @property
    def is_last(self) -> bool:
        """Whether the job ended with this event.

        A job that was interrupted and is queued again has not ended.
        """
        return self.kind == "state" and "exit_class" in self.data
