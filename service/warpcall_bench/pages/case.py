"""The page of one case: its numbers, whether the machine was calm, and how the ratios lie."""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy.orm import Session

from warpcall.jobs.outcomes import conclusive, outcomes_of
from warpcall.jobs.results import CaseDetails, Measurement
from warpcall_bench.artefacts import database as artefacts
from warpcall_bench.artefacts.contents import SHOWN_KINDS, TRACE, Content
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.drawing import numbers
from warpcall_bench.drawing.plots import LogAxis, Tick, log_axis
from warpcall_bench.drawing.readings import reading_rows
from warpcall_bench.jobs import printed, submissions
from warpcall_bench.jobs.answers import find_case
from warpcall_bench.jobs.models import is_problem
from warpcall_bench.pages import results
from warpcall_bench.pages.view import View, render
from warpcall_bench.runs.operator_modules import KERNELS
from warpcall_bench.uploads.database import IMPLEMENTATIONS, PROBLEMS
from warpcall_service.identity import Caller

BINS = 40  # of a histogram
PARTS = 10  # of the rounds, in the table of medians over time
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Columns of the second table. One that has no value for any implementation is left out.
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("GB/s", "gb_per_s", numbers.gb_per_s),
    ("of the limit", "share_of_limit", numbers.percent),
    ("least µs", "min_us", numbers.microseconds),
    ("5 %", "p5_us", numbers.microseconds),
    ("25 %", "p25_us", numbers.microseconds),
    ("75 %", "p75_us", numbers.microseconds),
    ("95 %", "p95_us", numbers.microseconds),
    ("samples", "n", str),
    ("warm cache µs", "hot_us", numbers.microseconds),
    ("CPU µs", "host_us", numbers.microseconds),
    ("energy mJ", "energy_mj", numbers.microseconds),
    ("peak memory", "peak_bytes", numbers.nbytes),
)
TICK_ROOM = 18.0  # percent of the width of an axis of times, for a text such as "1,200 µs"
OUTER = 0.01  # share of the ratios on each side that the histogram's axis may cut off


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the second table, with its text by implementation."""

    title: str
    texts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram: left end, width and height in percent."""

    at: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class RatioSpread:
    """The distribution of the ratios of an implementation to the first one.

    Attributes:
        margin, interval, a_a: left end and width of ranges on the axis, in percent.
        parts: medians of the ratios in the first tenth of the rounds, in the second one and so on.
        outside: number of ratios beyond the axis.
        quantiles: of the ratios, those of QUANTILES.
        ends: the interval of the ratio; None if it is not known.
    """

    name: str
    colour: int
    axis: LogAxis
    bars: list[Bar]
    margin: tuple[float, float]
    interval: tuple[float, float] | None
    a_a: tuple[float, float] | None
    parts: list[float]
    outside: int
    quantiles: list[float]
    ends: tuple[float, float] | None


def case_artefacts(
    session: Session, caller: Caller, job_id: str, position: int
) -> list[ArtefactRow]:
    """The artefacts of a case whose contents its page shows, and its traces.

    Raises:
        NotFound: there is no such job, or the caller may not see it.
    """
    rows = artefacts.of_job(session, submissions.find(session, caller, job_id))
    kinds = (*SHOWN_KINDS, TRACE)
    return [row for row in rows if row.position == position and row.kind in kinds]


