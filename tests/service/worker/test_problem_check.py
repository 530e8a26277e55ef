"""The process that checks a problem: what it answers about uploads and about cases of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.service.worker.problem_sources import NAME, ROW_NORM, with_inputs, with_reference
from tests.service.worker.processes import answer_of
from warpcall_bench.runs.messages import ProblemRequest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]

JOB = {"max_cases": 4, "memory_bytes": 1 << 40, "device": "cuda:0"}


def check(
    folder: Path, source: str, job: dict[str, Any] | None = None, limit_s: float = 30.0
) -> dict[str, Any] | None:
    request: ProblemRequest = {"name": NAME, "source": source, "job": job, "limit_s": limit_s}
    return answer_of("problem_check", request, folder)


def test_a_problem_is_declared_with_the_codes_of_dtypes(tmp_path: Path) -> None:
    answer = check(tmp_path, ROW_NORM + "\nprint('hello')\n")

    assert answer is not None
    declaration = answer.pop("declaration")
    assert answer == {
        "doc": "Row norm: each row divided by its Euclidean length.",
        "function": "row_norm",
    }
    assert declaration["name"] == "ann/row-norm"
    assert declaration["dtypes"] == ["F32", "BF16"]
    assert declaration["inputs"][0]["dtypes"] == ["F32", "BF16"]
    assert [size["name"] for size in declaration["sizes"]] == ["rows", "columns"]
    assert declaration["description"].endswith("More text.")


def test_odd_texts_and_dtypes_are_sent_in_a_form_that_the_server_takes(tmp_path: Path) -> None:
    odd = ROW_NORM.replace("Row norm", "\\udc80<b>").replace("More text", "x" * 10_000)

    answer = check(tmp_path, odd.replace("row_norm", "größe").replace("bfloat16", "complex128"))

    assert answer is not None
    assert answer["doc"].startswith("\\udc80<b>: each")
    assert answer["function"] == ""
    assert len(answer["declaration"]["description"]) == 1000
    assert answer["declaration"]["dtypes"] == ["F32", "C128"], "it is not on the wire"


def test_cases_of_a_job_are_named_and_their_memory_is_known(tmp_path: Path) -> None:
    sweep = {"dtypes": ["BF16"], "sizes": {"rows": [4096], "columns": [1000, 1024]}}

    answer = check(tmp_path, ROW_NORM, {**JOB, "sweep": sweep})

    assert answer is not None
    first, second = answer["cases"]
    assert first["key"] == "ann/row-norm x=BF16[4096,1000] eps=1e-06"
    assert second["spec"] == {
        "inputs": {"x": {"shape": [4096, 1024], "dtype": "BF16", "values": "normal"}},
        "params": {"eps": 1e-06},
    }
    assert second["device_bytes"] > first["device_bytes"] > 4096 * 1000 * 2 * 2


@pytest.mark.parametrize(
    ("source", "job", "error", "field"),
    [
        ("PROBLEM = (\n", None, "line 1: SyntaxError: '(' was never closed", "source"),
        ("import nothing_like_this\n", None, "line 1: ModuleNotFoundError: No module", "source"),
        (with_reference("raise SystemExit(3)"), None, "line 11: SystemExit: 3", "source"),
        (with_reference("return 3"), {"cases": [{}]}, "line 10: reference must return", "source"),
        (
            with_inputs("rows = 10**15"),
            None,
            "line 14: inputs.x.shape must be a list of at most 64",
            "source",
        ),
        (with_inputs("def f(): f()", "f()"), None, "line 15: RecursionError: ", "source"),
        (
            with_inputs("return {f'x{i}': Sample((1,), dtype) for i in range(10_000)}"),
            None,
            "line 14: inputs must return at most 32 tensors, got 10000",
            "source",
        ),
        (
            ROW_NORM,
            {"cases": [{}, {"sizes": {"rows": 0}}]},
            f"cases.1: sizes.rows must be an integer between 1 and {2**40}, got 0",
            "cases.1.sizes.rows",
        ),
        (
            ROW_NORM,
            {"sweep": {"sizes": {"rows": [0]}}},
            "sweep: sizes.rows must be an integer between",
            "sweep.sizes.rows",
        ),
        (
            ROW_NORM,
            {"sweep": {"shapes": [[1]]}},
            "sweep has no 'shapes', it takes dtypes, params, sizes",
            "shapes",
        ),
        (
            ROW_NORM,
            {"sweep": {"sizes": {"rows": list(range(1, 1000)), "columns": list(range(1000))}}},
            "sweep must be at most 4 cases, got 999000",
            "sweep",
        ),
        (ROW_NORM, {"cases": [{}] * 5}, "cases must be at most 4 cases, got 5", "cases"),
        (ROW_NORM, {"cases": [{}] * 2}, "cases.1: ann/row-norm x=F32[16,8] eps=1e-0", "cases.1"),
        (
            ROW_NORM,
            {"cases": [{"sizes": {"rows": 10**12}}]},
            "cases.0: ann/row-norm x=F32[1000000000000,8] eps=1e-06 needs up to",
            "cases.0",
        ),
        (
            with_inputs("return {'x': Sample((1,) * 64, dtype)} if rows < 17 else {'x': 3}"),
            {"cases": [{"params": {"eps": 1}, "sizes": {"rows": 17}}]},
            "cases.0: line 14: inputs.x must be a Sample, got 3",
            "cases.0.inputs.x",
        ),
        (
            ROW_NORM.replace(
                "1e-6)", "1e-6), *(Param(f'p{i}', 'ints', '') for i in range(9))"
            ).replace("(x, eps)", "(x, eps, **more)"),
            {"cases": [{"params": {f"p{i}": [2**60] * 64 for i in range(9)}}]},
            "cases.0: the name of a case must have at most 4096 characters, that of this one has 11",
            "cases.0",
        ),
        (
            with_inputs("assert rows < 17"),
            {"sweep": {"sizes": {"rows": [16, 17]}}},
            "sweep: line 15: AssertionError",
            "sweep.inputs",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(
    source: str, job: dict[str, Any] | None, error: str, field: str, tmp_path: Path
) -> None:
    answer = check(tmp_path, source, None if job is None else {**JOB, **job})

    assert answer is not None
    assert answer["error"].startswith(error)
    assert answer["field"] == field
    assert answer.keys() == {"error", "field"}


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("while True:\n    pass\n", ("line 1: ", "line 2: ")),
        (with_reference("while True:", "    pass"), ("line 11: ", "line 12: ")),
        (
            with_inputs(
                "while rows == 3:", "    try:", "        x = 1", "    except:", "        x"
            ),
            ("line 15: ", "line 16: ", "line 17: ", "line 18: ", "line 19: "),
        ),
    ],
    ids=["import", "reference", "inputs"],
)
def test_code_without_end_is_ended_and_names_the_line(
    source: str, line: tuple[str, ...], tmp_path: Path
) -> None:
    job = {**JOB, "cases": [{"sizes": {"rows": 3}}]}

    answer = check(tmp_path, source, job, limit_s=2.0)

    assert answer is not None
    assert answer["error"].startswith(line)
    assert answer["error"].endswith(": the problem's code did not end within 2 s")


def test_code_that_keeps_the_interpreter_for_itself_is_ended_too(tmp_path: Path) -> None:
    endless = with_reference("import itertools", "sum(itertools.repeat(0))")

    assert check(tmp_path, endless, limit_s=2.0) is None
