"""What a result says of an implementation that raises: its status, its error, its traceback."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from warpcall_kernels import Op, measuring
from warpcall_kernels.measuring import (
    Implementation,
    ImplementationResult,
    Precision,
    class_of,
    make_case,
    measure,
)

SPEC = {"shape": [4, 6], "dtype": "F32", "params": {"dims": [1, 0]}}
FAST = Precision(
    *("test", 1),
    min_rounds=6,
    min_seconds=0,
    max_rounds=6,
    warm_window_s=0.01,
    warm_seconds=0.02,  # nothing here asks for times
    extras=False,
)
NUMBERS = itertools.count()


def result_of(source: str, folder: Path) -> ImplementationResult:
    """The result of a source that defines `mine(x, dims)`, beside torch, which must be right."""
    name = f"mine_{next(NUMBERS)}"
    file = folder / f"{name}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def build(op: Op, params: Mapping[str, Any]) -> Callable[..., Any]:
        return lambda x: module.mine(x, params["dims"])

    measuring.register(Implementation(name, "for tests", build, ("permute",)))
    torch_result, found = measure(
        make_case("permute", SPEC), ["torch", name], "cpu", FAST
    ).implementations
    assert torch_result.status == "ok"
    assert torch_result.traceback is None
    return found


DEEP = """
import torch

def mine(x, dims):
    return inner(x)

def inner(x):
    return torch.permute(x, (0, 0))
"""


def test_a_traceback_begins_at_the_implementation_and_names_no_folder(tmp_path: Path) -> None:
    found = result_of(DEEP, tmp_path)

    assert found.status == "error"
    assert found.traceback is not None
    first, *lines, last = found.traceback.splitlines()
    assert first == "Traceback (most recent call last):"
    places = [line.strip() for line in lines if line.lstrip().startswith("File ")]
    assert places[1] == f'File "{found.name}.py", line 5, in mine'
    assert places[2] == f'File "{found.name}.py", line 8, in inner'
    assert "    return torch.permute(x, (0, 0))" in lines
    assert last == found.error
    assert str(tmp_path) not in found.traceback
    assert "warpcall_kernels/measuring" not in found.traceback


def test_a_traceback_shows_the_cause_and_where_installed_code_failed(tmp_path: Path) -> None:
    source = (
        "import json\n"
        "def mine(x, dims):\n"
        "    try:\n"
        "        json.loads('{')\n"
        "    except ValueError as error:\n"
        "        raise RuntimeError('no settings') from error\n"
    )

    text = result_of(source, tmp_path).traceback or ""

    assert "The above exception was the direct cause of the following exception" in text
    assert 'File "json/decoder.py"' in text
    assert text.rstrip().endswith("RuntimeError: no settings")


@pytest.mark.parametrize(
    "raises",
    [
        "raise ValueError('x' * 1_000_000)",
        "raise ValueError('é\\n' * 100_000)",
        "return mine(x, dims)",
        "raise ExceptionGroup('many', [ValueError('y' * 5_000)] * 100)",
    ],
)
def test_a_traceback_has_at_most_4_kb_and_keeps_its_begin_and_end(
    raises: str, tmp_path: Path
) -> None:
    found = result_of(f"def mine(x, dims):\n    {raises}\n", tmp_path)

    assert found.status == "error"
    assert found.traceback is not None
    assert 500 < len(found.traceback.encode()) <= 4096
    assert f'File "{found.name}.py", line 2, in mine' in found.traceback
    assert len(found.error or "") <= 500


@pytest.mark.parametrize(
    ("raises", "error"),
    [
        ("raise ValueError('\\x1b[31mred\\x00\\ud800')", "ValueError: �[31mred��"),
        ("class E(Exception):\n        def __str__(self): return 1/0\n    raise E()", "E: "),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Own(BaseException): pass\n    raise Own('mine')", "Own: mine"),
    ],
)
def test_any_exception_is_an_error_that_can_be_shown(
    raises: str, error: str, tmp_path: Path
) -> None:
    found = result_of(f"def mine(x, dims):\n    {raises}\n", tmp_path)

    assert (found.status, found.error) == ("error", error)
    assert found.traceback is not None
    found.traceback.encode()
    assert "\x1b" not in found.traceback
    assert "\x00" not in found.traceback


def test_wrong_results_have_no_traceback(tmp_path: Path) -> None:
    found = result_of("def mine(x, dims):\n    return x\n", tmp_path)

    assert (found.status, found.traceback) == ("wrong_result", None)


@triton.jit
def _unknown_name(x_ptr):  # type: ignore[no-untyped-def]
    tl.store(x_ptr, no_such_name)  # type: ignore[name-defined]  # noqa: F821


def test_a_kernel_that_does_not_compile_shows_its_line() -> None:
    def build(op: Op, params: Mapping[str, Any]) -> Callable[..., Any]:
        def compute(x: torch.Tensor) -> torch.Tensor:
            target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
            kernel = triton.JITFunction(_unknown_name.fn)
            source = triton.compiler.ASTSource(kernel, {"x_ptr": "*fp32"}, {})
            triton.compile(source, target=target)
            return x

        return compute

    measuring.register(Implementation("does-not-compile", "for tests", build, ("permute",)))
    case = make_case("permute", SPEC)

    _, found = measure(case, ["torch", "does-not-compile"], "cpu", FAST).implementations

    assert found.status == "compile_error", found.traceback
    assert found.traceback is not None
    assert "tl.store(x_ptr, no_such_name)" in found.traceback
    assert "no_such_name is not defined" in found.traceback


def test_an_error_in_an_interpreted_kernel_is_not_one_of_the_compiler() -> None:
    error = triton.runtime.errors.InterpreterError("IndexError('list index out of range')")
    lack = triton.runtime.errors.InterpreterError("MemoryError()")
    lack.__cause__ = MemoryError()

    assert class_of(error) == "error"
    assert class_of(lack) == "oom"
