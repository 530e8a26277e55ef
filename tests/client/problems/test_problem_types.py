"""Answers of the problems API as types."""

from __future__ import annotations

import pytest

from tests.client.problems.answers import DECLARATION, DETAILS, PROBLEM, PROBLEMS, VERSION
from warpcall import TransportError
from warpcall._jobs.parse import parse
from warpcall.problems import ProblemDetails, ProblemList, ProblemVersion, UploadedProblem


def test_every_answer_is_read() -> None:
    page = parse(ProblemList, {**PROBLEMS, "next": "n7"}, "a list")
    details = parse(ProblemDetails, DETAILS, "a problem")
    uploaded = parse(UploadedProblem, {**PROBLEM, "created": True}, "a problem")

    assert [one.name for one in page.problems] == ["ann/row-norm"]
    assert page.next == "n7"
    assert (details.inputs, details.params) == (["x"], ["eps"])
    assert details.declaration == DECLARATION
    assert details.versions == [ProblemVersion(**VERSION)]
    assert uploaded.created


@pytest.mark.parametrize("field", DETAILS)
def test_a_problem_without_a_field_is_refused(field: str) -> None:
    lacking = {name: value for name, value in DETAILS.items() if name != field}

    with pytest.raises(TransportError, match=f"it must have '{field}'"):
        parse(ProblemDetails, lacking, "a problem")


def test_names_that_are_no_texts_are_refused() -> None:
    with pytest.raises(TransportError, match="inputs must be a list of str"):
        parse(UploadedProblem, {**PROBLEM, "created": True, "inputs": ["x", 3]}, "a problem")
