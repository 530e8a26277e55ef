"""Reads the table that `ncu --import FILE --csv --page raw --print-units base` prints.

The first line names the columns, the second one their units. Each further line is one kernel.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TIME = "gpu__time_duration.sum"
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
L1 = "l1tex__throughput.avg.pct_of_peak_sustained_active"
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
POSSIBLE_OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"
REGISTERS = "launch__registers_per_thread"
SHARED = "launch__shared_mem_per_block"
SPILLS = "derived__local_spilling_requests"
STACK = "launch__stack_size"
WAVES = "launch__waves_per_multiprocessor"
# A report without one of these says nothing about why a kernel takes the time that it takes.
NEEDED = (TIME, MEMORY, DRAM, COMPUTE, OCCUPANCY, REGISTERS)
UNIT_SECONDS = {
    "ns": 1e-9,
    "nsecond": 1e-9,
    "us": 1e-6,
    "usecond": 1e-6,
    "ms": 1e-3,
    "msecond": 1e-3,
    "s": 1.0,
    "second": 1.0,
}
LIMITS = "launch__occupancy_limit_"


class NoMetrics(Exception):
    """The table has no kernel, or no usable value of a metric that is needed. The message says it."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One profiled launch.

    Attributes:
        grid, block: sizes as the profiler writes them, such as "(128, 1, 1)".
        seconds: duration, with the clocks as they were.
        metrics: finite value of each metric that is a number, by its name.
        stalls: warps that wait for each reason, per issued instruction, by the reason.
        limits: blocks of a multiprocessor that each resource allows, by the resource.
    """

    name: str
    grid: str
    block: str
    seconds: float
    metrics: Mapping[str, float]
    stalls: Mapping[str, float]
    limits: Mapping[str, float]


def parse_raw_page(text: str) -> list[Kernel]:
    """The kernels of a table.

    Raises:
        NoMetrics: there is none, or a metric of NEEDED is absent or no finite number.
    """
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    rows = [] if begin is None else [*csv.reader(io.StringIO("\n".join(lines[begin:])))]
    if len(rows) < 3:  # names and units
        raise NoMetrics("the report of Nsight Compute holds no kernel")
    names, units = rows[0], rows[1]
    return [_kernel(names, units, row) for row in rows[2:] if len(row) == len(names)]


def _kernel(names: Sequence[str], units: Sequence[str], row: Sequence[str]) -> Kernel:
    texts = dict(zip(names, row, strict=True))
    name = texts.get("Kernel Name", "?")
    metrics = {
        key: number for key, value in texts.items() if (number := _number(value)) is not None
    }
    for key in NEEDED:
        if key not in metrics:
            raise NoMetrics(
                f"the report of Nsight Compute has {texts.get(key) or 'no value'!r:.40} for {key} of "
                f"the kernel {name[:100]}, which is no number"
            )
    unit = dict(zip(names, units, strict=False)).get(TIME, "")
    if unit not in UNIT_SECONDS:
        raise NoMetrics(
            f"the report of Nsight Compute has the unknown unit {unit!r:.20} for {TIME}"
        )
    stalls = {
        found[1]: value
        for key, value in metrics.items()
        if (found := STALL.fullmatch(key)) and not found[1].endswith("_not_issued")
    }
    return Kernel(
        name=name,
        grid=texts.get("Grid Size", "?"),
        block=texts.get("Block Size", "?"),
        seconds=metrics[TIME] * UNIT_SECONDS[unit],
        metrics=metrics,
        stalls=stalls,
        limits={
            key.removeprefix(LIMITS): value
            for key, value in metrics.items()
            if key.startswith(LIMITS)
        },
    )


def _number(text: str) -> float | None:
    """A finite number, which may have commas between thousands; None for anything else."""
    try:
        found = float(text.replace(",", ""))
    except ValueError:
        return None
    return found if math.isfinite(found) else None
