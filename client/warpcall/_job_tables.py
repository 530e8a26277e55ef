"""Jobs, results, comparisons and the queue, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from warpcall._job_progress import span, waiting

Told = Mapping[str, Any]


def results_table(results: Told, first: str) -> Table:
    """A row for each implementation of each case; `first` is what the others are compared with."""
    table = Table(
        "case", "implementation", "median", "95 % CI", f"time / {first}", "95 % CI", "verdict", "GB/s",
        "of the limit", box=None, pad_edge=False,
    )  # fmt: skip
    before = None
    for row in results["measurements"]:
        case = row["case"].partition(" ")[2] or row["case"]
        shown = escape("" if case == before else case)
        before = case
        if row["median_us"] is None:
            table.add_row(shown, row["implementation"], escape(row["status"]))
            continue
        table.add_row(
            shown,
            row["implementation"],
            time_of(row["median_us"]),
            interval(time_of, row["ci_low_us"], row["ci_high_us"]),
            "" if row["ratio"] is None else f"{row['ratio']:.3f}",
            interval("{:.3f}".format, row["ratio_low"], row["ratio_high"]),
            row["verdict"] or "",
            "" if row["gb_per_s"] is None else f"{row['gb_per_s']:.4g}",
            "" if row["share_of_limit"] is None else f"{row['share_of_limit']:.0%}",
        )
    return table


def remarks(results: Told) -> list[str]:
    """What one should know before quoting the table: a line each."""
    lines = []
    for row in results["measurements"]:
        if row["error"]:
            lines.append(f"{row['implementation']}, {row['case']}: {one_line(row['error'])}")
    loose = sum(not case["converged"] for case in results.get("cases", []))
    if loose:
        lines.append(
            f"{loose} of {len(results['cases'])} cases did not converge: a higher precision may "
            "narrow the intervals"
        )
    tagged = {tag for case in results.get("cases", []) for tag in case["tags"]}
    if tagged:
        lines.append(f"tags: {', '.join(sorted(tagged))}")
    return lines


def jobs_table(jobs: Iterable[Told]) -> Table:
    """The caller's jobs."""
    columns = ("id", "user", "op", "state", "cases", "precision", "submitted", "tags")
    table = Table(*columns, box=None, pad_edge=False)
    for job in jobs:
        table.add_row(
            job["id"],
            escape(job["user"]),
            job["op"],
            escape(waiting(job)),
            f"{job['cases_done']}/{job['cases_total']}",
            job["precision"],
            f"{ago(job['created_at'])} ago",
            escape(" ".join(job["tags"])),
        )
    return table


def comparison_table(found: Told) -> Table:
    """Two jobs side by side."""
    columns = ("case", "implementation", "a", "b", "b / a", "95 % CI", "b is")
    table = Table(*columns, box=None, pad_edge=False)
    for row in found["rows"]:
        table.add_row(
            escape(row["case"]),
            row["implementation"],
            time_of(row["a_us"]),
            time_of(row["b_us"]),
            f"{row['ratio']:.3f}",
            interval("{:.3f}".format, row["ratio_low"], row["ratio_high"]),
            row["verdict"],
        )
    return table


def queue_table(queue: Told) -> Table:
    """Everyone's jobs that run or wait."""
    columns = ("", "id", "user", "op", "state", "cases", "priority", "starts in", "ends in", "on")
    table = Table(*columns, box=None, pad_edge=False)
    for entry in queue["entries"]:
        table.add_row(
            str(entry["position"] or ">"),
            entry["id"],
            escape(entry["user"]),
            entry["op"],
            entry["state"],
            f"{entry['cases_done']}/{entry['cases_total']}",
            entry["priority"],
            span(entry["starts_in_s"]) if entry["position"] else "",
            span(entry["ends_in_s"]),
            entry["device"] or "",
        )
    return table


def lanes_table(health: Told) -> Table:
    """The server's devices."""
    table = Table("lane", "state", "device", box=None, pad_edge=False)
    for lane in health.get("lanes", []):
        table.add_row(lane["name"], lane["state"], escape(lane["device"] or "no device yet"))
    return table


def time_of(us: float) -> str:
    """A time with its unit, four digits."""
    return f"{us:.4g} us" if us < 1e4 else f"{us / 1e3:.4g} ms" if us < 1e7 else f"{us / 1e6:.4g} s"


def interval(form: Any, low: float | None, high: float | None) -> str:
    """Both ends; nothing if one is not known."""
    return "" if low is None or high is None else f"{form(low)} to {form(high)}"


def ago(moment: str) -> str:
    """How long ago that was."""
    past = datetime.now(UTC) - datetime.fromisoformat(moment)
    return span(max(0.0, past.total_seconds()))


def one_line(text: str) -> str:
    """The beginning of a text."""
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:197] + "..."
