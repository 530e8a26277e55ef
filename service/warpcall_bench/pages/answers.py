"""How the implementations of a job compare with its first one over all cases, and the heat map."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from warpcall.jobs.outcomes import OPPOSITE, UNDECIDED
from warpcall.jobs.results import NOT_ON_GPU, Measurement, status_shown
from warpcall_bench.drawing import numbers
from warpcall_bench.jobs.measurements import no_verdict
from warpcall_bench.jobs.tables import Job
from warpcall_bench.pages.results import (
    RIGHT,
    STATUSES,
    case_name,
    colours,
    rivals_of,
)
from warpcall_bench.runs.operator_modules import LIMIT

VERDICTS = ("faster", "same", "slower", UNDECIDED)


@dataclass(slots=True)
class Answer:
    """How an implementation compares with the first one over all cases, or, if the first one is an
    upload, the upload with it.

    Attributes:
        counts: number of cases by verdict; those whose ratio has no interval as "unsure", those
            whose times cannot be compared as "incomparable", those that were only checked, and are
            right, as "right", those that need a GPU as "unchecked", and the others as "failed".
        logs: logarithms of its ratios.
        statuses: number of cases without a time, by reason.
        reasons: number of cases whose times cannot be compared, by reason.
        checks_only: whether its job only checks results.
        is_inverted: whether its ratios and verdicts are those of the first one to it.
    """

    name: str
    colour: int
    counts: Counter[str] = field(default_factory=Counter)
    logs: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    checks_only: bool = False
    is_inverted: bool = False

    @property
    def total(self) -> int:
        """Number of cases."""
        return sum(self.counts.values())

    @property
    def typical(self) -> float | None:
        """The geometric mean of its ratios."""
        return math.exp(sum(self.logs) / len(self.logs)) if self.logs else None

    @property
    def least(self) -> float:
        """Its lowest ratio."""
        return math.exp(min(self.logs))

    @property
    def most(self) -> float:
        """Its highest ratio."""
        return math.exp(max(self.logs))

    @property
    def segments(self) -> list[tuple[str, float, float]]:
        """Each verdict that occurs, with place and width in a bar in percent."""
        found, begin = [], 0.0
        for verdict in (*VERDICTS, "unsure", "right", "incomparable", "unchecked", "failed"):
            if share := 100 * self.counts[verdict] / self.total:
                found.append((verdict, round(begin, 2), round(share, 2)))
                begin += share
        return found

    @property
    def sentence(self) -> str:
        """In how many cases it has each verdict, is right, or has no time."""
        if self.name == LIMIT and self.typical is not None and self.counts["limit"]:
            share = 1 / self.typical if self.is_inverted else self.typical
            return f"{numbers.percent(share)} of the limit is reached{', typically' * (self.total > 1)}"
        parts = [
            f"{words} in {self.counts[verdict]}"
            for verdict, words in (
                ("slower", "slower"),
                ("same", "the same"),
                ("faster", "faster"),
                (UNDECIDED, UNDECIDED),
                ("unsure", "without an interval"),
                ("right", "right"),
                ("incomparable", "without a verdict"),
                ("unchecked", "not checked"),
                ("limit", "timed"),
                ("failed", "not right" if self.checks_only else "without a time"),
            )
            if self.counts[verdict]
        ]
        return ", ".join(parts) + f" of {numbers.count(self.total, 'case')}"


@dataclass(frozen=True, slots=True)
class Cell:
    """A ratio in the heat map. `level` is the class of its colour."""

    text: str
    level: str


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A case in the heat map. `least` is the lowest of its ratios, infinity if it has none."""

    position: int
    name: str
    cells: list[Cell]
    least: float


def is_inverted(implementations: Sequence[str]) -> bool:
    """Whether the others are shown from the side of the first implementation: it is an upload."""
    return "/" in implementations[0]


