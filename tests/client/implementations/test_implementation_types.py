"""Answers of the implementations API as types."""

from __future__ import annotations

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
    assert uploaded.created


def test_an_environment_is_read() -> None:
    environment = parse(Environment, ENVIRONMENT, "an environment")

    assert environment.packages == [("numpy", "2.3.1"), ("torch", "2.11.0")]
    assert environment.tools == {"ptxas": "/usr/bin/ptxas", "nvcc": None}
    assert environment.limits == UploadLimits(**ENVIRONMENT["limits"])


@pytest.mark.parametrize("field", SHIPPED)
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
