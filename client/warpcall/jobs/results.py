"""The types of the jobs API that hold measurements: results, comparisons of two jobs, histories
and boards.

See `warpcall.jobs` for how they are used. All intervals are 95 % confidence intervals. How each
number is measured is described in docs/benchmarking.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from warpcall._extras.tables import Table
from warpcall.jobs import JobTimes, Payload, Score, State, Verdict

TIMES = ("median_us", "ci_low_us", "ci_high_us")  # columns of tables
RATIOS = ("ratio", "ratio_low", "ratio_high", "verdict")

FOUND = re.compile(r"[1-9][0-9]* ")  # how the text of a sanitizer begins if it found something

NOT_ON_GPU = frozenset({"interpreted", "plain torch"})
"""Tags of rows whose kernel no GPU ran: Triton interpreted it on a CPU, or torch ran in its place."""

TAGS_WITHOUT_VERDICT = ("suspect", *sorted(NOT_ON_GPU), "unconfirmed")
"""Tags of rows whose times are no basis for a verdict: the time is shorter than the memory's speed
allows, no GPU ran the kernel, or the server's own clock did not confirm the times
that the implementation's process reported."""


def why_no_verdict(status: str, tags: Collection[str]) -> str:
    """The status or the tag of a row because of which its time is no basis for a verdict.

    Every place that computes or shows a verdict, a ratio or a rank follows this rule. It applies to
    the row itself, and to the row that it is compared with.

    Returns:
        Such as "wrong_result" or "suspect"; empty if the time is a basis for a verdict.
    """
    if status != "ok":
        return status
    return next((tag for tag in TAGS_WITHOUT_VERDICT if tag in tags), "")


def label_of(implementation: str, *, verified: bool) -> str:
    """How tables name an implementation: with a word behind it if it is a verified kernel."""
    return f"{implementation} (verified)" if verified else implementation


def can_conclude(status: str, tags: Collection[str]) -> bool:
    """Whether the time of a row is a basis for a verdict; see `why_no_verdict`."""
    return not why_no_verdict(status, tags)


def status_shown(status: str, median_us: float | None) -> str:
    """What a table shows in place of a row's time; empty if the row has a valid time.

    A job that only checks results measures no times. Its rows whose result is right have the status
    "ok" without a time, and "right" is shown for them.
    """
    if status != "ok":
        return status
    return "right" if median_us is None else ""


@dataclass(frozen=True, kw_only=True)
class RaceInterval(Payload):
    """The ratio of two times in a race; above 1 is slower."""

    ratio: float
    """Time of the one over time of the other."""
    low: float | None
    """Lower end of its interval, which holds with the error bound of the whole race; null if there
    is none yet."""
    high: float | None
    """Upper end of its interval; null if there is none yet."""


@dataclass(frozen=True, kw_only=True)
class RaceRow(Payload):
    """What came of one implementation in the race of a case."""

    rank: int | None
    """1 for the fastest, and for all that may be as fast. Null if its times are no basis for a
    verdict, or if it has none."""
    to_leader: RaceInterval | None
    """Its time over that of the leader at the end; null without a rank."""
    left_round: int | None = None
    """Number of rounds after which it left; null if it raced until the end, or failed."""
    left_why: Literal["slower", "same"] | None = None
    """"slower" if it was surely slower than the leader of then, "same" if it was within 1 % of it
    and made room for others that waited; null if it did not leave."""
    left_leader: str | None = None
    """Name of the leader of then; null if it did not leave."""
    left_ratio: RaceInterval | None = None
    """Its time over that of the leader of then; null if it did not leave."""
    left_s: float | None = None
    """Seconds of the race after which it left, without those in which others entered; null if it did
    not leave, or if an older server measured it."""


@dataclass(frozen=True, kw_only=True)
class RaceHistory(Payload):
    """How the implementations stood during a race. All lists have one length."""

    rounds: list[int]
    """How many rounds were taken at each point, in order."""
    seconds: list[float]
    """Seconds of the race until each point, without those in which implementations entered."""
    ratios: dict[str, list[float | None]]
    """By the name of an implementation, its time over that of the leader of then; null where it did
    not race."""


@dataclass(frozen=True, kw_only=True)
class CaseRace(Payload):
    """How the race of a case ended."""

    outcome: Literal["winner", "same", "undecided", "none"]
    """"winner" if one is surely the fastest, "same" if several are the same within 1 % and all
    others slower, "undecided" if the time was up before, "none" if no implementation has times that
    are a basis for a verdict."""
    leader: str | None
    """Name of the fastest; null if there is none."""
    fastest: list[str]
    """Names of the leader and of all that may be as fast."""
    device_s: float
    """Seconds of timed calls of all that raced."""
    full_device_s: float | None
    """About what measuring all of them fully would have taken at the same certainty, in seconds; null
    if only one has a time."""
    history: RaceHistory | None = None
    """How the implementations stood meanwhile; null if an older server measured it."""


