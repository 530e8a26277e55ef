"""What the command prints of compute-sanitizer, for one job and for one on several models of a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.client.implementations.scripted_lab import row
from warpcall._cli.groups import group_lines
from warpcall._cli.job_output import (
    MOST_SANITIZER,
    SANITIZER,
    artefact_lines,
    sanitizer_lines,
)
from warpcall._jobs.parse import parse
from warpcall.groups import GroupPart, GroupResults, GroupRow
from warpcall.jobs.results import Measurement

CLEAN = {"memcheck": "0 errors", "racecheck": "0 hazards (0 errors, 0 warnings)"}
FOUND = {**CLEAN, "memcheck": "2 errors, first: Invalid __global__ read at _k in mine.py:9"}


def measured(sanitizer: dict[str, str], name: str = "ann/mine") -> Measurement:
    values: dict[str, Any] = row(name, sanitizer=sanitizer)
    return parse(Measurement, values, "a row")


def test_each_tool_has_a_line_those_with_errors_first() -> None:
    clean, found = measured(CLEAN), measured(FOUND, "ann/other")

    lines = sanitizer_lines([measured({}, "torch"), clean, found])

    assert (clean.sanitizer_found, found.sanitizer_found) == (False, True)
    assert [line.partition(f", {clean.case}: ")[2][:17] for line in lines] == [
        "memcheck: 2 error", "racecheck: 0 haza", "memcheck: 0 error", "racecheck: 0 haza",
    ]  # fmt: skip
    assert lines[0].startswith("sanitizer: ann/other, ")


def test_the_lines_are_bounded() -> None:
    lines = sanitizer_lines([measured(CLEAN)] * MOST_SANITIZER)

    assert len(lines) == MOST_SANITIZER + 1
    assert lines[-1] == f"sanitizer: {MOST_SANITIZER} more lines"
    assert sanitizer_lines([measured({})]) == []


def test_artefacts_are_named_only_if_there_are_some() -> None:
    missing = SimpleNamespace(kind=SANITIZER, error="it ran without a GPU")
    stored = SimpleNamespace(kind=SANITIZER, error="")

    def lines(*found: SimpleNamespace) -> list[str]:
        info = SimpleNamespace(request={"sanitize": True})
        job: Any = SimpleNamespace(info=info, id="j1", artefacts=lambda: found)
        return artefact_lines(job)

    assert lines(missing) == []
    assert lines(missing, stored) == ["1 artefact: warpcall artefacts j1"]


def test_a_group_says_on_which_model_it_was_found() -> None:
    parts = [GroupPart(gpu=gpu, job=None) for gpu in ("H100", "H200")]
    of_case = GroupRow(
        position=0, case="c", implementation="ann/mine", times=[measured(CLEAN), measured(FOUND)]
    )
    found = GroupResults(id="g", parts=parts, remarks=[], rows=[of_case])

    lines = [line for line in group_lines(found) if "sanitizer" in line]

    assert len(lines) == 4
    assert lines[0].startswith("H100: sanitizer: ann/mine, ")
    assert [line for line in lines if "2 errors" in line] == [
        line for line in lines if line.startswith("H200: ") and ": memcheck: " in line
    ]
