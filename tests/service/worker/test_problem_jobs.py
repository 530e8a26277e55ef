"""The process of a job on a problem: what it measures, and how it ends if the problem is bad."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.service.job_requests import known_tags
from tests.service.worker.problem_sources import NAME, ROW_NORM, with_inputs, with_reference
from tests.service.worker.processes import frames_of_job
from warpcall_bench.runs.messages import Task, Upload

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]

FAST = """
def row_norm(x, eps):
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()
"""

LONG = 200_000  # rows, with which a call takes so long that our clock confirms its time


def task(
    source: str, implementations: Sequence[str], uploads: Sequence[Upload], *rows: int
) -> Task:
    return {
        "device": "cpu",
        "modules": {},
        "uploads": list(uploads),
        "problem": {"name": NAME, "source": source},
        "sandboxed": False,
        "op": NAME,
        "implementations": list(implementations),
        "precision": "quick",
        "seed": 1,
        "cases": [(i, {"sizes": {"rows": n}}) for i, n in enumerate(rows)],
        "memory_bytes": 8 << 30,
        "threads": 1,
    }


def mine(source: str) -> Upload:
    return {"name": "ann/fast", "op": NAME, "function": "row_norm", "source": source}


def measured(task: Task, folder: Path) -> list[dict[str, dict[str, Any]]]:
    """The results of each case, by implementation."""
    frames = frames_of_job(task, folder)
    assert frames[-1] == ("ended", {"class": "ok", "detail": ""})
    return [
        {one["name"]: one for one in value["case"]["implementations"]}
        for kind, value in frames
        if kind == "result"
    ]


def test_a_problem_is_measured_with_an_implementation_of_its_own(tmp_path: Path) -> None:
    names = ["torch", "ann/fast", "copy"]

    frames = frames_of_job(task(ROW_NORM, names, [mine(FAST)], LONG), tmp_path)

    case = next(value["case"] for kind, value in frames if kind == "result")
    assert frames[-1] == ("ended", {"class": "ok", "detail": ""})
    assert (case["op"], case["key"]) == (NAME, f"ann/row-norm x=F32[{LONG},8] eps=1e-06")
    assert case["bytes_moved"] == 2 * LONG * 8 * 4
    assert [(one["name"], one["status"], known_tags(one)) for one in case["implementations"]] == [
        (name, "ok", []) for name in names
    ]
    assert not list(tmp_path.glob("warpcall-*")), "the sources were deleted"


def test_results_of_a_reference_that_uses_triton_are_tagged(tmp_path: Path) -> None:
    given = task(f"import triton\n{ROW_NORM}", ["torch", "copy"], [], LONG)

    (found,) = measured(given, tmp_path)

    assert known_tags(found["torch"]) == ["interpreted"]
    assert found["copy"]["tags"] == []


# What the reference does with so many rows of values, and the error of the case.
FAILURES = {
    2: ("raise KeyError(len(x))", "KeyError: 2"),
    3: ("raise SystemExit(3)", "UploadedCodeEnded: it raised SystemExit: 3"),
    4: ("raise KeyboardInterrupt", "UploadedCodeEnded: it raised KeyboardInterrupt:"),
    5: ("return 3", "AttributeError: 'int' object has no attribute 'contiguous'"),
    6: ("return x[1:]", "ValueError: the reference must return tensors of shapes and devices"),
    7: ("raise type('<b>', (Exception,), {})('\\x1b[31m')", "<b>: \ufffd[31m"),
}


def test_a_reference_that_fails_fails_its_case_only(tmp_path: Path) -> None:
    lines = [
        f"if x.device.type != 'meta' and len(x) == {rows}: {code}"
        for rows, (code, _) in FAILURES.items()
    ]
    given = task(with_reference(*lines), ["torch", "ann/fast"], [mine(FAST)], *FAILURES, 8)

    *bad, good = measured(given, tmp_path)

    assert {name: one["status"] for name, one in good.items()} == {"torch": "ok", "ann/fast": "ok"}
    for case, (code, error) in zip(bad, FAILURES.values(), strict=True):
        for one in case.values():
            assert one["status"] == "error"
            assert one["error"].startswith(error)
            assert str(tmp_path) not in one["traceback"]
            assert ("row_norm.py" in one["traceback"]) is code.startswith("raise")


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("raise SystemExit(3)\n", "ann/row-norm cannot be used: line 1: SystemExit: 3"),
        (
            with_inputs("assert rows > 20"),
            "ann/row-norm cannot be used: line 15: AssertionError",
        ),
        (with_reference("assert len(x) != 3"), "line 11: AssertionError"),
    ],
    ids=["import", "default sizes", "case"],
)
def test_a_job_on_a_problem_that_cannot_be_used_is_invalid(
    source: str, detail: str, tmp_path: Path
) -> None:
    frames = frames_of_job(task(source, ["torch"], [], 3), tmp_path)

    kind, ended = frames[-1]
    assert (kind, ended["class"]) == ("ended", "invalid")
    assert ended["detail"].startswith(f"InvalidInput: {detail}")
    assert "result" not in [kind for kind, _ in frames]


def test_the_library_has_no_kernels_for_a_problem(tmp_path: Path) -> None:
    frames = frames_of_job(task(ROW_NORM, ["torch", "warpcall"], [], 3), tmp_path)

    assert frames[-1][1] == {
        "class": "invalid",
        "detail": (
            "InvalidInput: implementations must be of torch, torch.compile, copy, got 'warpcall'; the "
            "library has no kernels for ann/row-norm"
        ),
    }
