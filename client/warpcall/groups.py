"""The types of the groups API: one question that is put to several models of a GPU.

A group has a part for each model, and each part is an ordinary job. The SDK returns these types,
and the server builds its answers and its OpenAPI from them: this module is the only list of their
fields. Times of day are texts as in RFC 3339, UTC.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from warpcall._extras.tables import Table
from warpcall.jobs import UNFINISHED, JobInfo, Payload
from warpcall.jobs.results import Measurement, can_conclude

FEWEST_GPUS, MOST_GPUS = 2, 8  # models of a group


@dataclass(frozen=True, kw_only=True)
class GroupPart(Payload):
    """A part of a group: its job on one model of a GPU."""

    gpu: str
    """The model that it asks for, such as "H200"."""
    job: JobInfo | None
    """The job; null if it is private to another user."""

    @property
    def waits_for_device(self) -> bool:
        """Whether its job waits, and no server that runs has a device for it."""
        return self.job is not None and self.job.waits_for_device

    @property
    def is_over(self) -> bool:
        """Whether nothing will come of it as long as the servers are as they are now."""
        return self.job is None or self.job.state not in UNFINISHED or self.waits_for_device


@dataclass(frozen=True, kw_only=True)
class GroupInfo(Payload):
    """A group as it was when the server answered."""

    id: str
    """Name of the group on its server. It begins with "g", and ids of jobs do not."""
    user: str
    """Name of the user who submitted it."""
    created_at: str
    """When it was submitted."""
    parts: list[GroupPart]
    """Its parts, in the order in which their models were given."""


@dataclass(frozen=True, kw_only=True)
class SubmittedGroup(GroupInfo):
    """The group that answers a submission; its other fields are those of GroupInfo."""

    reused: bool
    """Whether the group existed before the submission."""


@dataclass(frozen=True, kw_only=True)
class GroupRow(Payload):
    """An implementation in a case, on each model."""

    position: int
    """Number of the case in the jobs, from 0."""
    case: str
    """Key of the case, such as "permute x=F32[8,8] dims=1,0"."""
    implementation: str
    """Name of the implementation."""
    times: list[Measurement | None]
    """What each part has measured, in the order of the parts; null where it has not yet. Ratios and
    verdicts are to the first implementation on the same device."""


class Typical(NamedTuple):
    """What an implementation typically takes on a model, over what it takes on another one.

    Attributes:
        gpu, against: the models.
        ratio: geometric mean of the ratios of its medians; below 1, `gpu` takes less time.
        cases: number of cases in which it has a time on both that is a basis for a verdict.
    """

    implementation: str
    gpu: str
    against: str
    ratio: float
    cases: int

    def sentence(self) -> str:
        """The ratio in words."""
        cases = "1 case" if self.cases == 1 else f"{self.cases:,} cases"
        ratio = f"{self.ratio:.2f}" if self.ratio < 10 else f"{self.ratio:.3g}"
        return (
            f"{self.implementation} on {self.gpu} typically takes {ratio}x the time that it "
            f"takes on {self.against} ({cases})"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class GroupResults(Table, Payload):
    """What the parts of a group have measured so far, with a column for each model."""

    SHOWN: ClassVar[tuple[str, ...]] = (
        *("case", "implementation", "gpu", "median_us", "ci_low_us", "ci_high_us"),
        *("ratio", "verdict", "share_of_limit"),
    )

    id: str
    """Id of the group."""
    parts: list[GroupPart]
    """Its parts, in the order of the columns."""
    remarks: list[str]
    """What a reader should know about all results, each after the model that it is about."""
    rows: list[GroupRow]
    """The rows case by case, with the implementations in the order of the request."""

    def to_rows(self) -> list[dict[str, Any]]:
        """What was measured, a row for each implementation of each case on each model."""
        return [
            {"gpu": part.gpu, "job": None if part.job is None else part.job.id, **one.to_dict()}
            for row in self.rows
            for part, one in zip(self.parts, row.times, strict=True)
            if one is not None
        ]

    def typical(self) -> list[Typical]:
        """How each implementation does on each further model, against the first one with times."""
        known = {
            (row.position, row.implementation): [
                None if one is None else basis_us(one.status, one.tags, one.median_us)
                for one in row.times
            ]
            for row in self.rows
        }
        return [*typical(known, [part.gpu for part in self.parts])]


def basis_us(status: str, tags: Sequence[str], median_us: float | None) -> float | None:
    """A median, if it is a basis for a verdict."""
    return median_us if median_us and can_conclude(status, tags) else None


def typical(
    known: Mapping[tuple[int, str], Sequence[float | None]], gpus: Sequence[str]
) -> Iterator[Typical]:
    """How each implementation does on each further model, against the first one with times.

    Args:
        known: medians that are a basis for a verdict, by model in the order of `gpus`, for each case
            and implementation.
    """
    columns = [[row[n] for row in known.values()] for n in range(len(gpus))]
    timed = [n for n, column in enumerate(columns) if any(column)]
    for implementation in dict.fromkeys(name for _, name in known):
        rows = [row for (_, name), row in known.items() if name == implementation]
        for n in timed[1:]:
            logs = [math.log(b / a) for row in rows if (a := row[timed[0]]) and (b := row[n])]
            if logs:
                ratio = math.exp(sum(logs) / len(logs))
                yield Typical(implementation, gpus[n], gpus[timed[0]], ratio, len(logs))
