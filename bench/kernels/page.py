"""A benchmark's results as a page in Markdown: the families, the exceptions, then each case.

Rows are sorted by their share of the limit, the worst first. With a ratio above 1, ours is faster.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.kernels.report import Row, megabytes, ratio, share

TOLERATED = 1.03  # times as long as another implementation, and still as fast
OTHERS = {
    "eager": "torch eager",
    "compile": "torch.compile",
    "best_peer": "the best peer",
}
CLOCKS = """\
All columns but three are samples of the same rounds by one clock: CUDA events around a call with a cold L2 cache, or
around a CUDA graph of calls where a call takes less than 50 µs. The *limit* is a copy of the op's compulsory bytes,
and the *share* is its time over ours.
"""
PEERS = """\
*do_bench* is our time by `triton.testing.do_bench`, which contains the launch of a short call. The *best peer* was
recorded by that clock, and its *ratio* is its time over that of *do_bench*. Only where a case is named "(graph)" the peer
was recorded by a CUDA graph, and its ratio is its time over the first column.
"""
NO_PEERS = "No times of other implementations were recorded on this GPU.\n"


def markdown(run: Mapping[str, Any]) -> str:
    """A finished run."""
    machine, rows = run["machine"], run["rows"]
    peers = any(row["best_peer"] for row in rows)
    parts = [_measured_on(machine), CLOCKS, PEERS if peers else NO_PEERS, families(rows)]
    parts += ["## Exceptions\n", *(_exceptions(rows, other) for other in _measured(rows))]
    for name in _ops(rows):
        own = sorted((row for row in rows if row["op"] == name), key=lambda row: share(row) or 0)
        parts += [f"## {name}\n", _table(own, peers)]
    return "\n".join(parts)


def families(rows: Sequence[Row]) -> str:
    """A table of the ops: the median and the worst case of each."""
    others = _measured(rows)
    heads = ["op", "cases", "share of the limit", "lowest share"]
    for other in others:
        heads.append(f"against {OTHERS[other]}")
        if other != "eager":
            heads.append("lowest")
    lines = [f"| {' | '.join(heads)} |", _rule(heads, ("op", "lowest share", "lowest"))]
    for name in _ops(rows):
        own = [row for row in rows if row["op"] == name]
        cells = [name, str(len(own)), *_median_and_worst(own, share, _percent)]
        for other in others:
            found = _median_and_worst(own, functools.partial(ratio, other=other), _times)
            cells += found[:1] if other == "eager" else found
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _measured_on(machine: Mapping[str, Any]) -> str:
    labels = ("torch", "Triton", "CUDA", "Python")
    versions = (f"{label} {machine[label.lower()]}" for label in labels)
    effort = ""
    if "rounds" in machine:
        effort = f"; {machine['rounds']} rounds for each case, {machine['seconds']:.0f} s in all"
    return ", ".join([machine["gpu"], *versions, machine["date"]]) + effort + ".\n"


def _measured(rows: Iterable[Row]) -> list[str]:
    """Which others were measured at all."""
    return [other for other in OTHERS if any(ratio(row, other) for row in rows)]


def _ops(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["op"] for row in rows))


def _median_and_worst(
    rows: Iterable[Row], value: Callable[[Row], float | None], shown: Callable[[float], str]
) -> list[str]:
    found = [(v, row["case"]) for row in rows if (v := value(row)) is not None]
    if not found:
        return ["", ""]
    worst, case = min(found)
    return [shown(statistics.median(v for v, _ in found)), f"{shown(worst)}: {case}"]


def _exceptions(rows: Iterable[Row], other: str) -> str:
    """The cases that take longer than another implementation by more than TOLERATED allows."""
    label = OTHERS[other]
    slower = sorted(
        (found, row["op"], row["case"])
        for row in rows
        if (found := ratio(row, other)) is not None and found * TOLERATED < 1
    )
    percent = f"{100 * (TOLERATED - 1):.0f} %"
    if not slower:
        return f"No case is slower than {label} by more than {percent}.\n"
    cases = (f"- {op} {case}: {_times(found)}" for found, op, case in slower)
    return "\n".join([f"Slower than {label} by more than {percent}:\n", *cases]) + "\n"


def _table(rows: Iterable[Row], peers: bool) -> str:
    heads = ["case", "us", "p20 to p80", "limit", "share", "eager", "compile"]
    if peers:
        heads += ["do_bench", "best peer", "ratio"]
    heads.append("extra MB")
    lines = [f"| {' | '.join(heads)} |", _rule(heads, ("case", "best peer"))]
    for row in rows:
        cells = [
            row["case"] + (" (sweep)" if row["group"] == "sweep" else ""),
            _us(row["ms"]) if not row["error"] else "wrong",
            f"{_us(row['p20_ms'])} to {_us(row['p80_ms'])}",
            _us(row["copy_ms"]),
            _percent(share(row)),
            _us(row["eager_ms"]),
            _us(row["compile_ms"]),
        ]
        if peers:
            peer = row["best_peer_ms"]
            cells += [
                _us(row["do_bench_ms"]),
                f"{_us(peer)} {row['best_peer']}" if peer else "",
                _times(ratio(row, "best_peer")),
            ]
        lines.append(f"| {' | '.join([*cells, megabytes(row['extra_bytes'])])} |")
    return "\n".join(lines) + "\n"


def _rule(heads: Iterable[str], texts: Sequence[str]) -> str:
    """The line below a table's head: numbers are aligned to the right."""
    return f"| {' | '.join('---' if head in texts else '---:' for head in heads)} |"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} x"


def _us(ms: float | None) -> str:
    return "" if ms is None else f"{1000 * ms:.1f}"
