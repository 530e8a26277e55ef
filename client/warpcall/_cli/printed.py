"""Results as texts, for `print` in a program: the tables that the commands print."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich.console import Console

from warpcall._cli.groups import group_lines
from warpcall._cli.output import LINE_CHARACTERS
from warpcall._cli.regression import regression_lines
from warpcall._cli.tables import (
    board_lines,
    compared_lines,
    converged,
    history_table,
    remarks,
    results_lines,
)
from warpcall._explain.tables import report_lines
from warpcall._extras.tables import Table
from warpcall._text import clean
from warpcall._verify.lines import verification_lines
from warpcall.compile_reports import CompileReport
from warpcall.groups import GroupResults
from warpcall.jobs.results import Board, Comparison, History, Results
from warpcall.regressions import Regression
from warpcall.verifications import Verification

WIDTH = 1000  # so that no row is wrapped


def text_of(found: Table) -> str:
    """The lines that a command prints of a result, with control characters escaped."""
    return "\n".join(clean(line, LINE_CHARACTERS) for line in _lines(found))


def _lines(found: Table) -> Iterable[str]:
    if isinstance(found, Results):
        return _results_lines(found)
    if isinstance(found, GroupResults):
        return group_lines(found)
    if isinstance(found, Comparison):
        return compared_lines(found)
    if isinstance(found, Board) and found.standings:
        return board_lines(found)
    if isinstance(found, History) and found.points:
        return _history_lines(found)
    if isinstance(found, CompileReport):
        return report_lines(found, found.op)
    if isinstance(found, Verification):
        return verification_lines(found, found.op)
    if isinstance(found, Regression):
        return regression_lines(found)
    return [repr(found)]


def _results_lines(found: Results) -> list[str]:
    rows = found.measurements
    # Rows are in the order of the job's implementations; the others are compared with the first.
    table = results_lines(found, rows[0].implementation) if rows else []
    return [*table, f"{found.id} {found.state}, {converged(found)}", *remarks(found)]


def _history_lines(found: History) -> Iterator[str]:
    yield f"{found.implementation}, {found.case}"
    text = io.StringIO()
    Console(file=text, width=WIDTH).print(history_table(found))
    yield from map(str.rstrip, text.getvalue().splitlines())
