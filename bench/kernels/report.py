"""A benchmark's results as text for a terminal, and what is computed from a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

HEAD = (
    f"{'op':24}{'case':44}{'ms':>9}{'p20':>9}{'p80':>9}{'limit':>9}{'share':>6}"
    f"{'eager':>9}{'compile':>9}{'do_bench':>9}{'peer':>9}{'extra':>8}  best peer\n"
)


def line(row: Row) -> str:
    """One case as a line: times in ms, extra memory in MB."""
    times = "".join(f"{_ms(row[f'{name}ms']):>9}" for name in ("", "p20_", "p80_", "copy_"))
    names = ("eager", "compile", "do_bench", "best_peer")
    others = "".join(f"{_ms(row[f'{name}_ms']):>9}" for name in names)
    note = f"WRONG: {row['error']}" if row["error"] else row["best_peer"] or ""
    found = share(row)
    reached = "-" if found is None else f"{100 * found:.0f}%"
    return (
        f"{row['op']:24}{row['case']:44}{times}{reached:>6}"
        f"{others}{megabytes(row['extra_bytes']):>8}  {note}\n"
    )


def share(row: Row) -> float | None:
    """The share of the limit; None for a wrong result, which has no time."""
    return row["copy_ms"] / row["ms"] if row["copy_ms"] and row["ms"] else None


def ratio(row: Row, other: str) -> float | None:
    """The time of "eager", "compile" or "best_peer" over ours, by one clock; None if not measured.

    A peer that was timed by `do_bench` is compared with our time by `do_bench`.
    """
    by_do_bench = other == "best_peer" and row["peer_clock"] == "do_bench"
    ours = row["do_bench_ms" if by_do_bench else "ms"]
    theirs = row[f"{other}_ms"]
    return theirs / ours if theirs and ours else None


def megabytes(nbytes: int | None) -> str:
    """Bytes as a number of MB; nothing if they were not measured."""
    return "" if nbytes is None else f"{nbytes / 1e6:.1f}"


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.4f}"