def case_page(
    session: Session,
    view: View,
    job_id: str,
    position: int,
    profiles: Sequence[Content] = (),
    viewer: str = "",
) -> str:
    """The page as text.

    Args:
        profiles: contents of artefacts of the case. Guests get none.
        viewer: URL of the viewer that opens traces; empty if there is none.

    Raises:
        NotFound: there is no such job or case, or the caller may not see it.
    """
    case = find_case(session, view.caller, job_id, position)
    number = submissions.find(session, view.caller, case.job).number
    rows = case.measurements
    names = [row.implementation for row in rows]
    chosen = results.colours(names)
    found = [] if len(rows) < 2 else [_spread(case, row, chosen) for row in rows[1:]]
    spreads = [one for one in found if one is not None]
    order = {name: number for number, name in enumerate(names)}
    return render(
        "case.html",
        view,
        case=case,
        name=results.case_name(case.op, case.case),
        rows=rows,
        # A job that only checks results has no times.
        timed=any(row.median_us for row in rows) or not any(row.status == "ok" for row in rows),
        first=names[0],
        colours=chosen,
        about=conclusive(outcomes_of(names, rows)),
        plot=_plot(case, chosen),
        remarks=[*results.case_remarks(case), *(why for row in rows for why in _row_remarks(row))],
        masked=_masked(case),
        spreads=spreads,
        quantiles=QUANTILES,
        a_a=_both(*((case.a_a or {}).get(end) for end in ("low", "high"))),
        parts=list(range(1, PARTS + 1)) if spreads and len(spreads[0].parts) == PARTS else [],
        readings=reading_rows(case.readings, case.rounds, PARTS),
        tenths=list(range(1, PARTS + 1)),
        spec=json.dumps(case.spec, indent=2, ensure_ascii=False),
        shown=results.shown,
        more=_columns(rows),
        data=view.data(case.job, "cases", str(case.position)),
        printed=printed.of_case(session, number, position),
        profiles=sorted(
            # An error of a trace is shown in the place of its table.
            (one for one in profiles if one.kind != TRACE or one.error),
            key=lambda one: order.get(one.implementation, len(order)),
        ),
        traces=traces_of(profiles),
        viewer=viewer,
        no_colour=results.COLOURS,
        compiled=_compiled(session, view, case),
    )


def traces_of(profiles: Sequence[Content]) -> dict[str, str]:
    """The names of the traces among the artefacts of a case, by implementation."""
    return {one.implementation: one.name for one in profiles if one.kind == TRACE and not one.error}


def _compiled(session: Session, view: View, case: CaseDetails) -> dict[str, str]:
    """Links to the page of compile reports, by implementation: for the kernels of the library, and
    for uploads that the caller may read, in the version that was measured."""
    if view.is_guest or not view.caller.may("bench"):
        return {}
    if is_problem(case.op) and PROBLEMS.named(session, view.caller, case.op) is None:
        return {}
    found = {}
    for row in case.measurements:
        name, _, _ = row.implementation.partition("@")
        if name == KERNELS and not is_problem(case.op):
            found[row.implementation] = view.url("compiled", op=case.op)
        elif "/" in name and row.source_sha256 is not None:
            measured = f"{name}@{row.source_sha256[:12]}"
            upload = IMPLEMENTATIONS.named(session, view.caller, measured)
            if upload is not None and upload.op == case.op:
                link = view.url("compiled", op=case.op, implementation=measured)
                found[row.implementation] = link
    return found


def _columns(rows: Sequence[Measurement]) -> list[Column]:
    timed = [row for row in rows if row.status == "ok"]
    return [
        Column(title, {row.implementation: write(getattr(row, name)) for row in timed})
        for title, name, write in COLUMNS
        if any(getattr(row, name) for row in timed)
    ]


def _plot(case: CaseDetails, chosen: dict[str, int]) -> tuple[LogAxis, list[Any], float | None]:
    """The axis of the times in us, and a dot with its interval for each implementation."""
    timed = [row for row in case.measurements if row.status == "ok" and row.median_us]
    ends = [end for row in timed for end in (row.ci_low_us, row.ci_high_us, row.median_us)]
    axis = _spaced(log_axis([*ends, case.limit_us], " µs"))
    dots = {
        row.implementation: results.Plotted(
            row,
            chosen[row.implementation],
            axis.at(row.median_us or 1),
            axis.at(row.ci_low_us or row.median_us or 1),
            axis.at(row.ci_high_us or row.median_us or 1),
            [],
        )
        for row in timed
    }
    plotted = [dots.get(row.implementation) for row in case.measurements]
    return axis, plotted, None if case.limit_us is None else axis.at(case.limit_us)


