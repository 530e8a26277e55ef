"""Writes what Nsight Compute found in at most 4 KB of text: for each kernel what limits it, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warpcall_service.profilers.raw_page import (
    COMPUTE,
    DRAM,
    L1,
    L2,
    MEMORY,
    OCCUPANCY,
    POSSIBLE_OCCUPANCY,
    REGISTERS,
    SHARED,
    SPILLS,
    WAVES,
    Kernel,
)

MAX_BYTES = 4096
MAX_NAME = 80
BUSY = 60.0  # % of its peak from which on a unit counts as the limiter, as Nsight Compute has it
SHOWN_STALLS = 3
UNITS = {"memory": MEMORY, "DRAM": DRAM, "L2": L2, "L1": L1, "compute": COMPUTE}
PARTS = ("DRAM", "L2", "L1")  # of the memory
RESOURCES = {
    "blocks": "blocks",
    "registers": "registers",
    "shared_mem": "shared memory",
    "warps": "warps",
    "barriers": "barriers",
}


def summary(heading: str, kernels: Sequence[Kernel], *, most: int) -> str:
    """The text of a profile.

    If it would be too long, the kernels that take the least time are left out, and it says so.

    Args:
        most: kernels that the profiler records; a call may have launched more.
    """
    total = sum(one.seconds for one in kernels) or 1.0
    texts = {
        number: _described(one, number, len(kernels), one.seconds / total)
        for number, one in enumerate(kernels)
    }
    shown = sorted(texts, key=lambda number: -kernels[number].seconds)
    while True:
        lines = [heading[: MAX_BYTES // 4]]
        for number in sorted(shown):
            lines += ["", *texts[number]]
        if left := len(kernels) - len(shown):
            rest = sum(kernels[number].seconds for number in texts if number not in shown) / total
            lines += [
                "",
                f"{left} further kernels, {_percent(100 * rest)} of the time: see the report",
            ]
        if len(kernels) >= most:
            lines += ["", f"Only the first {most} launches of the call are profiled."]
        text = "\n".join(lines) + "\n"
        if len(text.encode()) <= MAX_BYTES or not shown:
            return text
        shown.pop()


def _described(kernel: Kernel, number: int, count: int, share: float) -> list[str]:
    metrics = kernel.metrics
    parts = f", {_percent(100 * share)} of the call" if count > 1 else ""
    name = _printable(kernel.name)
    return [
        f"kernel {number + 1} of {count}: {name[:MAX_NAME]}{'...' * (len(name) > MAX_NAME)}",
        (
            f"  time       {_time(kernel.seconds)}{parts}; grid {_size(kernel.grid)}, block "
            f"{_size(kernel.block)}{_waves(metrics)}"
        ),
        f"  limiter    {_limiter(metrics)}",
        "  of peak    "
        + ", ".join(f"{name} {_percent(metrics.get(key))}" for name, key in UNITS.items()),
        (
            f"  occupancy  {_percent(metrics.get(OCCUPANCY))}, {_percent(metrics.get(POSSIBLE_OCCUPANCY))} "
            f"possible{_limited_by(kernel.limits)}"
        ),
        f"  stalls     {_stalls(kernel.stalls)}",
        (
            f"  needs      {metrics[REGISTERS]:.0f} registers, {_bytes(metrics.get(SHARED))} shared memory "
            f"of a block; {_spills(metrics.get(SPILLS))}"
        ),
    ]


def _limiter(metrics: Mapping[str, float]) -> str:
    """The unit that is busiest, or that none is busy enough to be the reason."""
    memory, compute = metrics[MEMORY], metrics[COMPUTE]
    if max(memory, compute) < BUSY:
        few = metrics.get(WAVES, 1.0) < 1.0
        why = "the grid is too small to fill the GPU" if few else "the kernel waits: see the stalls"
        return f"latency, since no unit is above {BUSY:.0f} % of its peak; {why}"
    if compute >= memory:
        return f"compute, at {_percent(compute)} of its peak"
    # The throughput of the memory is that of one of its parts, each of which has further units.
    part = min(PARTS, key=lambda name: abs(metrics.get(UNITS[name], 0.0) - memory))
    return f"memory ({part}), at {_percent(memory)} of its peak"


def _stalls(stalls: Mapping[str, float]) -> str:
    """The reasons for which warps wait most, as shares of all cycles of warps."""
    total = sum(stalls.values())
    waiting = [one for one in stalls.items() if one[0] != "selected"]
    top = sorted(waiting, key=lambda one: -one[1])[:SHOWN_STALLS]
    if not total:
        return "unknown"
    shown = (f"{name.replace('_', ' ')} {_percent(100 * value / total)}" for name, value in top)
    return ", ".join(shown)


def _limited_by(limits: Mapping[str, float]) -> str:
    known = {RESOURCES[name]: value for name, value in limits.items() if name in RESOURCES}
    if not known:
        return ""
    least = min(known.values())
    return f" (limited by {' and '.join(name for name, v in known.items() if v == least)})"


def _spills(requests: float | None) -> str:
    if requests is None:
        return "spills unknown"
    return f"{requests:.0f} requests to memory for spilled registers" if requests else "no spills"


def _waves(metrics: Mapping[str, float]) -> str:
    return f", {metrics[WAVES]:.3g} waves" if WAVES in metrics else ""


def _size(text: str) -> str:
    """A size such as "(128, 1, 1)" as "128x1x1"."""
    return _printable(text).strip("()").replace(", ", "x")[:40]


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def _bytes(nbytes: float | None) -> str:
    if nbytes is None:
        return "unknown"
    return f"{nbytes / 1024:.4g} KiB" if nbytes >= 1024 else f"{nbytes:.0f} B"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} %"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
