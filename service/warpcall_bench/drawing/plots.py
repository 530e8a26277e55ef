"""Positions in plots, as percentages of the width or height, so that a plot fits any window."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_TICKS = 7
STEPS = (1.0, 2.0, 5.0)  # of ticks within a decade


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: its value, where it is, and its text."""

    value: float
    at: float
    label: str

    def named(self, label: str) -> Tick:
        """The same mark with another text."""
        return Tick(self.value, self.at, label)


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis from `low` to `high`."""

    low: float
    high: float
    ticks: Sequence[Tick]

    def at(self, value: float) -> float:
        """The position of a value in percent, at most at the end of the axis."""
        return _share(value, self._log_low, self._log_range)

    @functools.cached_property
    def _log_low(self) -> float:
        return math.log(self.low)

    @functools.cached_property
    def _log_range(self) -> float:
        return math.log(self.high / self.low)


@dataclass(frozen=True)
class EvenAxis:
    """An axis from 0 to `high` on which equal differences have equal lengths."""

    high: float
    ticks: Sequence[Tick]

    def at(self, value: float) -> float:
        """The position of a value in percent, at most at the end of the axis."""
        return round(100 * min(max(value / self.high, 0.0), 1.0), 2)


def even_axis(high: float) -> EvenAxis:
    """An axis from 0 to a positive value."""
    ticks = [
        Tick(value, round(100 * value / high, 2), _label(value))
        for value in _even_values(0.0, high)
    ]
    return EvenAxis(high, ticks)


def log_axis(
    values: Iterable[float | None],
    unit: str = "",
    *,
    around: float | None = None,
    least_room: float = 1.04,
) -> LogAxis:
    """An axis on which all values have a place; values that are not positive are ignored.

    Args:
        unit: what follows the number of each tick.
        around: a value that the axis must show as well.
        least_room: factor by which the axis is longer than the values on each side, at least.
    """
    known = [value for value in values if value is not None and 0 < value < math.inf]
    if around is not None:
        known.append(around)
    low, high = (min(known), max(known)) if known else (1.0, 1.0)
    room = max(least_room, (high / low) ** 0.06)
    low, high = low / room, high * room
    labels = _tick_values(low, high)
    ticks = [Tick(value, _position(value, low, high), _label(value) + unit) for value in labels]
    return LogAxis(low, high, ticks)


def _position(value: float, low: float, high: float) -> float:
    return _share(value, math.log(low), math.log(high / low))


def _share(value: float, log_low: float, log_range: float) -> float:
    """Where a value lies on a logarithmic axis, in percent of its length."""
    share = (math.log(max(value, 1e-12)) - log_low) / log_range
    return round(100 * min(max(share, 0.0), 1.0), 2)


def _tick_values(low: float, high: float) -> list[float]:
    """Round numbers between two values, at most MOST_TICKS."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (STEPS, (1.0, 3.0), (1.0,)):
        found = [step * 10**decade for decade in decades for step in steps]
        found = [value for value in found if low <= value <= high]
        if 3 <= len(found) <= MOST_TICKS:
            return found
        if len(found) < 3:
            return _even_values(low, high)
    return found[:: math.ceil(len(found) / MOST_TICKS)]


def _even_values(low: float, high: float) -> list[float]:
    """Multiples of a round step between two values that are near to each other."""
    rough = (high - low) / 5
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(s * decade for s in (1, 2, 5, 10) if s * decade >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [number * step for number in range(first, last + 1)]


def _label(value: float) -> str:
    """A round number without rounding it further: two ticks must not have the same text."""
    text = f"{value:,.6f}"
    return text.rstrip("0").rstrip(".")