@dataclass(frozen=True, kw_only=True)
class Measurement(Payload):
    """What one implementation took in one case: a row of the results.

    All times are device times of one call, in microseconds, with inputs that are not in the cache.
    """

    position: int
    """Number of the case in its job, from 0."""
    case: str
    """Key of the case, such as "permute x=F32[8,8] dims=1,0"."""
    implementation: str
    """Name of the implementation."""
    status: str
    """"ok", or why there is no time to rely on: "error" if the implementation raised an exception,
    "wrong_result", "compile_error", "oom", "cuda_error", "invalid" for times that cannot be true,
    "timeout" if a call did not end in time, "crashed" if its process was ended, "unchecked" if it
    needs a GPU and there is none. "ok" without a median is a result that was only checked."""
    error: str | None
    """Why the status is not "ok", for readers."""
    traceback: str | None
    """Traceback of the exception, from the implementation's own code on, at most 4 KB; null if the
    implementation raised none."""
    source_sha256: str | None
    """SHA-256 of the source that was timed; null for "copy", and in jobs of older servers."""
    problem_sha256: str | None
    """SHA-256 of the problem's source; null if the op is not a problem."""
    method: str | None
    """How the calls were timed, such as "events" or "graph of 16"."""
    n: int
    """Number of samples that count."""
    median_us: float | None
    """Median of the samples in microseconds; null if there are none."""
    ci_low_us: float | None
    """Lower end of the median's interval, in microseconds."""
    ci_high_us: float | None
    """Upper end of the median's interval, in microseconds."""
    min_us: float | None
    """Least sample in microseconds."""
    p5_us: float | None
    """5th percentile of the samples, in microseconds."""
    p25_us: float | None
    """25th percentile of the samples, in microseconds."""
    p75_us: float | None
    """75th percentile of the samples, in microseconds."""
    p95_us: float | None
    """95th percentile of the samples, in microseconds."""
    ratio: float | None
    """Time over that of the first implementation, above 1 is slower; null for the first one, and
    where one of the two times is no basis for a verdict."""
    ratio_low: float | None
    """Lower end of the ratio's interval; null if there are too few samples."""
    ratio_high: float | None
    """Upper end of the ratio's interval; null if there are too few samples."""
    verdict: Verdict | None
    """What the ratio's interval says; null where there is no ratio."""
    gb_per_s: float | None
    """Compulsory bytes over the median, in 10^9 bytes per second."""
    share_of_limit: float | None
    """Time of a copy of as many bytes over this median; 1 is the speed of a copy."""
    peak_bytes: int | None
    """Device memory at the peak of a call, beside its inputs, in bytes."""
    hot_us: float | None
    """Median with inputs that may be in the L2 cache, in microseconds; null for "quick"."""
    host_us: float | None
    """Time that issuing a call takes the CPU, median, in microseconds."""
    energy_mj: float | None
    """Energy of a call in millijoules; null where the device does not report it."""
    tags: list[str]
    """What a reader should know about this row. There is no verdict on a row with "suspect",
    "interpreted", "plain torch" or "unconfirmed". One with "wrong in odd cases" keeps its verdict and has no
    rank."""
    verified: bool = False
    """Whether only the compiled kernels of an upload were timed, so that no other code of its author
    ran beside the clock. False for the server's own implementations, and from older servers."""
    why_undecided: str = ""
    """Why the verdict is "undecided", and what would help; empty for other verdicts, without an
    interval, in histories, and from older servers."""
    race: RaceRow | None = None
    """What came of it in the race of its case; null if there was none."""
    sanitizer: dict[str, str] = field(default_factory=dict)
    """What compute-sanitizer found, by its tools "memcheck" and "racecheck": such as "0 errors", or
    the number of errors and the first one with its kernel and its line, or why it was not run. Empty
    if it was not asked for, and from older servers."""

    @property
    def sanitizer_found(self) -> bool:
        """Whether compute-sanitizer found an error or a race."""
        return any(FOUND.match(text) for text in self.sanitizer.values())


@dataclass(frozen=True, kw_only=True)
class Readings(Payload):
    """The state of a GPU while rounds were taken, read between them. All lists have one length."""

    rounds: list[int]
    """Number of the last round before each reading, from 0, in order."""
    sm_clock_mhz: list[int | None]
    """Clock of the multiprocessors in MHz; null where the GPU does not tell it."""
    power_w: list[float | None]
    """Power that the board draws, in watts; null where the GPU does not tell it."""
    temperature_c: list[int | None]
    """Temperature of the GPU in degrees Celsius; null where the GPU does not tell it."""


