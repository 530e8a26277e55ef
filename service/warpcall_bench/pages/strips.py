"""The last hour of a device, as the first page draws it and has it in a table."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import cast

from warpcall.devices import Device
from warpcall.jobs import QueueEntry
from warpcall_bench.drawing.numbers import count, nbytes, percent
from warpcall_service.extension import Engine, Nodes
from warpcall_service.lanes.activity import STEP_S, STEPS, ActivityStep
from warpcall_service.lanes.device_reading import Reading
from warpcall_service.lanes.status import LaneStatus, State

PARTS = 12  # of the hour, in the table
MOST_GAP = 3  # steps without a reading over which a line goes on


@dataclass(frozen=True, slots=True)
class StripStep:
    """One step of the strip: its place, and shares of the time, in percent.

    Attributes:
        throttled: why the device ran slower than it could; empty if it did not.
        others: number of processes on it that are not this server's.
    """

    at: float
    calls: float
    blocks: float
    throttled: str
    others: int


@dataclass(frozen=True, slots=True)
class Part:
    """A twelfth of the hour. What is not known is None.

    Attributes:
        begin, end: in minutes before now.
        load: mean of the readings; the memory, the temperature and the others are the largest ones,
            the clock and the power medians.
        throttled: reasons in the order of their number.
    """

    begin: int
    end: int
    calls: int
    calls_s: float
    blocks_s: float
    load: float | None
    memory_bytes: int | None
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: int | None
    throttled: list[str]
    others: int | None


@dataclass(frozen=True, slots=True)
class DeviceStrip:
    """A device with what it did during the last hour.

    Attributes:
        now: what was read last, in words; empty if nothing was.
        lines: paths of the load and of the memory in a square of 100, by name.
        throttled: reasons with the seconds for which they were seen.
        others: the largest number of other processes.
        node: id of its server, if that is another one.
        parts: the table below the strip, the latest first; those in which nothing happened and
            nothing was read are left out.
    """

    status: LaneStatus
    job: QueueEntry | None
    columns: list[StripStep]
    calls: int
    calls_s: float
    blocks_s: float
    now: list[str]
    lines: list[tuple[str, list[str]]]
    throttled: list[tuple[str, int]]
    others: int
    parts: list[Part]
    is_gpu: bool
    node: str = ""


def strips(engine: Engine) -> list[DeviceStrip]:
    """All devices of this server, without their jobs."""
    return [strip(lane.status(), lane.activity.last_hour()) for lane in engine.all_lanes]


def remote_strips(nodes: Nodes) -> list[DeviceStrip]:
    """All devices of the other servers, without their jobs."""
    return [_remote(device) for device in nodes.remote_devices()]


def _remote(device: Device) -> DeviceStrip:
    now_s = time.time()
    steps = [
        ActivityStep(
            min(
                0, math.ceil((datetime.fromisoformat(step.started_at).timestamp() - now_s) / STEP_S)
            ),
            step.calls,
            step.calls_s,
            step.blocks_s,
            None if step.reading is None else Reading(**step.reading.to_dict()),
        )
        for step in device.steps
    ]
    status = LaneStatus(
        device.name,
        cast(State, device.state),
        device.reason,
        warming=False,
        device=device.label,
        pid=None,
        restarts=device.restarts,
        last_restart="",
        last_restart_ms=0,
        queued=device.queued,
        in_flight=device.in_flight,
        plan_requests=0,
        arena_used=0,
        arena_free=0,
        arena_waiting=0,
    )
    hour = [step for step in steps if step.number > -STEPS]
    return replace(strip(status, hour), node=device.node)


def strip(status: LaneStatus, steps: Sequence[ActivityStep]) -> DeviceStrip:
    """A device with the steps of its last hour."""
    readings = [(step.number, step.reading) for step in steps if step.reading is not None]
    seen = Counter(reading.throttled for _, reading in readings if reading.throttled)
    return DeviceStrip(
        status,
        None,
        [_column(step) for step in steps],
        sum(step.calls for step in steps),
        sum(step.calls_s for step in steps),
        sum(step.blocks_s for step in steps),
        _words(readings[-1][1]) if readings and readings[-1][0] > -MOST_GAP else [],
        [
            ("load", _paths((number, reading.load) for number, reading in readings)),
            ("memory", _paths((number, _memory_share(reading)) for number, reading in readings)),
        ]
        if readings
        else [],
        [(reason, STEP_S * number) for reason, number in seen.most_common()],
        max((reading.other_processes or 0 for _, reading in readings), default=0),
        [part for part in map(_part, *_cut(steps)) if part is not None],
        status.name != "cpu",
    )


def _column(step: ActivityStep) -> StripStep:
    reading = step.reading or Reading()
    return StripStep(
        round(100 * (STEPS - 1 + step.number) / STEPS, 3),
        _share(step.calls_s),
        _share(step.blocks_s),
        reading.throttled,
        reading.other_processes or 0,
    )


def _share(seconds: float) -> float:
    """The share of a step in percent. Whatever took any time is seen."""
    return round(min(100.0, max(0.1, 100 * seconds / STEP_S)), 1) if seconds else 0.0


def _memory_share(reading: Reading) -> float | None:
    if reading.memory_bytes is None or not reading.memory_total_bytes:
        return None
    return reading.memory_bytes / reading.memory_total_bytes


def _words(reading: Reading) -> list[str]:
    """What was read, for people."""
    found = []
    if reading.load is not None:
        found.append(f"load {percent(reading.load)}")
    if reading.memory_bytes is not None and reading.memory_total_bytes is not None:
        found.append(
            f"memory {nbytes(reading.memory_bytes)} of {nbytes(reading.memory_total_bytes)}"
        )
    for value, unit in (
        (reading.sm_clock_mhz, "MHz"),
        (reading.power_w, "W"),
        (reading.temperature_c, "°C"),
    ):
        if value is not None:
            found.append(f"{value:.0f} {unit}")
    if reading.power_capped:
        found.append("at the power limit")
    if reading.other_processes is not None:
        found.append(count(reading.other_processes, "other process", "other processes"))
    return found


def _paths(points: Iterable[tuple[int, float | None]]) -> list[str]:
    """Lines through shares from 0 to 1, broken where nothing was read."""
    found: list[list[str]] = []
    before = None
    for number, share in points:
        if share is None:
            continue
        if before is None or number - before > MOST_GAP:
            found.append([])
        before = number
        x = 100 * (STEPS - 0.5 + number) / STEPS
        found[-1].append(f"{x:.2f},{100 - 100 * share:.1f}")
    return [" ".join(one if len(one) > 1 else one * 2) for one in found]


def _cut(steps: Sequence[ActivityStep]) -> tuple[range, list[list[ActivityStep]]]:
    """The numbers of the parts, the latest first, and the steps of each."""
    size = STEPS // PARTS
    found: list[list[ActivityStep]] = [[] for _ in range(PARTS)]
    for step in steps:
        found[min(PARTS - 1, -step.number // size)].append(step)
    return range(PARTS), found


def _part(number: int, steps: Sequence[ActivityStep]) -> Part | None:
    if not steps:
        return None
    minutes = STEPS * STEP_S // 60 // PARTS
    readings = [step.reading for step in steps if step.reading is not None]

    def known(name: str) -> list[float]:
        values = (getattr(reading, name) for reading in readings)
        return [value for value in values if value is not None]

    loads, clocks, powers = known("load"), known("sm_clock_mhz"), known("power_w")
    memory, heat, others = known("memory_bytes"), known("temperature_c"), known("other_processes")
    reasons = Counter(reading.throttled for reading in readings if reading.throttled)
    return Part(
        (number + 1) * minutes,
        number * minutes,
        sum(step.calls for step in steps),
        sum(step.calls_s for step in steps),
        sum(step.blocks_s for step in steps),
        statistics.fmean(loads) if loads else None,
        int(max(memory)) if memory else None,
        statistics.median(clocks) if clocks else None,
        statistics.median(powers) if powers else None,
        int(max(heat)) if heat else None,
        [reason for reason, _ in reasons.most_common()],
        int(max(others)) if others else None,
    )
