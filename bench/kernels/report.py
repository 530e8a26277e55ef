"""Benchmark results as text: a line for each case, and tables in Markdown of a finished run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]

HEAD = (
    f"{'op':24}{'case':44}{'ms':>9}{'p20':>9}{'p80':>9}{'limit':>9}{'share':>6}"
    f"{'eager':>9}{'compile':>9}{'peer':>9}{'extra':>8}  best peer\n"
)


def line(row: Row) -> str:
    """One case as a line: times in ms, extra memory in MB."""
    times = "".join(f"{_ms(row[f'{name}ms']):>9}" for name in ("", "p20_", "p80_", "copy_"))
    others = "".join(f"{_ms(row[f'{name}_ms']):>9}" for name in ("eager", "compile", "best_peer"))
    note = f"WRONG: {row['error']}" if row["error"] else row["best_peer"] or ""
    share = _share(row)
    reached = "-" if share is None else f"{100 * share:.0f}%"
    return (
        f"{row['op']:24}{row['case']:44}{times}{reached:>6}"
        f"{others}{_mb(row['extra_bytes']):>8}  {note}\n"
    )


def markdown(run: Mapping[str, Any]) -> str:
    """A finished run: a summary of the ops, then each case. With a ratio above 1, ours is faster."""
    machine, rows = run["machine"], run["rows"]
    names = list(dict.fromkeys(row["op"] for row in rows))
    versions = (
        f"{label} {machine[label.lower()]}" for label in ("torch", "Triton", "CUDA", "Python")
    )
    parts = [", ".join([machine["gpu"], *versions, machine["date"]]) + ".\n", _summary(names, rows)]
    for name in names:
        parts += [f"## {name}\n", _table([row for row in rows if row["op"] == name])]
    return "\n".join(parts)


def _summary(names: Iterable[str], rows: Iterable[Row]) -> str:
    lines = [
        "| family | cases | share of the limit | against torch eager | against torch.compile | against the best peer |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        own = [row for row in rows if row["op"] == name]
        ratios = (
            _mean(row[f"{other}_ms"] / row["ms"] for row in own if row[f"{other}_ms"] and row["ms"])
            for other in ("eager", "compile", "best_peer")
        )
        share = _mean(share for share in map(_share, own) if share is not None)
        cells = [name, str(len(own)), f"{100 * share:.0f} %", *(_times(r) for r in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Row]) -> str:
    lines = [
        "| case | us | p20 to p80 | limit | share | eager | compile | best peer | ratio to it | extra MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for row in rows:
        peer, ours, share = row["best_peer_ms"], row["ms"], _share(row)
        cells = [
            row["case"] + (" (sweep)" if row["group"] == "sweep" else ""),
            _us(ours),
            f"{_us(row['p20_ms'])} to {_us(row['p80_ms'])}",
            _us(row["copy_ms"]),
            "" if share is None else f"{100 * share:.0f} %",
            _us(row["eager_ms"]),
            _us(row["compile_ms"]),
            f"{_us(peer)} {row['best_peer']}" if peer else "",
            _times(peer / ours) if peer and ours else "",
            _mb(row["extra_bytes"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _share(row: Row) -> float | None:
    """The share of the limit; None for a wrong result, which has no time."""
    return row["copy_ms"] / row["ms"] if row["copy_ms"] and row["ms"] else None


def _mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN if there are no values."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _times(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{ratio:.2f} x"


def _us(ms: float | None) -> str:
    return "" if ms is None else f"{1000 * ms:.1f}"


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.4f}"


def _mb(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 1e6:.1f}"
