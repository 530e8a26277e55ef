"""The result of one case as a job's process sends it.

The fields are those of `warpcall_kernels.measuring.CaseResult`, which describes them, with bounds.
All texts are made printable. `runs.stored_results` says why numbers have these bounds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from warpcall_bench.runs.stored_results import LEAST, MAX_COUNT, MOST, MOST_MARGIN, MOST_US
from warpcall_service.text import printable

MAX_ROUNDS = 7500  # `measuring` stops at 5,000 that count and 2,000 that are masked, and a block
MAX_IMPLEMENTATIONS = 65  # of a race, and the copy
MAX_TEXT = 4096  # characters of an error or a traceback
MAX_READINGS = 2000  # as in `measuring`
MAX_POINTS = 64  # of the history of a race; `measuring` keeps 48
MAX_ODD_CASES = 10_000


def _cut(text: str) -> str:
    return text[:MAX_TEXT]


def _check_least(value: float) -> float:
    if 0 < value < LEAST:
        raise ValueError(f"it must be 0 or at least {LEAST:g}, got {value:g}")
    return value


Printable = AfterValidator(printable)
Text = Annotated[str, AfterValidator(_cut), Printable]
Name = Annotated[str, StringConstraints(max_length=160), Printable]
Word = Annotated[str, StringConstraints(max_length=200), Printable]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Number = Annotated[  # of GB/s, mJ, W, s, or a ratio
    float, Field(ge=0, le=MOST, allow_inf_nan=False), AfterValidator(_check_least)
]
Us = Annotated[Number, Field(le=MOST_US)]
Tags = Annotated[list[Word], Field(max_length=16, fail_fast=True)]
OddCount = Annotated[int, Field(ge=0, le=MAX_ODD_CASES)]
OddText = Annotated[str, StringConstraints(max_length=500), Printable]
T = TypeVar("T")
Readings = Annotated[list[T], Field(max_length=MAX_READINGS, fail_fast=True)]
Points = Annotated[list[T], Field(max_length=MAX_POINTS, fail_fast=True)]
Status = Literal[
    "ok",
    "error",
    "wrong_result",
    "compile_error",
    "oom",
    "cuda_error",
    "invalid",
    "timeout",
    "crashed",
    "unchecked",
]


class Strict(BaseModel):
    """Takes what has exactly these fields, of exactly these types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class RatioModel(Strict):
    ratio: Annotated[Number, Field(gt=0)]
    low: Number | None
    high: Number | None
    n: Count
    # The sampler's words; `jobs/measurements.py:word` gives those of the API.
    verdict: Literal["faster", "slower", "same", "inconclusive"]


class RaceIntervalModel(Strict):
    ratio: Annotated[Number, Field(gt=0)]
    low: Number | None
    high: Number | None


class RaceRowModel(Strict):
    rank: Annotated[int, Field(ge=1, le=MAX_IMPLEMENTATIONS)] | None
    to_leader: RaceIntervalModel | None
    left_round: Annotated[int, Field(ge=0, le=MAX_ROUNDS)] | None
    left_why: Literal["slower", "same"] | None
    left_leader: Name | None
    left_ratio: RaceIntervalModel | None
    left_s: Number | None = None


class RaceHistoryModel(Strict):
    rounds: Points[Annotated[int, Field(ge=0, le=MAX_ROUNDS)]]
    seconds: Points[Number]
    ratios: Annotated[
        dict[Name, Points[Annotated[Number, Field(gt=0)] | None]],
        Field(max_length=MAX_IMPLEMENTATIONS),
    ]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        columns: list[list[Any]] = [self.seconds, *self.ratios.values()]
        if any(len(column) != len(self.rounds) for column in columns):
            raise ValueError("the points of a race must have one length")
        return self


class RaceModel(Strict):
    outcome: Literal["winner", "same", "undecided", "none"]
    leader: Name | None
    fastest: Annotated[list[Name], Field(max_length=MAX_IMPLEMENTATIONS, fail_fast=True)]
    device_s: Number
    full_device_s: Number | None
    history: RaceHistoryModel | None = None


class ImplementationModel(Strict):
    name: Name
    status: Status
    error: Text | None
    traceback: Text | None
    method: Word | None
    n: Count
    median_us: Us | None
    p5_us: Us | None
    p25_us: Us | None
    p75_us: Us | None
    p95_us: Us | None
    min_us: Us | None
    ci_low_us: Us | None
    ci_high_us: Us | None
    relative: RatioModel | None
    gb_per_s: Number | None
    share_of_limit: Number | None
    peak_bytes: Count | None
    hot_us: Us | None
    host_us: Us | None
    energy_mj: Number | None
    race: RaceRowModel | None = None
    samples_us: Annotated[list[Us | None], Field(max_length=MAX_ROUNDS, fail_fast=True)]
    verified: bool = False
    tags: Tags


class MaskedModel(Strict):
    round: Annotated[int, Field(ge=0, lt=MAX_ROUNDS)]
    reason: Word


class ReadingsModel(Strict):
    rounds: Readings[Annotated[int, Field(ge=0, lt=MAX_ROUNDS)]]
    sm_clock_mhz: Readings[Count | None]
    power_w: Readings[Number | None]
    temperature_c: Readings[Annotated[int, Field(ge=-300, le=1000)] | None]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        columns: tuple[list[Any], ...] = (self.sm_clock_mhz, self.power_w, self.temperature_c)
        if any(len(column) != len(self.rounds) for column in columns):
            raise ValueError("readings must have one length")
        return self


class CaseModel(Strict):
    key: Annotated[str, StringConstraints(max_length=4096), Printable]
    op: Name
    spec: dict[str, Any]
    device: Word
    clock: Word
    precision: Word
    seed: Count
    bytes_moved: Count
    output_bytes: Count
    implementations: Annotated[
        list[ImplementationModel], Field(max_length=MAX_IMPLEMENTATIONS, fail_fast=True)
    ]
    limit: ImplementationModel | None
    column: Literal["device_cold"]
    rounds: Annotated[int, Field(ge=0, le=MAX_ROUNDS)]
    masked: Annotated[list[MaskedModel], Field(max_length=MAX_ROUNDS, fail_fast=True)]
    converged: bool
    margin: Annotated[Number, Field(le=MOST_MARGIN)]
    a_a: RatioModel | None
    device_lost: bool
    seconds: Number
    tags: Tags
    readings: ReadingsModel | None = None
    compile_s: Number = 0.0
    setup_s: Number = 0.0
    race: RaceModel | None = None


class OddCasesModel(Strict):
    """What a check in odd cases found; the fields of `warpcall_kernels.measuring.OddCases`."""

    right: OddCount
    wrong: OddCount
    failed: OddCount
    raised: OddCount
    not_checked: OddCount
    first_case: OddText | None
    first_reason: OddText | None

    @model_validator(mode="after")
    def _check_first(self) -> Self:
        firsts = [self.first_case is not None, self.first_reason is not None]
        if firsts != [self.wrong + self.failed > 0] * 2:
            raise ValueError("there is a first case exactly if some are wrong or failed")
        return self
