"""The pages of monitors: the list, one monitor with its series, and the forms to pause and remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from warpcall.monitors import MonitorDetails, MonitorPoint, MonitorSeries, MonitorStep
from warpcall_bench.drawing.plots import LogAxis, log_axis
from warpcall_bench.jobs import answers
from warpcall_bench.jobs.routes import EVERYONE
from warpcall_bench.jobs.service import JobService
from warpcall_bench.monitors.detection import BASELINE
from warpcall_bench.monitors.models import MonitorChange
from warpcall_bench.monitors.routes import MonitorId
from warpcall_bench.monitors.service import MonitorService
from warpcall_bench.pages.view import View, page, render
from warpcall_service.formats.form import go_to, read_form
from warpcall_service.http.caller import CurrentCaller

MAX_FORM_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RunDot:
    """A run that has a time. Places are in percent, y from the top."""

    point: MonitorPoint
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Change:
    """A step: a vertical line where it begins, and the levels on both sides."""

    step: MonitorStep
    x: float
    before_y: float
    after_y: float


@dataclass(frozen=True, slots=True)
class RunDiagram:
    """The diagram of a series, the earliest run on the left.

    Attributes:
        level: begin, level and both thresholds of the present level; None while it has none.
    """

    dots: list[RunDot]
    axis: LogAxis
    changes: list[Change]
    level: tuple[float, float, float, float] | None


@dataclass(frozen=True, slots=True)
class Row:
    """A series in the table, with its place in the address of the page."""

    number: int
    series: MonitorSeries
    steps: list[MonitorStep]

    @property
    def run_count(self) -> int:
        return len(self.series.points)

    @property
    def step_count(self) -> int:
        return len(self.steps)


def routes(jobs: JobService, monitors: MonitorService) -> APIRouter:
    """The two pages, and what their forms post to."""
    router = APIRouter(include_in_schema=False)

    @router.get("/monitors")
    async def list_monitors(
        request: Request, caller: CurrentCaller, user: Annotated[str, Query(max_length=64)] = ""
    ) -> Response:
        everyone = user == EVERYONE
        found = await monitors.list(caller, None if everyone else user or caller.name)
        latest = await jobs.read(
            caller,
            answers.jobs_of,
            caller,
            {one.last_job for one in found.monitors if one.last_job},
            jobs.scheduler.devices,
        )
        text = render(
            "monitors.html",
            View.of(request),
            monitors=found.monitors,
            latest=latest,
            user=user or caller.name,
            everyone=everyone,
        )
        return page(request, text)

    @router.get("/monitors/{id}")
    async def show_monitor(
        request: Request,
        caller: CurrentCaller,
        id: MonitorId,
        series: Annotated[int, Query(ge=0, le=100_000)] = 0,
    ) -> Response:
        found = await monitors.show(caller, id)
        rows = _rows(found)
        chosen = rows[series] if series < len(rows) else None
        text = render(
            "monitor.html",
            View.of(request),
            monitor=found,
            rows=rows,
            chosen=chosen,
            diagram=None if chosen is None else _diagram(chosen),
            baseline=BASELINE,
            may_change=caller.owns(found.user),
        )
        return page(request, text)

    @router.post("/monitors/{id}/pause")
    async def pause(request: Request, caller: CurrentCaller, id: MonitorId) -> Response:
        caller.check("bench")
        form = await read_form(request, MAX_FORM_BYTES)
        change = MonitorChange(paused=form.text("paused") == "yes")
        found = await monitors.change(caller, id, change)
        return go_to(f"../{found.id}")

    @router.post("/monitors/{id}/remove")
    async def remove(request: Request, caller: CurrentCaller, id: MonitorId) -> Response:
        caller.check("bench")
        await read_form(request, MAX_FORM_BYTES)
        await monitors.remove(caller, id)
        return go_to("../../monitors")

    return router


def _rows(found: MonitorDetails) -> list[Row]:
    """The series with their steps: those with the latest step first, then by their names."""
    ranks = {step.job: rank for rank, step in enumerate(found.found)}
    made = []
    for one in found.series:
        steps = [
            step
            for step in reversed(found.found)
            if (step.case, step.implementation, step.model)
            == (one.case, one.implementation, one.model)
        ]
        rank = min((ranks[step.job] for step in steps), default=len(ranks))
        made.append((rank, one, steps))
    made.sort(key=lambda entry: (entry[0], entry[1].case, entry[1].implementation, entry[1].model))
    return [Row(number, one, steps) for number, (_, one, steps) in enumerate(made)]


def _diagram(row: Row) -> RunDiagram:
    points = row.series.points
    levels = [us for step in row.steps for us in (step.before_us, step.after_us)]
    one = row.series
    axis = log_axis(
        [*(point.median_us for point in points), *levels, one.low_us, one.high_us],
        " µs",
        least_room=1.01,
    )
    width = 100 / len(points)
    dots = [
        RunDot(point, round((number + 0.5) * width, 2), _down(axis, point.median_us))
        for number, point in enumerate(points)
    ]
    jobs = [point.job for point in points]
    changes = _changes(row.steps, jobs, width, axis)
    level = None
    if one.level_us and one.low_us and one.high_us:
        places = (_down(axis, one.level_us), _down(axis, one.low_us), _down(axis, one.high_us))
        level = (changes[-1].x if changes else 0.0, *places)
    return RunDiagram(dots, axis, changes, level)


def _changes(
    steps: Sequence[MonitorStep], jobs: Sequence[str], width: float, axis: LogAxis
) -> list[Change]:
    return [
        Change(
            step,
            round(jobs.index(step.job) * width, 2),
            _down(axis, step.before_us),
            _down(axis, step.after_us),
        )
        for step in steps
        if step.job in jobs
    ]


def _down(axis: LogAxis, value: float) -> float:
    return round(100 - axis.at(value), 2)