def _spaced(axis: LogAxis) -> LogAxis:
    """The axis with ticks whose texts do not overlap, nor the column beside it."""
    kept: list[Tick] = []
    for tick in axis.ticks:
        if tick.at <= 100 - TICK_ROOM / 2 and (not kept or tick.at - kept[-1].at >= TICK_ROOM):
            kept.append(tick)
    return LogAxis(axis.low, axis.high, kept)


def _row_remarks(row: Measurement) -> list[str]:
    return [
        f"{row.implementation} is {tag}: {results.TAGS[tag]}" if tag in results.TAGS else tag
        for tag in row.tags
    ]


def _masked(case: CaseDetails) -> list[tuple[str, int]]:
    """Reasons for masked rounds, with their number, the most frequent first."""
    return Counter(str(one.get("reason", "")) for one in case.masked).most_common()


def _spread(case: CaseDetails, row: Measurement, chosen: dict[str, int]) -> RatioSpread | None:
    ratios = _ratios(case, row.implementation)
    if len(ratios) < PARTS or row.ratio is None:
        return None
    ordered = sorted(ratios)
    cut = int(OUTER * len(ordered))
    low, high = ordered[cut], ordered[-1 - cut]
    margin = math.exp(case.margin)
    axis = log_axis([low, high, row.ratio], least_room=1.001)
    inside = ordered[bisect_left(ordered, axis.low) : bisect_right(ordered, axis.high)]
    return RatioSpread(
        name=row.implementation,
        colour=chosen[row.implementation],
        axis=axis,
        bars=_bars(inside, axis),
        margin=_range(axis, 1 / margin, margin),
        interval=_known_range(axis, row.ratio_low, row.ratio_high),
        a_a=_around(case, axis, row.ratio),
        parts=_parts(ratios),
        outside=len(ratios) - len(inside),
        quantiles=[ordered[round(share * (len(ordered) - 1))] for share in QUANTILES],
        ends=_both(row.ratio_low, row.ratio_high),
    )


def _both(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def _ratios(case: CaseDetails, name: str) -> list[float]:
    """The ratios of the rounds that count, in their order."""
    samples = case.samples_us or {}
    firsts = samples.get(case.measurements[0].implementation, [])
    masked = {one.get("round") for one in case.masked}
    return [
        mine / first
        for number, (first, mine) in enumerate(zip(firsts, samples.get(name, []), strict=False))
        if first and mine and number not in masked
    ]


def _bars(ordered: Sequence[float], axis: LogAxis) -> list[Bar]:
    """A bar for each of BINS equal parts of the axis in which ratios lie."""
    width, factor = 100 / BINS, (axis.high / axis.low) ** (1 / BINS)
    ends = [bisect_left(ordered, axis.low * factor**number) for number in range(1, BINS)]
    counts = [end - begin for begin, end in pairwise([0, *ends, len(ordered)])]
    most = max(counts)
    return [
        Bar(round(number * width, 2), round(width * 0.92, 2), round(100 * count / most, 1))
        for number, count in enumerate(counts)
        if count
    ]


def _range(axis: LogAxis, low: float, high: float) -> tuple[float, float]:
    begin, end = axis.at(low), axis.at(high)
    return begin, round(end - begin, 2)


def _known_range(
    axis: LogAxis, low: float | None, high: float | None
) -> tuple[float, float] | None:
    return None if low is None or high is None else _range(axis, low, high)


def _around(case: CaseDetails, axis: LogAxis, ratio: float) -> tuple[float, float] | None:
    """The interval of A/A, moved to the ratio: so wide is the noise alone."""
    a_a = case.a_a or {}
    if not a_a.get("low") or not a_a.get("high"):
        return None
    return _range(axis, ratio * a_a["low"] / a_a["ratio"], ratio * a_a["high"] / a_a["ratio"])


def _parts(ratios: Sequence[float]) -> list[float]:
    size = len(ratios) / PARTS
    return [
        statistics.median(ratios[int(part * size) : int((part + 1) * size)])
        for part in range(PARTS)
    ]
