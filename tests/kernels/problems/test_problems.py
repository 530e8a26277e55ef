"""Problems: ops that a user declares by a reference and by inputs that follow from sizes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import warpcall_kernels
from tests.kernels.measuring import brief
from tests.kernels.problems.row_norm import problem, row_norm, rows
from warpcall_kernels import InvalidInput, Problem, Sample, Size, measuring
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.problem_fields import DEFAULT_TOLERANCE
from warpcall_kernels.op.tolerance import RowTolerance

pytestmark = pytest.mark.slow

BRIEF = dataclasses.replace(brief.BRIEF, warm_seconds=0.02)


def scan(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    return x.cumsum(-1), index.sum(0)


def scanned(dtype: torch.dtype, length: int, index: str) -> dict[str, Sample]:
    kinds = {"int64": torch.int64, "int32": torch.int32}
    return {
        "x": Sample((2, length), dtype),
        "index": Sample((length,), kinds[index], "integers", 0, 9),
    }


SCAN = Problem(
    reference=scan,
    inputs=scanned,
    sizes=(
        Size("length", "length of a row", 5),
        Size("index", "dtype of the index", "int64", choices=("int64", "int32")),
    ),
    dtypes=(torch.float64,),
    equivalent="x.cumsum(-1), index.sum(0)",
)


def test_an_op_follows_from_the_functions() -> None:
    op = problem().op("ann/row-norm")

    described = op.describe()

    assert op.function is op.reference is row_norm
    assert [(i.name, i.dtypes, i.shape) for i in op.inputs] == [
        ("x", (torch.float32, torch.bfloat16), "[8, 6]")
    ]
    assert [(o.name, o.dtype, o.shape) for o in op.outputs] == [("out", None, "[8, 6]")]
    assert [case.name for case in op.cases] == ["rows=8 columns=6 fp32", "rows=8 columns=6 bf16"]
    assert described["name"] == "ann/row-norm"
    assert (
        described["summary"] == "A problem for tests: each row of a matrix divided by its length."
    )
    assert described["dtypes"] == ["float32", "bfloat16"]
    assert described["sizes"][0] == {
        "name": "rows",
        "doc": "number of rows",
        "default": 8,
        "minimum": 1,
        "choices": [],
    }
    assert len(described["source_sha256"]) == 64


def test_several_outputs_and_choices_of_a_size_are_declared() -> None:
    op = SCAN.op("scan")

    assert {i.name: i.dtypes for i in op.inputs} == {
        "x": (torch.float64,),
        "index": (torch.int64, torch.int32),
    }
    assert [(o.name, o.dtype) for o in op.outputs] == [
        ("out0", torch.float64),
        ("out1", torch.int64),
    ]
    assert op.equivalent == "x.cumsum(-1), index.sum(0)"


def test_a_case_is_named_by_the_problem_its_inputs_and_all_parameters() -> None:
    op = problem().op("ann/row-norm")

    case = measuring.make_case(op, {"dtype": "bf16", "sizes": {"rows": 3}})
    again = measuring.make_case(op, case.spec)

    assert case.key == again.key == "ann/row-norm x=BF16[3,6] eps=1e-06"
    assert case.outputs == {"out": Meta((3, 6), torch.bfloat16)}
    assert op.bytes_moved(**case.metas, **case.params) == 2 * 3 * 6 * 2


def test_a_sweep_has_sizes_and_parameters_and_need_not_have_a_dtype() -> None:
    op = problem().op("ann/row-norm")
    sweep = {"sizes": {"rows": [1, 2], "columns": 7}, "params": {"eps": [0.5, 1.0]}}

    keys = [measuring.make_case(op, spec).key for spec in measuring.expand(op, sweep)]

    assert measuring.count(op, sweep) == 4
    assert measuring.count(op, {"dtypes": ["F32", "BF16"], **sweep}) == 8
    assert keys == [
        f"ann/row-norm x=F32[{number},7] eps={eps}" for eps in (0.5, 1.0) for number in (1, 2)
    ]


def test_a_problem_is_measured_by_what_computes_any_op() -> None:
    op = problem().op("ann/row-norm")

    result = measuring.measure(measuring.make_case(op, {}), ["torch", "copy"], "cpu", BRIEF)

    assert measuring.implementations(op) == ("torch", "torch.compile", "copy")
    assert [(one.name, one.status, one.error) for one in result.implementations] == [
        ("torch", "ok", None),
        ("copy", "ok", None),
    ]
    assert (result.op, result.bytes_moved) == ("ann/row-norm", 2 * 8 * 6 * 4)


def test_the_library_has_no_kernels_for_a_problem() -> None:
    case = measuring.make_case(problem().op("ann/row-norm"), {})

    with pytest.raises(InvalidInput) as raised:
        measuring.measure(case, ["torch", "warpcall"], "cpu", BRIEF)

    assert str(raised.value) == (
        "implementations must be of torch, torch.compile, copy, got 'warpcall'; the library has no "
        "kernels for ann/row-norm"
    )


def test_tags_of_an_op_are_on_results_of_its_reference() -> None:
    op = dataclasses.replace(problem().op("ann/row-norm"), tags=("interpreted",))

    result = measuring.measure(measuring.make_case(op, {}), ["torch", "copy"], "cpu", BRIEF)

    assert [one.tags for one in result.implementations] == [("interpreted",), ()]


def test_a_reference_that_raises_fails_only_its_case() -> None:
    def raises(x: Tensor, eps: float) -> Tensor:
        if x.device.type != "meta":
            raise KeyError("unlucky")
        return x

    case = measuring.make_case(problem(reference=raises).op("p"), {})

    (found,) = measuring.measure(case, ["torch"], "cpu", BRIEF).implementations

    assert (found.status, found.error) == ("error", "KeyError: 'unlucky'")
    assert "test_problems.py" in str(found.traceback)


@pytest.mark.parametrize(
    "returned",
    [lambda x: x[1:], lambda x: (x, x), lambda x: x.sum()],
)
def test_a_reference_that_returns_other_shapes_than_promised_fails_its_case(
    returned: Callable[[Tensor], Any],
) -> None:
    def lies(x: Tensor, eps: float) -> Any:
        return x if x.device.type == "meta" else returned(x)

    case = measuring.make_case(problem(reference=lies).op("p"), {})

    (found,) = measuring.measure(case, ["torch"], "cpu", BRIEF).implementations

    assert found.status == "error"
    assert "the reference must return tensors of shapes and devices" in str(found.error)


def test_bytes_that_cannot_be_counted_fail_the_case() -> None:
    asked = []

    def sometimes(x: Meta, eps: float) -> int:
        asked.append(x)
        if len(asked) > 3:  # both dtypes of the op, and the case
            raise ValueError("no more")
        return 1

    case = measuring.make_case(problem(bytes_moved=sometimes).op("p"), {})

    (found,) = measuring.measure(case, ["torch"], "cpu", BRIEF).implementations

    assert (found.status, found.error) == ("error", "ValueError: no more")
    assert set(map(type, asked)) == {Meta}


def test_memory_for_the_copy_of_many_bytes_is_counted() -> None:
    op = problem(bytes_moved=lambda x, eps: 1 << 40).op("p")

    assert measuring.make_case(op, {}).device_bytes > 1 << 41
    assert measuring.make_case(problem().op("p"), {}).device_bytes < 1 << 30


def test_only_a_tolerance_of_none_is_bit_exact() -> None:
    given = problem(tolerance={torch.float32: 1})

    assert problem(tolerance=None).op("p").tolerance is None
    assert problem().op("p").tolerance == RowTolerance(DEFAULT_TOLERANCE)
    assert given.op("p").tolerance == RowTolerance({**DEFAULT_TOLERANCE, torch.float32: 1})


def test_every_dtype_of_cases_has_a_tolerance() -> None:
    assert set(DEFAULT_TOLERANCE) == set(measuring.CODES)


@pytest.mark.parametrize("dtype", measuring.CODES, ids=str)
def test_results_of_every_dtype_can_be_drawn_and_compared(dtype: torch.dtype) -> None:
    def same(x: Tensor) -> Tensor:
        return x.clone()

    copied = Problem(
        reference=same, inputs=lambda dtype: {"x": Sample((8,), dtype, "mask")}, dtypes=(dtype,)
    )

    result = measuring.measure(measuring.make_case(copied.op("p"), {}), ["torch"], "cpu", BRIEF)

    assert [(one.status, one.error) for one in result.implementations] == [("ok", None)]


def test_exceptions_of_the_functions_are_not_hidden() -> None:
    def raises(x: Tensor, eps: float) -> Tensor:
        raise KeyError("unlucky")

    with pytest.raises(KeyError, match="unlucky"):
        problem(reference=raises).op("p")


def scaled(x: Tensor, eps: float, scale: float) -> Tensor:
    return x * scale + eps


@pytest.mark.parametrize(
    "reference",
    [
        functools.partial(scaled, scale=2.0),
        functools.wraps(row_norm)(lambda **given: row_norm(**given)),
        functools.partial(functools.partial(scaled), scale=2.0),
    ],
)
def test_a_reference_may_be_partial_or_wrapped(reference: Callable[..., Any]) -> None:
    described = problem(reference=reference).op("p").describe()

    assert len(described["source_sha256"]) == 64


def test_a_reference_without_a_file_has_no_hash() -> None:
    op = problem(reference=torch.add, params=(), inputs=added).op("p")

    assert op.describe()["source_sha256"] == ""


def added(dtype: torch.dtype, rows: int, columns: int) -> dict[str, Sample]:
    return {"input": Sample((rows,), dtype), "other": Sample((rows,), dtype)}


MOVED = f'''"""Row norm: each row divided by its Euclidean length."""

import torch
from torch import Tensor

from warpcall_kernels import Param, Problem, Sample, Size


{inspect.getsource(row_norm)}

{inspect.getsource(rows)}

PROBLEM = Problem(
    reference=row_norm,
    inputs=rows,
    sizes=(Size("rows", "number of rows", 8, minimum=1), Size("columns", "length of a row", 6)),
    params=(Param("eps", "float", "added below the root", default=1e-6),),
)
'''


def test_a_file_that_is_moved_into_the_library_is_a_shipped_op(tmp_path: Path) -> None:
    package = tmp_path / "warpcall_kernels"
    shutil.copytree(Path(warpcall_kernels.__file__).parent, package)
    (package / "row_norm.py").write_text(f'{MOVED}\nOP = PROBLEM.op("row-norm")\n')
    code = (
        "from warpcall_kernels import measuring, ops\n"
        "case = measuring.make_case('row-norm', {'sizes': {'rows': 3}})\n"
        "brief = measuring.Precision('brief', 0.05, warm_seconds=0.02)\n"
        "result = measuring.measure(case, ['warpcall', 'torch'], 'cpu', brief)\n"
        "print(case.key, [one.status for one in result.implementations], len(ops()))"
    )

    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    number = len(warpcall_kernels.ops()) + 1
    assert said == f"row-norm x=F32[3,6] eps=1e-06 ['ok', 'ok'] {number}\n"