def failures(answers: Sequence[Answer]) -> list[str]:
    """Which implementations have no time, in how many cases, and why, in sentences."""
    return [
        f"{one.name}: {STATUSES.get(status, status)} in {number} of {numbers.count(one.total, 'case')}."
        for one in answers
        for status, number in one.statuses.most_common()
    ]


def checks_only(job: Job) -> bool:
    """Whether a job only checks results, so that none of its rows has a time."""
    return job.precision == "check"


def without_verdict(answers: Sequence[Answer]) -> list[str]:
    """On which implementations there is no verdict, in how many cases, and why, in sentences."""
    return [
        f"{one.name}: no verdict in {number} of {numbers.count(one.total, 'case')}, because {reason}."
        for one in answers
        for reason, number in one.reasons.most_common()
        if not reason.endswith(tuple(NOT_ON_GPU))  # the sentences about the job say this
    ]


def answers(job: Job, rows: Iterable[Measurement]) -> tuple[list[Answer], list[HeatRow]]:
    """The comparison of each implementation with the first one, and the heat map of the ratios.

    A job that only checks results has an answer and a column for the first one, too.

    Args:
        rows: of the job, case by case, with that of the first implementation first.
    """
    names: list[str] = json.loads(job.implementations)
    chosen = colours(names)
    checks = checks_only(job)
    inverted = is_inverted(names)
    shown = names if checks else names[1:]
    others = sorted(shown, key=lambda name: name == LIMIT)  # the limit is the last one
    rivals = names if checks else rivals_of(names)
    found = {
        name: Answer(name, chosen[name], checks_only=checks, is_inverted=inverted)
        for name in others
    }
    grid: dict[int, dict[str, Cell]] = {}
    least: dict[int, float] = {}
    keys: dict[int, str] = {}
    first: Measurement | None = None
    for row in rows:
        name, position, ratio = row.implementation, row.position, row.ratio
        if first is None or first.position != position:
            first = row
        if name not in found:
            continue
        keys[position] = row.case
        instead, why = status_shown(row.status, row.median_us), no_verdict(row, first)
        answer = found[name]
        if instead:
            answer.counts[instead if instead in (RIGHT, "unchecked") else "failed"] += 1
        elif why:
            answer.counts["incomparable"] += 1
            answer.reasons[why] += 1
        else:
            kind = "limit" if name == LIMIT and ratio else _kind(row)
            answer.counts[OPPOSITE.get(kind, kind) if inverted else kind] += 1
        if row.status != "ok":
            answer.statuses[row.status] += 1
        if ratio:
            answer.logs.append(-math.log(ratio) if inverted else math.log(ratio))
        grid.setdefault(position, {})[name] = _cell(row, instead, why)
        if ratio and name != LIMIT:
            least[position] = min(ratio, least.get(position, math.inf))
    none = Cell("", "no")
    heat = [
        HeatRow(
            position,
            case_name(job.op, key),
            [grid[position].get(name, none) for name in rivals],
            least.get(position, math.inf),
        )
        for position, key in keys.items()
        if rivals
    ]
    return [answer for answer in found.values() if answer.total], heat


def _kind(row: Measurement) -> str:
    """What counts for a ratio: its verdict, or that it has no interval, or that there is none."""
    if row.verdict == UNDECIDED and None in (row.ratio_low, row.ratio_high):
        return "unsure"
    return row.verdict or "failed"


def _cell(row: Measurement, instead: str, why: str) -> Cell:
    """The cell of a ratio, or of what is shown in place of a time, or for no verdict."""
    if instead:
        good = instead in (RIGHT, "unchecked")
        return Cell(STATUSES.get(instead, instead), "no" if good else "x")
    if why:
        return Cell("no verdict", "no")
    if not row.ratio:
        return Cell("", "x")
    text = numbers.ratio(row.ratio)
    if row.verdict not in ("faster", "slower"):
        return Cell(text, "less" if row.ratio < 1 else "no")
    distance = abs(math.log2(row.ratio))
    strength = 1 if distance < math.log2(1.1) else 2 if distance < 1 else 3
    return Cell(text, f"{row.verdict[0]}{strength}")
