"""Shows what a job with the precision "check" has found: which implementation is right in which case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from warpcall._cli.output import plural
from warpcall._cli.tables import INDENT, one_line, text_lines
from warpcall.jobs.results import Measurement, Results

RIGHT, WRONG, UNCHECKED = "right", "wrong", "not checked"
WORDS = {
    "ok": RIGHT,
    "wrong_result": WRONG,
    "unchecked": UNCHECKED,
    "error": "error",
    "crashed": "crashed",
    "timeout": "timed out",
    "compile_error": "does not compile",
    "cuda_error": "CUDA error",
    "oom": "out of memory",
}
NEEDS_GPU = "it needs a GPU"  # why a result is not checked, if the server does not say it
MAX_TRACEBACK = 4096  # characters
SMALL = (
    "no GPU: cases with more than 131,072 elements are left out, and long rows have 4,096 of them"
)


def result_of(row: Measurement) -> str:
    """What a row says of its implementation, such as "right", "wrong" or "crashed"."""
    return WORDS.get(row.status, row.status.replace("_", " "))


def passed(rows: Sequence[Measurement]) -> bool:
    """Whether nothing is wrong, and each implementation is known to be right in some case."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.implementation, set()).add(row.status)
    each = found.values()
    return bool(each) and all("ok" in one and one <= {"ok", "unchecked"} for one in each)


def check_lines(results: Results, *, odd: bool) -> list[str]:
    """The table: a line for each case of each implementation, with the reason if it is not right.

    Args:
        odd: whether the cases are the op's odd cases.
    """
    rows = results.measurements
    width = max((len(result_of(row)) for row in rows), default=0)
    lines: list[str] = []
    for name in dict.fromkeys(row.implementation for row in rows):
        lines.append(name)
        shown: set[str] = set()
        for row in rows:
            if row.implementation == name:
                lines.append(f"{INDENT}{result_of(row):{width}}  {row.case}")
                lines += (f"{INDENT}{'':{width}}  {line}" for line in _reason(row, shown))
    lines += (f"{name}: {_counted(counts)}" for name, counts in counts_of(rows).items())
    if odd and any(case.device == "cpu" for case in results.cases):
        lines.append(SMALL)
    return lines


def _reason(row: Measurement, shown: set[str]) -> Iterator[str]:
    """Why a row is not right; a traceback that several rows have stands below the first of them."""
    if row.status == "ok":
        return
    if row.status == "unchecked":
        yield one_line(row.error or NEEDS_GPU)
        return
    if row.error:
        yield one_line(row.error)
    if row.traceback and row.traceback not in shown:
        shown.add(row.traceback)
        yield from (f"{INDENT}{line}" for line in text_lines(row.traceback[:MAX_TRACEBACK]))


def counts_of(rows: Sequence[Measurement]) -> dict[str, Counter[str]]:
    """The number of cases with each result, by implementation."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row.implementation, Counter())[result_of(row)] += 1
    return counts


def _counted(counts: Mapping[str, int]) -> str:
    total = plural(sum(counts.values()), "case")
    order = sorted(counts, key=lambda word: (word != RIGHT, word))
    return f"{total}, " + ", ".join(f"{counts[word]} {word}" for word in order)


def check_json(results: Results) -> dict[str, Any]:
    """The same as JSON data."""
    rows = results.measurements
    return {
        "id": results.id,
        "state": results.state,
        "passed": passed(rows),
        "checks": [
            {
                "implementation": row.implementation,
                "case": row.case,
                "result": result_of(row),
                "reason": row.error or (NEEDS_GPU if row.status == "unchecked" else None),
                "traceback": row.traceback,
                "sanitizer": row.sanitizer,
            }
            for row in rows
        ],
        "counts": {name: dict(counts) for name, counts in counts_of(rows).items()},
    }
