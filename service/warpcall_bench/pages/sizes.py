"""Time and bandwidth over the size of a job's cases, with a line for each implementation."""

from __future__ import annotations

import functools
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from warpcall.jobs.results import Measurement, can_conclude
from warpcall_bench.drawing import numbers
from warpcall_bench.drawing.plots import LogAxis, Tick, log_axis
from warpcall_bench.jobs.tables import Job
from warpcall_bench.pages.results import colours
from warpcall_bench.runs.operator_modules import LIMIT

FEWEST = 3  # sizes from which on there are lines
MOST_PANELS = 6
MOST_DOTS = 64  # of a line: with more sizes than that, it is drawn without them
LEAST_STEP = 1.0  # percent of the width between two points of a line
LEAST_ROOM = 15.0  # percent of the width between two ticks


@dataclass(frozen=True, slots=True)
class Line:
    """One implementation. `points` are places in percent: x from the left, y from the top."""

    name: str
    colour: int
    points: list[tuple[float, float, str]]

    @property
    def dots(self) -> list[tuple[float, float, str]]:
        """The points that are marked."""
        return self.points if len(self.points) <= MOST_DOTS else []

    @property
    def path(self) -> str:
        """The line as the points of a polyline in a square of 100."""
        return " ".join(f"{x},{y}" for x, y, _ in self.points)


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram."""

    title: str
    x: LogAxis
    y: LogAxis
    lines: list[Line]

    @property
    def joined(self) -> bool:
        """Whether the points are joined by lines.

        They are not if some lie nearly above each other. Such cases differ in more than their size,
        and a line would say that the time follows from the size. The limit is a line in any case: it
        depends on nothing else.
        """
        return all(
            after[0] - before[0] >= LEAST_STEP
            for line in self.lines
            for before, after in itertools.pairwise(line.points)
        )


class _Point(NamedTuple):
    nbytes: int
    us: float
    limit_us: float | None


def panels(job: Job, rows: Iterable[Measurement], specs: Mapping[int, str]) -> list[Panel]:
    """Two diagrams, bandwidth and time, for each group of cases that differ only in shapes.

    Args:
        specs: of the cases, by position.
    """
    groups: dict[str, dict[str, list[_Point]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if can_conclude(row.status, row.tags) and row.median_us and row.gb_per_s:
            # The bandwidth is the bytes over the median, so that this is a whole number.
            nbytes = round(row.gb_per_s * row.median_us * 1e3)
            limit_us = row.median_us * row.share_of_limit if row.share_of_limit else None
            point = _Point(nbytes, row.median_us, limit_us)
            groups[_group(specs[row.position])][row.implementation].append(point)
    chosen = colours(json.loads(job.implementations))
    found = []
    for title, by_name in groups.items():
        sizes = {point.nbytes for points in by_name.values() for point in points}
        if len(sizes) >= FEWEST:
            found += _panels(title, by_name, chosen)
    return found[: 2 * MOST_PANELS]


@functools.lru_cache(maxsize=64)  # the rows of a case have the same one
def _group(spec: str) -> str:
    """What cases have in common that differ only in their shapes: dtypes and parameters."""
    given = json.loads(spec)
    dtypes = dict.fromkeys(one.get("dtype", "") for one in given.get("inputs", {}).values())
    params = [
        f"{name}={_plain(value)}"
        for name, value in given.get("params", {}).items()
        if value is not None and value is not False
    ]
    return " ".join((*dtypes, *params))


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _panels(
    title: str, by_name: Mapping[str, Sequence[_Point]], chosen: Mapping[str, int]
) -> list[Panel]:
    points = [point for found in by_name.values() for point in found]
    limits = {point.nbytes: point.limit_us for point in points if point.limit_us}
    series = {name: sorted(found, key=lambda one: one.nbytes) for name, found in by_name.items()}
    series[LIMIT] = [_Point(nbytes, us, None) for nbytes, us in sorted(limits.items())]
    x = log_axis([point.nbytes for point in points])
    x = LogAxis(x.low, x.high, _apart(x.ticks))
    found = []
    for what, unit, value in (("GB/s", "GB/s", _gb_per_s), ("time in µs", "µs", _us)):
        y = log_axis([value(point) for points in series.values() for point in points])
        lines = [
            Line(name, chosen[name], _places(name, ones, x, y, value, unit))
            for name, ones in series.items()
        ]
        found.append(Panel(f"{what} over bytes moved, {title}", x, y, lines))
    return found


def _apart(ticks: Sequence[Tick]) -> list[Tick]:
    """The ticks whose texts have room beside each other, also in small windows."""
    found: list[Tick] = []
    for tick in ticks:
        if not found or tick.at - found[-1].at >= LEAST_ROOM:
            found.append(tick.named(numbers.nbytes(tick.value)))
    return found


def _gb_per_s(point: _Point) -> float:
    return point.nbytes / point.us / 1e3


def _us(point: _Point) -> float:
    return point.us


def _places(
    name: str,
    points: Sequence[_Point],
    x: LogAxis,
    y: LogAxis,
    value: Callable[[_Point], float],
    unit: str,
) -> list[tuple[float, float, str]]:
    """Where the points of a line are, and what they say if they are marked."""
    found = []
    for one in points:
        text = ""
        if len(points) <= MOST_DOTS:
            shown = numbers.microseconds(value(one))
            text = f"{name}: {shown} {unit} at {numbers.nbytes(one.nbytes)}"
        found.append((x.at(one.nbytes), round(100 - y.at(value(one)), 2), text))
    return found
