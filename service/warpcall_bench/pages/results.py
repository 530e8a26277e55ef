"""The results of a job as its page shows them: the answer, a row for each measurement, and why."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warpcall.jobs.outcomes import UNDECIDED
from warpcall.jobs.results import CaseDetails, CaseResults, Measurement, status_shown
from warpcall_bench.drawing import numbers
from warpcall_bench.drawing.plots import LogAxis, log_axis
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.operator_modules import LIMIT

COLOURS = 7  # of implementations; the eighth, grey, is for the copy
# What a tag of a case or an implementation means, for readers.
TAGS = {
    "suspect": "more than 1.03 times as fast as a copy of the same bytes: there is no verdict and no "
    "rank",
    "unstable": "more than a fifth of the rounds were disturbed",
    "power capped": "the GPU ran at its power limit, which is a steady state: the times count",
    "cache warm": "the inputs are so small that they do not fill the L2 cache, and may be in it",
    "not captured": "its calls cannot be captured in a CUDA graph, so launches are part of the time",
    "interpreted": "Triton interprets this kernel, because there is no GPU, so there is no verdict",
    "plain torch": "there is no GPU, so plain torch ran in place of this kernel, and there is no verdict",
    "unconfirmed": "the server's own clock did not confirm the times that the process of this "
    "implementation reported, so there is no verdict",
}
STATUSES = {
    "error": "raised an exception",
    "wrong_result": "wrong result",
    "compile_error": "does not compile",
    "oom": "out of memory",
    "cuda_error": "CUDA error",
    "invalid": "invalid time",
    "timeout": "did not end in time",
    "crashed": "its process crashed",
    "unchecked": "not checked",
}
RIGHT = "right"  # what is shown for a result that was checked and not timed


@dataclass(frozen=True, slots=True)
class Plotted:
    """A measurement with its places in the plot, in percent."""

    row: Measurement
    colour: int
    at: float | None
    low: float | None
    high: float | None
    why: list[str]

    @property
    def status(self) -> str:
        """What is shown in place of a time, in words; empty if there is one."""
        return shown(self.row)


@dataclass(frozen=True, slots=True)
class Block:
    """A case with its rows.

    Attributes:
        name: its key without the op.
        limit_at: place of a copy's time in the plot, in percent.
        band: place and width of the times that count as the same as the first one's.
        why: what a reader should know about the whole case.
    """

    position: int
    name: str
    rows: list[Plotted]
    limit_at: float | None
    limit_us: float | None
    band: tuple[float, float] | None
    why: list[str]
    converged: bool


def shown(row: Measurement) -> str:
    """What is shown in place of a row's time, in words; empty if it has a valid time."""
    status = status_shown(row.status, row.median_us)
    return STATUSES.get(status, status)


def colours(implementations: Sequence[str]) -> dict[str, int]:
    """The number of each implementation's colour. The copy is always grey."""
    others = [name for name in implementations if name != LIMIT]
    return {LIMIT: COLOURS, **{name: number % COLOURS for number, name in enumerate(others)}}


def rivals_of(implementations: Sequence[str]) -> list[str]:
    """The implementations that are compared with the first one, without the copy."""
    return [name for name in implementations[1:] if name != LIMIT]


def blocks(job: Job, cases: Sequence[CaseDetails]) -> tuple[list[Block], LogAxis]:
    """Measured cases with their rows, and the axis of their ratios."""
    scales = {case.position: _scale(case.measurements) for case in cases}
    axis = log_axis(
        [
            value
            for case in cases
            for value in (
                *(end for row in case.measurements for end in _ends(row, scales[case.position])),
                _share(case.limit_us, scales[case.position]),
            )
        ],
        "×",
        around=1.0,
    )
    chosen = colours(json.loads(job.implementations))
    return [_block(job, case, scales[case.position], axis, chosen) for case in cases], axis


def _scale(rows: Sequence[Measurement]) -> float | None:
    """The time to which a case's times are relative in its plot: the first valid one."""
    return next((row.median_us for row in rows if row.status == "ok" and row.median_us), None)


def _ends(row: Measurement, scale: float | None) -> tuple[float | None, float | None, float | None]:
    """The time relative to the first one's, and its interval; None without a valid time."""
    if row.status != "ok":
        return None, None, None
    if row.ratio is not None:
        return row.ratio, row.ratio_low or row.ratio, row.ratio_high or row.ratio
    middle = _share(row.median_us, scale)
    return middle, _share(row.ci_low_us, scale) or middle, _share(row.ci_high_us, scale) or middle


def _share(value: float | None, scale: float | None) -> float | None:
    return value / scale if value and scale else None


def _block(
    job: Job, case: CaseDetails, scale: float | None, axis: LogAxis, chosen: Mapping[str, int]
) -> Block:
    plotted = []
    for row in case.measurements:
        at, low, high = (None if end is None else axis.at(end) for end in _ends(row, scale))
        colour = chosen.get(row.implementation, COLOURS)
        plotted.append(Plotted(row, colour, at, low, high, _why(row)))
    limit = _share(case.limit_us, scale)
    begin, end = axis.at(math.exp(-case.margin)), axis.at(math.exp(case.margin))
    return Block(
        position=case.position,
        name=case_name(job.op, case.case),
        rows=plotted,
        limit_at=None if limit is None else axis.at(limit),
        limit_us=case.limit_us,
        band=(begin, round(end - begin, 2)) if len(case.measurements) > 1 else None,
        why=case_remarks(case),
        converged=case.converged or not case.rounds,
    )


def case_remarks(case: CaseResults) -> list[str]:
    """What a reader should know about a case besides its rows, and whether it converged."""
    found = [f"{tag}: {TAGS[tag]}" if tag in TAGS else tag for tag in case.tags]
    reasons = Counter(masked["reason"] for masked in case.masked)
    for reason, number in reasons.most_common(3):
        found.append(f"{numbers.count(number, 'round')} of {case.rounds} masked: {reason}")
    return found


def _why(row: Measurement) -> list[str]:
    found = []
    if row.error and row.status == "ok":
        found.append(row.error)
    if row.why_undecided:
        found.append(f"{UNDECIDED}: {row.why_undecided}")
    found += [f"{tag}: {TAGS[tag]}" if tag in TAGS else tag for tag in row.tags]
    return found


def case_name(op: str, key: str) -> str:
    """The key of a case without the op, which the page names above."""
    return key.removeprefix(op).strip() or key
