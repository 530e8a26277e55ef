"""Jobs, results, comparisons and the queue, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from warpcall._cli.output import table_of
from warpcall._jobs.progress import span, waiting

Payload = Mapping[str, Any]


RESULTS = ("median", "95 % CI", "ratio", "95 % CI", "verdict", "GB/s", "limit")
COMPARED = ("a", "b", "ratio", "95 % CI", "verdict")


def results_lines(results: Payload, first: str) -> list[str]:
    """A heading for each case, and below it a row for each implementation.

    Args:
        first: the implementation that the others are compared with.
    """
    rows = []
    for row in results["measurements"]:
        ok = row["median_us"] is not None
        cells = (
            microseconds(row["median_us"]),
            interval(microseconds, row["ci_low_us"], row["ci_high_us"]),
            ratio(row["ratio"]),
            interval(ratio, row["ratio_low"], row["ratio_high"]),
            row["verdict"] or "",
            "" if row["gb_per_s"] is None else f"{row['gb_per_s']:.4g}",
            "" if row["share_of_limit"] is None else f"{row['share_of_limit']:.0%}",
        )
        rows.append((row["case"], row["implementation"], cells if ok else (row["status"],)))
    return [
        f"times in us; ratio and verdict: to {first}, above 1 takes longer; limit: a copy's speed",
        *by_case(RESULTS, rows),
    ]


def comparison_lines(found: Payload) -> list[str]:
    """Two jobs side by side, case by case."""
    rows = []
    for row in found["rows"]:
        cells = (
            microseconds(row["a_us"]),
            microseconds(row["b_us"]),
            ratio(row["ratio"]),
            interval(ratio, row["ratio_low"], row["ratio_high"]),
            row["verdict"],
        )
        rows.append((row["case"], row["implementation"], cells))
    heading = "times in us; ratio and verdict: of b to a, above 1 takes longer"
    return [heading, *by_case(COMPARED, rows)]


def by_case(names: Sequence[str], rows: Sequence[tuple[str, str, Sequence[str]]]) -> list[str]:
    """Lines of 80 characters where that will do: cases have lines of their own, not a column."""
    whole = [cells for *_, cells in rows if len(cells) == len(names)]
    widths = [max(map(len, column)) for column in zip(names, *whole, strict=True)]
    label_width = max(len(label) for _, label, _ in rows)

    def line(label: str, cells: Sequence[str]) -> str:
        aligned = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
        return " ".join((f"  {label:{label_width}}", *aligned)).rstrip()

    lines, before = [line("", names)], None
    for case, label, cells in rows:
        if case != before:
            lines.append(case)
        before = case
        lines.append(line(label, cells))
    return lines


def converged(results: Payload) -> str:
    """In how many cases the intervals came to be as narrow as they should."""
    cases = results.get("cases", [])
    return f"{sum(bool(case['converged']) for case in cases)} of {len(cases)} cases converged"


def remarks(results: Payload) -> list[str]:
    """What one should know before quoting the table: a line each."""
    lines = []
    for row in results["measurements"]:
        if row["error"]:
            lines.append(f"{row['implementation']}, {row['case']}: {one_line(row['error'])}")
    tagged = {tag for case in results.get("cases", []) for tag in case["tags"]}
    if tagged:
        lines.append(f"tags: {', '.join(sorted(tagged))}")
    return lines


def jobs_table(jobs: Iterable[Payload]) -> Table:
    """The caller's jobs."""
    columns = ("id", "user", "op", "state", "cases", "precision", "submitted", "tags")
    rows = [
        (
            job["id"],
            job["user"],
            job["op"],
            waiting(job),
            f"{job['cases_done']}/{job['cases_total']}",
            job["precision"],
            f"{ago(job['created_at'])} ago",
            " ".join(job["tags"]),
        )
        for job in jobs
    ]
    return table_of(columns, rows)


def history_table(found: Payload) -> Table:
    """A series; what changed is named where it did, from the point below it."""
    columns = ("measured", "job", "user", "us", "95 % CI", "limit", "what changed")
    rows = []
    for point in found["points"]:
        row = point["measurement"]
        share = row["share_of_limit"]
        cells = (
            f"{ago(point['finished_at'])} ago",
            point["job"],
            point["user"],
            microseconds(row["median_us"]) or row["status"],
            interval(microseconds, row["ci_low_us"], row["ci_high_us"]),
            "" if share is None else f"{share:.0%}",
            ", ".join(point["changed"]),
        )
        rows.append(cells)
    return table_of(columns, rows)


def queue_table(queue: Payload) -> Table:
    """Everyone's jobs that run or wait."""
    columns = ("", "id", "user", "op", "state", "cases", "priority", "starts in", "ends in", "on")
    rows = [
        (
            entry["position"] or ">",
            entry["id"],
            entry["user"],
            entry["op"],
            entry["state"],
            f"{entry['cases_done']}/{entry['cases_total']}",
            entry["priority"],
            span(entry["starts_in_s"]) if entry["position"] else "",
            span(entry["ends_in_s"]),
            entry["device"] or "",
        )
        for entry in queue["entries"]
    ]
    return table_of(columns, rows)


def lanes_table(health: Payload) -> Table:
    """The server's devices."""
    lanes = health.get("lanes", [])
    rows = [(lane["name"], lane["state"], lane["device"] or "no device yet") for lane in lanes]
    return table_of(("lane", "state", "device"), rows)


def microseconds(us: float | None) -> str:
    """Four digits, more before the point if there are more."""
    return "" if us is None else f"{us:.4g}" if us < 1e3 else f"{us:,.0f}"


def ratio(value: float | None) -> str:
    """Three digits after the point."""
    return "" if value is None else f"{value:.3f}"


def interval(form: Callable[[float], str], low: float | None, high: float | None) -> str:
    """Both ends; nothing if one is not known."""
    return "" if low is None or high is None else f"{form(low)}-{form(high)}"


def ago(moment: str) -> str:
    """How long ago that was."""
    past = datetime.now(UTC) - datetime.fromisoformat(moment)
    return span(max(0.0, past.total_seconds()))


def one_line(text: str) -> str:
    """The beginning of a text."""
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:197] + "..."
