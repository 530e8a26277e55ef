"""The page of a case over time: did this get slower, when, and with which version?"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpcall.jobs.results import History, HistoryPoint, can_conclude
from warpcall_bench.drawing import numbers
from warpcall_bench.drawing.plots import LogAxis, log_axis
from warpcall_bench.drawing.steps import Level, levels
from warpcall_bench.jobs import answers
from warpcall_bench.pages import results
from warpcall_bench.pages.view import View, render

MOST = 200  # points
# Measurements in the table. A browser lays out the earlier ones only when a reader opens them: the
# rows of 200 would take most of the time until the first paint.
LATEST = 40


@dataclass(frozen=True, slots=True)
class Dot:
    """A measurement whose time is a basis for a verdict. Places are in percent, y from the top."""

    point: HistoryPoint
    x: float
    y: float
    low: float
    high: float
    relative: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A level of the series: a horizontal line."""

    begin: float
    end: float
    y: float


@dataclass(frozen=True, slots=True)
class Diagram:
    """The diagram: times relative to the copy, the earliest on the left."""

    dots: list[Dot]
    axis: LogAxis
    segments: list[Segment]
    changes: list[Dot]


def history_page(session: Session, view: View, op: str, implementation: str, case: str) -> str:
    """The page as text."""
    found = (
        answers.history(session, view.caller, op, implementation, case, MOST)
        if op and implementation and case
        else History(op=op, implementation=implementation, case=case, points=[])
    )
    diagram, lead = _diagram(found)
    return render(
        "history.html",
        view,
        history=found,
        asked=bool(case),
        name=results.case_name(op, case),
        diagram=diagram,
        intervals=any(point.measurement.ci_low_us for point in found.points),
        lead=lead,
        shown=results.shown,
        LATEST=LATEST,
        data=view.url(
            "v1", "jobs", "history", op=op, implementation=implementation, case=case, limit=MOST
        ),
    )


def _diagram(history: History) -> tuple[Diagram | None, str]:
    timed = [
        (point, row.median_us, 1 / row.share_of_limit)
        for point in reversed(history.points)
        if (row := point.measurement).median_us
        and row.share_of_limit
        and can_conclude(row.status, row.tags)
    ]
    if not timed:
        return None, ""
    scales = [(relative / us) for _, us, relative in timed]
    ends = [
        (
            (point.measurement.ci_low_us or us) * scale,
            (point.measurement.ci_high_us or us) * scale,
        )
        for (point, us, _), scale in zip(timed, scales, strict=True)
    ]
    axis = log_axis([end for pair in ends for end in pair], "×", least_room=1.01)
    step = 100 / len(timed)
    dots = [
        Dot(
            point,
            round((number + 0.5) * step, 2),
            _down(axis, relative),
            _down(axis, low),
            _down(axis, high),
            relative,
        )
        for number, ((point, _, relative), (low, high)) in enumerate(zip(timed, ends, strict=True))
    ]
    found = levels([relative for _, _, relative in timed])
    segments = [
        Segment(round(one.begin * step, 2), round(one.end * step, 2), _down(axis, one.value))
        for one in found
    ]
    changes = [dot for dot in dots if dot.point.changed]
    return Diagram(dots, axis, segments, changes), _lead(dots, found)


def _down(axis: LogAxis, value: float) -> float:
    return round(100 - axis.at(value), 2)


def _lead(dots: list[Dot], found: list[Level]) -> str:
    """The last step in words."""
    if len(found) < 2:
        number = numbers.count(len(dots), "measurement")
        return f"No step in {number}: it takes {numbers.times(found[0].value)} the time of a copy."
    before, now = found[-2], found[-1]
    first = dots[now.begin].point
    change = now.value / before.value - 1
    words = "longer" if change > 0 else "less"
    causes = (
        f" That job was the first with another {', '.join(map(numbers.fact, first.changed))}."
        if first.changed
        else ""
    )
    return (
        f"Since {numbers.day(first.finished_at)} it takes {abs(100 * change):.1f} % {words} than "
        f"before.{causes}"
    )
