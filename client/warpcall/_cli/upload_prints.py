"""What uploads printed in the cases of a job, as lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from warpcall import NotFound
from warpcall._cli.output import plural
from warpcall._jobs.job import Job
from warpcall._jobs.names import is_problem
from warpcall.jobs import PrintedText
from warpcall.jobs.results import Measurement

SHOWN_TEXTS, SHOWN_LINES = 4, 10  # below the results of a job


def text_lines(one: PrintedText) -> list[str]:
    """What one upload printed in a case, below a line that says so."""
    return [_title(one), *_lines(one)]


def printed_lines(job: Job, rows: Iterable[Measurement]) -> list[str]:
    """The ends of what uploads printed, first those of rows that failed; empty without any.

    Args:
        rows: of the results of the job.
    """
    if not is_problem(job.op) and not any("/" in name for name in job.implementations):
        return []
    try:
        found = job.printed()
    except NotFound:  # an older server
        return []
    failed = {(row.position, row.implementation) for row in rows if row.status != "ok"}
    found.sort(key=lambda one: (one.position, one.implementation) not in failed)
    lines = [line for one in found[:SHOWN_TEXTS] for line in (_title(one), *_last(_lines(one)))]
    if found:
        lines.append(f"{plural(len(found), 'printed text')}: warpcall printed {job.id}")
    return lines


def _title(one: PrintedText) -> str:
    return f"{one.implementation} printed in {one.case}:"


def _lines(one: PrintedText) -> list[str]:
    return [f"  {line}" for line in one.text.expandtabs(4).rstrip("\n").split("\n")]


def _last(lines: Sequence[str]) -> list[str]:
    left = len(lines) - SHOWN_LINES
    return [f"  ({plural(left, 'line')} before)", *lines[left:]] if left > 0 else [*lines]