@dataclass(frozen=True, kw_only=True)
class CaseResults(Payload):
    """How one case was measured."""

    position: int
    """Number of the case in its job, from 0."""
    case: str
    """Key of the case, such as "permute x=F32[8,8] dims=1,0"."""
    spec: dict[str, Any]
    """The case with everything that the submission left out."""
    device: str
    """Device that it was measured on, such as "cuda:0"."""
    clock: str
    """What measured the times: "cuda events" or "perf_counter"."""
    column: str
    """Which time `median_us` is: "device_cold", with inputs that are not in the cache."""
    rounds: int
    """Number of rounds that were measured, including the masked ones."""
    masked: list[dict[str, Any]]
    """Rounds that do not count: each has its `round` and a `reason`."""
    converged: bool
    """Whether the intervals became as narrow as the precision asks for."""
    margin: float
    """Two times whose log ratio is within this margin are the same."""
    a_a: dict[str, Any] | None
    """The first implementation compared with itself: `ratio`, `low`, `high`, `n`, `verdict`."""
    bytes_moved: int
    """Bytes that any implementation has to read and write."""
    limit_us: float | None
    """Time of a copy of as many bytes, in microseconds."""
    tags: list[str]
    """What a reader should know about this case, such as "unstable" or "power capped"."""
    finished_at: str
    """When the case was measured."""
    samples_us: dict[str, list[float | None]] | None
    """Samples by implementation, in microseconds, one for each round; null unless asked for."""
    readings: Readings | None = None
    """State of the GPU during the rounds; null for a CPU, in jobs of older servers, and unless
    samples are asked for."""
    race: CaseRace | None = None
    """How the race of this case ended; null if there was none."""


@dataclass(frozen=True, kw_only=True)
class CaseDetails(CaseResults):
    """One case of a job with its rows and all samples; see CaseResults for its other fields."""

    job: str
    """Id of the job."""
    op: str
    """Name of the op."""
    measurements: list[Measurement]
    """A row for each implementation, in order."""
    input_sets: list[int]
    """Number of the set of inputs that each round began with, 0 or 1. The times of one
    implementation with the two sets may differ by a percent, because of their addresses."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Results(Table, Payload):
    """What a job has measured so far."""

    SHOWN: ClassVar = (
        *("case", "implementation", "status"),
        *(*TIMES, *RATIOS, "gb_per_s", "share_of_limit", "tags"),
    )

    id: str
    """Id of the job."""
    state: State
    """Where the job stands."""
    environment: str | None
    """Class of the machine and its software."""
    fingerprint: dict[str, Any] | None
    """Facts about the machine and its software."""
    remarks: list[str]
    """What a reader should know about all rows, such as that there was no GPU."""
    measurements: list[Measurement]
    """A row for each implementation of each case, in order."""
    cases: list[CaseResults]
    """How each case was measured, in order."""
    times: JobTimes | None = None
    """Where the time of the job went; null until a run of it has ended, and from older servers."""

    def to_rows(self) -> list[dict[str, Any]]:
        """`measurements`, each as a dict."""
        return [row.to_dict() for row in self.measurements]


@dataclass(frozen=True, kw_only=True)
class ComparedRow(Payload):
    """What one implementation took in one case, in two jobs."""

    case: str
    """Key of the case."""
    implementation: str
    """Name of the implementation."""
    a_us: float
    """Median in job `a`, in microseconds."""
    b_us: float
    """Median in job `b`, in microseconds."""
    ratio: float | None
    """Time in `b` over time in `a`; above 1 means that `b` is slower. Both times are relative to
    the copy in the same job, if `relative_to_copy`. Null where there is no verdict."""
    ratio_low: float | None
    """Lower end of the ratio's interval; null if there are too few samples."""
    ratio_high: float | None
    """Upper end of the ratio's interval; null if there are too few samples."""
    verdict: Verdict | None
    """What the ratio's interval and the margin say of `b`; "undecided" if there is no margin.
    Null where one of the two times is no basis for a verdict; `why` says which."""
    relative_to_copy: bool
    """Whether the ratio is of times relative to the copy that was measured in the same job."""
    margin: float | None
    """Log ratios within it can be a difference between two runs of the same code; null if the
    server has not measured anything repeatedly in this environment."""
    repeats: int
    """Number of jobs that repeated an earlier measurement, from which the margin was estimated."""
    why: str = ""
    """Why there is no verdict, such as "suspect in b"; empty if there is one."""
    verified: bool = False
    """Whether both times are of verified kernels; see Measurement."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Table, Payload):
    """Two jobs side by side."""

    SHOWN: ClassVar = ("case", "implementation", "a_us", "b_us", *RATIOS, "why")

    a: str
    """Id of the first job."""
    b: str
    """Id of the second job."""
    same_environment: bool
    """Whether both ran in the same class of environment."""
    differences: dict[str, list[Any]]
    """Facts of the fingerprints that differ: the value in `a`, then the value in `b`."""
    rows: list[ComparedRow]
    """What both jobs measured."""
    only_a: list[str]
    """Cases, each with its implementation, that only `a` measured."""
    only_b: list[str]
    """Cases, each with its implementation, that only `b` measured."""

    def to_rows(self) -> list[dict[str, Any]]:
        """`rows`, each as a dict."""
        return [row.to_dict() for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class HistoryPoint(Payload):
    """One measurement of a series."""

    job: str
    """Id of the job."""
    user: str
    """Name of the user who submitted it."""
    finished_at: str
    """When the case was measured."""
    environment: str
    """Class of the machine and its software."""
    changed: list[str]
    """Facts of the environment that differ from the previous measurement in time."""
    measurement: Measurement
    """The row of the results."""


@dataclass(frozen=True, kw_only=True, repr=False)
class History(Table, Payload):
    """What one implementation took in one case, job by job."""

    SHOWN: ClassVar = ("finished_at", "job", "user", "status", *TIMES, "tags", "environment")

    op: str
    """Name of the op."""
    implementation: str
    """Name of the implementation."""
    case: str
    """Key of the case."""
    points: list[HistoryPoint]
    """The measurements, the latest first."""

    def to_rows(self) -> list[dict[str, Any]]:
        """`points`, each as a dict with the fields of its measurement."""
        points = [point.to_dict() for point in self.points]
        return [{**point.pop("measurement"), **point} for point in points]


@dataclass(frozen=True, kw_only=True)
class BoardEntry(Payload):
    """The best valid result of an implementation in a case."""

    rank: int | None
    """1 for the leaders. Implementations without a real difference share a rank. Null for results
    whose times are no basis for a verdict, of versions that are wrong in odd cases, and of uploads that
    are not verified, unless the board ranks all."""
    implementation: str
    """Name of the implementation."""
    median_us: float
    """Median in microseconds."""
    relative: float
    """Median over the time of a copy of as many bytes in the same job; 1 is the speed of a copy."""
    relative_low: float
    """Lower end of the median's interval, over the same time."""
    relative_high: float
    """Upper end of the median's interval, over the same time."""
    job: str
    """Id of the job that measured it."""
    user: str
    """Name of the user who submitted that job."""
    finished_at: str
    """When the case was measured."""
    tags: list[str] = field(default_factory=list)
    """What a reader should know about this result, such as "suspect". "not verified" is why an upload
    has no rank that is no verified kernel."""
    verified: bool = False
    """Whether it is a verified kernel; see Measurement."""


