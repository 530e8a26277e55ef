"""The op of a problem's source, and the line that errors name. In this process, which is fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.worker.problem_sources import NAME, ROW_NORM, with_inputs, with_reference
from warpcall_bench.programs import problem_source, source_check
from warpcall_bench.runs.trees import Written
from warpcall_kernels import InvalidInput, Op, measuring

ON_META = problem_source.WITHOUT_MEMORY
WRONG_KIND = "a problem is declared as PROBLEM = Problem(...), of warpcall_kernels; the source "


@pytest.fixture(autouse=True)
def no_module_stays() -> Iterator[None]:
    yield
    sys.modules.pop("uploaded", None)


def op(source: str, folder: Path) -> Op:
    file = folder / problem_source.file_name(NAME)
    file.write_text(source)
    return problem_source.op_of(source_check.import_source(Written(file)), NAME, file)


@pytest.mark.parametrize(
    ("name", "file"),
    [("ann/row-norm", "row_norm.py"), ("ann/a@3f2a91c0", "a.py"), ("row-norm", "row_norm.py")],
)
def test_the_file_of_a_problem_has_its_name(name: str, file: str) -> None:
    assert problem_source.file_name(name) == file


def test_the_op_describes_itself_by_the_docstring_of_its_module(tmp_path: Path) -> None:
    described = op(ROW_NORM, tmp_path).describe()

    assert described["name"] == "ann/row-norm"
    assert described["summary"] == "Row norm: each row divided by its Euclidean length."
    assert described["description"].endswith("\n\nMore text.")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", f"{WRONG_KIND}has none"),
        ("PROBLEM = 3\n", f"{WRONG_KIND}it is of type int"),
        ("from warpcall_kernels import Problem as PROBLEM\n", f"{WRONG_KIND}it is of type type"),
        (with_reference("raise KeyError('<b>')"), "line 11: KeyError: '<b>'"),
        (with_reference("raise SystemExit(3)"), "line 11: SystemExit: 3"),
        (with_reference("raise KeyboardInterrupt"), "line 11: KeyboardInterrupt: "),
        (with_reference("return f(x)") + "\n\ndef f(x):\n    return 1 / 0\n", "line 29: ZeroDiv"),
        (with_reference("return 3"), "line 10: reference must return a tensor or a tuple of"),
        (with_reference("return {'out': x}"), "line 10: reference must return a tensor or a tuple"),
        (with_reference("return torch.zeros(3)"), "line 10: reference must compute on the device"),
        (with_reference("x.sum().item()"), "line 11: RuntimeError: Tensor.item() cannot be"),
        (
            with_reference("x = x[x > 0]"),
            "line 11: NotImplementedError: The register_meta function",
        ),
        (with_reference("raise ValueError('metadata')"), "line 11: ValueError: metadata"),
        (with_inputs("return 3"), "line 14: inputs must return a dict of Sample by name, got 3"),
        (with_inputs("return {'x': 3}"), "line 14: inputs.x must be a Sample, got 3"),
        (with_inputs("return {'<script>': 3}"), "line 14: inputs must have names of letters"),
        (with_inputs("return {}['x']"), "line 15: KeyError: 'x'"),
        (ROW_NORM.replace("(x, eps)", "(y, eps)"), "line 10: reference must be callable as"),
        (
            ROW_NORM.replace("dtypes=", "bytes_moved=lambda x, eps: -1,\n    dtypes="),
            "line 23: bytes_moved must return an integer",
        ),
        (
            ROW_NORM.replace("dtypes=", "bytes_moved=lambda x, eps: x.no,\n    dtypes="),
            "line 23: AttributeError: 'Meta' object has no attribute 'no'",
        ),
    ],
)
def test_what_cannot_be_an_op_is_refused_with_the_line(
    source: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as raised:
        op(source, tmp_path)

    assert str(raised.value).startswith(message)
    assert str(tmp_path) not in str(raised.value)
    assert str(raised.value).endswith(ON_META) is ("item" in source or "x > 0" in source)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("reference=3", "line 18: reference must be a function, got 3"),
        ("reference=row_norm, sizes=(3,)", "line 18: sizes must be a tuple of Size, got 3 in it"),
        ("refference=row_norm", "line 18: TypeError: "),
        ("", "line 18: TypeError: "),
    ],
)
def test_a_wrong_declaration_is_an_error_of_the_import(
    declared: str, message: str, tmp_path: Path
) -> None:
    source = ROW_NORM[: ROW_NORM.index("PROBLEM")] + f"PROBLEM = Problem({declared})\n"
    if declared.startswith("reference"):
        source = source.replace("Problem(", "Problem(inputs=inputs, ")

    with pytest.raises(source_check.Refused) as raised:
        op(source, tmp_path)

    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("source", "argument", "message"),
    [
        (with_inputs("assert rows < 17"), "inputs", "line 15: AssertionError: "),
        (with_reference("assert len(x) < 17"), "reference", "line 11: AssertionError: "),
        (
            ROW_NORM.replace("dtypes=", "bytes_moved=lambda x, eps: 17 - x.shape[0],\n    dtypes="),
            "bytes_moved",
            "line 23: bytes_moved must return an integer between 0 and 4611686018427387904, got -1",
        ),
    ],
)
def test_a_case_names_the_line_too(
    source: str, argument: str, message: str, tmp_path: Path
) -> None:
    found = op(source, tmp_path)

    with pytest.raises(InvalidInput) as raised:
        measuring.make_case(found, {"sizes": {"rows": 18}})

    assert str(raised.value).startswith(message)
    assert raised.value.argument == argument
    assert measuring.make_case(found, {"sizes": {"rows": 15}}).key
