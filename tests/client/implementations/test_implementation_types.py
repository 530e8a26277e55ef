"""Answers of the implementations API as types."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.implementations.answers import (
    ENVIRONMENT,
    IMPLEMENTATIONS,
    SHIPPED,
    UPLOAD_DETAILS,
    UPLOADED,
    VERSION,
)
from warpcall import TransportError
from warpcall._jobs.parse import parse
from warpcall.implementations import (
    Environment,
    ImplementationDetails,
    ImplementationList,
    ImplementationVersion,
    ModuleError,
    UploadedImplementation,
    UploadLimits,
)


def test_every_answer_is_read() -> None:
    page = parse(ImplementationList, IMPLEMENTATIONS, "a list")
    details = parse(ImplementationDetails, UPLOAD_DETAILS, "an implementation")
    uploaded = parse(UploadedImplementation, {**UPLOADED, "created": True}, "an implementation")

    assert [one.name for one in page.implementations] == ["torch", "ann/my_permute"]
    assert page.errors == [ModuleError(module="lab_kernels", error="No module named 'lab'")]
    assert page.implementations[0].version is None
    assert details.versions == [ImplementationVersion(**VERSION)]
    assert details.odd_cases == []
    assert uploaded.created


COUNTS = dict.fromkeys(("right", "wrong", "failed", "raised", "not_checked"), 0)
FIRST = {"first_case": "permute x=F32[4,6]:strided", "first_reason": "out differs"}


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"right": 58}, "is right in 58 of 58 odd cases"),
        ({"right": 1}, "is right in 1 of 1 odd case"),
        (
            {"right": 50, "raised": 8, "not_checked": 2},
            "is right in 50 and raises an exception in 8 of 58 odd cases (2 more were not checked)",
        ),
        (
            {"right": 51, "wrong": 7, **FIRST},
            "is wrong in 7 of 58 odd cases, first: permute x=F32[4,6]:strided: out differs",
        ),
        (
            {"right": 5, "wrong": 1, "failed": 2, "raised": 3, **FIRST},
            (
                "is wrong in 1, crashes or hangs in 2 and raises an exception in 3 of 11 odd "
                "cases, first: permute x=F32[4,6]:strided: out differs"
            ),
        ),
    ],
)
def test_what_was_found_in_odd_cases_is_a_sentence(counts: dict[str, Any], text: str) -> None:
    none = dict.fromkeys(FIRST)
    stored = {"device": "gpu", **COUNTS, **none, **counts}

    details = parse(
        ImplementationDetails, {**UPLOAD_DETAILS, "odd_cases": [stored]}, "an implementation"
    )

    (found,) = details.odd_cases
    assert found.text == text
    assert found.is_wrong is ("wrong" in counts or "failed" in counts)


def test_an_environment_is_read() -> None:
    environment = parse(Environment, ENVIRONMENT, "an environment")

    assert environment.packages == [("numpy", "2.3.1"), ("torch", "2.11.0")]
    assert environment.tools == {"ptxas": "/usr/bin/ptxas", "nvcc": None}
    assert environment.limits == UploadLimits(**ENVIRONMENT["limits"])


@pytest.mark.parametrize("field", [one for one in SHIPPED if one not in ("verified", "language")])
def test_an_implementation_without_a_field_is_refused(field: str) -> None:
    lacking = {name: value for name, value in SHIPPED.items() if name != field}

    with pytest.raises(TransportError, match=rf"implementations\[0\] must have '{field}'"):
        parse(ImplementationList, {**IMPLEMENTATIONS, "implementations": [lacking]}, "a list")


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        (["numpy"], r"packages\[0\] must be a list of 2 values, got 'numpy'"),
        ([["numpy"]], r"packages\[0\] must be a list of 2 values"),
        ([["numpy", "2", "3"]], r"packages\[0\] must be a list of 2 values"),
        ([["numpy", "2"], ["torch", 2]], r"packages\[1\]\[1\] must be a text, got 2"),
    ],
)
def test_packages_of_another_shape_are_refused(packages: list[object], message: str) -> None:
    with pytest.raises(TransportError, match=message):
        parse(Environment, {**ENVIRONMENT, "packages": packages}, "an environment")