@dataclass(frozen=True, kw_only=True)
class Standing(Payload):
    """The implementations that have a valid result in a case."""

    case: str
    """Key of the case."""
    entries: list[BoardEntry]
    """The best result of each implementation that can be ranked, the fastest first."""
    unranked: list[BoardEntry] = field(default_factory=list)
    """The best result of each other implementation, such as of one whose results are all suspect."""


@dataclass(frozen=True, kw_only=True)
class BoardStep(Payload):
    """A result that was better than all earlier ones of its implementation in a case."""

    implementation: str
    """Name of the implementation."""
    relative: float
    """Median over the time of a copy of as many bytes in the same job."""
    job: str
    """Id of the job that measured it."""
    finished_at: str
    """When the case was measured."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Board(Table, Payload):
    """Who leads in the cases of an op on a device, among the latest jobs that the caller may read.

    Only verified kernels and the server's own implementations are ranked, unless all are asked for.
    """

    SHOWN: ClassVar = ("case", "rank", "implementation", "median_us", "relative", "tags", "job")

    op: str
    """Name of the op."""
    device: str | None
    """Name of the device; null if no job of the op has succeeded, as a whole or in part."""
    devices: list[str]
    """Devices on which jobs of the op have succeeded, as a whole or in part, that of the latest job
    first."""
    standings: list[Standing]
    """The cases, by name; at most 200, those that were measured last. Only one if it is asked for."""
    scores: list[Score] = field(default_factory=list)
    """The score of each implementation over these cases, against torch if it is on the board, else
    against a copy of as many bytes; who won most cases first. Empty from older servers."""
    steps: list[BoardStep]
    """If one case is asked for, how its best results came about, the earliest first; else empty."""
    ranks_all: bool = True
    """Whether uploads that are not verified are ranked, too. True from older servers."""

    def to_rows(self) -> list[dict[str, Any]]:
        """The entries of all `standings`, each as a dict with its case, those without a rank last."""
        return [
            {"case": standing.case, **entry.to_dict()}
            for standing in self.standings
            for entry in (*standing.entries, *standing.unranked)
        ]
