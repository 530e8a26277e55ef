"""The clock, power and temperature of a GPU over the rounds of a case, as a table."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from warpcall.jobs.results import Readings


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """The median of one quantity in each part of the rounds; None where it is not known."""

    label: str
    parts: list[float | None]


def reading_rows(readings: Readings | None, rounds: int, parts: int) -> list[ReadingRow]:
    """A row for each quantity that the GPU reports, over `parts` equal parts of all rounds."""
    if readings is None or rounds < parts:
        return []
    quantities: list[tuple[str, Sequence[float | None]]] = [
        ("clock, MHz", readings.sm_clock_mhz),
        ("power, W", readings.power_w),
        ("temperature, °C", readings.temperature_c),
    ]
    return [
        ReadingRow(label, _medians(readings.rounds, values, rounds, parts))
        for label, values in quantities
        if any(value is not None for value in values)
    ]


def _medians(
    numbers: Sequence[int], values: Sequence[float | None], rounds: int, parts: int
) -> list[float | None]:
    """The median in each part. A reading stands for the rounds since the one before it, and the
    last one also for those after it."""
    by_round = [
        values[min(bisect_left(numbers, number), len(numbers) - 1)] for number in range(rounds)
    ]
    size = rounds / parts
    cut = [by_round[int(part * size) : int((part + 1) * size)] for part in range(parts)]
    known = [[value for value in values if value is not None] for values in cut]
    return [statistics.median(values) if values else None for values in known]
