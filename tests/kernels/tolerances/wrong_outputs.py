"""Calls whose results the power tests spoil, and the ways to spoil a result."""

from __future__ import annotations

import dataclasses
import math
import runpy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.kernels import suite
from tests.kernels.problems.row_norm import problem
from warpcall_kernels import Op, Problem, Sample, Size, ops
from warpcall_kernels.op.cases import Case

EXAMPLE = Path(__file__).parents[3] / "examples/row_norm.py"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# A result of these dtypes is wrong if it is rounded to one of those. TF32 has the significand of
# fp16 and the range of fp32.
SHORTER = {
    torch.float16: (torch.float8_e4m3fn, torch.float8_e5m2),
    torch.bfloat16: (torch.float8_e4m3fn, torch.float8_e5m2),
    torch.float32: ("tf32", torch.float16, torch.bfloat16),
    torch.float64: (torch.float32,),
}

# A factor of all results that is wrong. It is above the roundings of the dtype, 0.05 % of fp16 and
# 0.4 % of bf16, several times, because a subnormal result of fp16 has few digits. A sum of 131,072
# terms in fp32 has an error of 2e-5, and one in fp64 of 4e-14.
NORMALISER = {torch.float16: 0.01, torch.bfloat16: 0.03, torch.float32: 1e-4, torch.float64: 1e-8}


@dataclass(frozen=True, eq=False)
class Call:
    """A call of an op whose inputs can be drawn from any seed."""

    name: str
    op: Op
    draw: Callable[[int], dict[str, Tensor]]
    params: Mapping[str, Any]

    def results(self, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The inputs from a seed, and the outputs of the reference."""
        inputs = self.draw(seed)
        return inputs, suite.reference_of(self.op, inputs, self.params)

    def computed_in(self, dtype: torch.dtype, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of the reference for inputs that are rounded to a dtype."""
        rounded = {n: t.to(dtype) if t.dtype in FLOATS else t for n, t in inputs.items()}
        return suite.by_name(self.op, self.op.reference(**rounded, **self.params))


LONG, PROBLEMS = "long rows", "problems"
GROUPS = (*ops(), LONG, PROBLEMS)


def calls(group: str) -> Iterator[Call]:
    """All small cases of an op, or long rows, or problems, in each dtype that their op computes."""
    if group == LONG:
        yield from _long()
    elif group == PROBLEMS:
        yield from _of_problems()
    else:
        op = ops()[group]
        for case in op.cases:
            if case.size == "small":
                yield from _of_case(op, case)


def _of_case(op: Op, case: Case) -> Iterator[Call]:
    if op.tolerance is None:
        yield _call(op, case)
        return
    for dtype in FLOATS:
        inputs = {
            name: dataclasses.replace(s, dtype=dtype) if s.dtype in FLOATS else s
            for name, s in case.inputs.items()
        }
        yield _call(op, dataclasses.replace(case, inputs=inputs), dtype)


def _call(op: Op, case: Case, dtype: torch.dtype | None = None) -> Call:
    def draw(seed: int) -> dict[str, Tensor]:
        return dataclasses.replace(case, seed=seed).tensors()

    kind = "" if dtype is None else f" {str(dtype).removeprefix('torch.')}"
    return Call(f"{op.name} {case.name}{kind}", op, draw, op.check_params(case.params))


def _long() -> Iterator[Call]:
    by_name = ops()
    for dtype in FLOATS:
        for shape in ((3, 32_000), (2, 131_072)):
            rows = Sample(shape, dtype)
            case = Case(f"{list(shape)}", {"x": rows})
            yield _call(by_name["masked-softmax"], case, dtype)
            case = Case(f"{list(shape)} of a softmax", {"grad_output": rows, "output": rows})
            yield _with_softmax(_call(by_name["masked-softmax-backward"], case, dtype))
        for taps in (3, 31):
            weight = Sample((1, taps), dtype)
            inputs = {"x": Sample((1, 2, 16_384), dtype), "weight": weight}
            yield _call(by_name["conv"], Case(f"long, {taps} taps", inputs), dtype)
            row = Sample((2, 4, 16_384), dtype)  # 131,072 terms of a tap
            inputs = {"grad_output": row, "x": row, "weight": weight}
            params = {"bias": True, "softmax_weight": taps == 31}
            yield _call(by_name["conv-backward"], Case(f"long, {taps} taps", inputs, params), dtype)


def _with_softmax(call: Call) -> Call:
    """The same call with outputs of a softmax as `output`."""

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = call.draw(seed)
        y = inputs["output"].double().softmax(-1).to(inputs["output"].dtype)
        return {**inputs, "output": y}

    return dataclasses.replace(call, draw=draw)


def _of_problems() -> Iterator[Call]:
    problems = {
        "row-norm": problem(dtypes=FLOATS),
        "example": runpy.run_path(str(EXAMPLE))["PROBLEM"],
        "softmax": _problem(lambda x: x.softmax(-1)),
        "product": _problem(lambda x: x @ x.mT),
        "sum": _problem(lambda x: x.sum(-1, keepdim=True)),
    }
    for name, declared in problems.items():
        op = declared.op(name)
        assert op.derive is not None
        # The products of longer rows with themselves are the same number within the tolerance.
        sizes = ((8, 6), (24, 1000)) if name == "product" else ((8, 6), (3, 1000), (2, 131_072))
        for rows, columns in sizes:
            for dtype in op.dtypes:
                inputs = op.derive(dtype, rows=rows, columns=columns)
                yield _call(op, Case(f"[{rows}, {columns}]", inputs), dtype)


def _problem(reference: Callable[[Tensor], Tensor]) -> Problem:
    return Problem(
        reference=reference,
        inputs=lambda dtype, rows, columns: {"x": Sample((rows, columns), dtype)},
        sizes=(Size("rows", "number of rows", 8, minimum=1), Size("columns", "length", 6)),
        dtypes=FLOATS,
    )


def wrong_outputs(right: Tensor, wide: Tensor, previous: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The ways to spoil a result, each by its name.

    Args:
        right: the right output, rounded once.
        wide: the right output before it is rounded.
        previous: the right output for other inputs.
    """
    yield "zeros", torch.zeros_like(right)
    yield "a constant", torch.full_like(right, _mean(right))
    yield "the result for other inputs", previous
    yield from _wrong_rows(right, wide)
    if right.dtype in SHORTER:
        for shorter in SHORTER[right.dtype]:
            yield f"rounded to {shorter}", _rounded(wide, shorter).to(right.dtype)
        factor = 1 + NORMALISER[right.dtype]
        yield "a wrong normaliser", (wide * factor).to(right.dtype)


def _mean(right: Tensor) -> Any:
    """The mean of a result; it is 1 / K for the softmax of K positions."""
    if right.is_complex() or (right.is_floating_point() and right.dtype.itemsize > 1):
        finite = right[right.isfinite()]
        if not finite.numel() or bool((finite == finite[0]).all()):
            return finite[0].item() if finite.numel() else 0
        return finite.mean().item()
    return 1


def _wrong_rows(right: Tensor, wide: Tensor) -> Iterator[tuple[str, Tensor]]:
    """One row in the middle is wrong: a row whose elements are finite and not all 0."""
    if right.dim() == 0 or not right.numel():
        return
    rows, length = math.prod(right.shape[:-1]), right.shape[-1]
    a, b = right.reshape(rows, length), wide.reshape(rows, length)
    good = (a.bool().any(1) & _finite(a).all(1)).nonzero()
    if not len(good):
        return
    row = int(good[len(good) // 2])

    def with_row(values: Tensor) -> Tensor:
        changed = a.clone()
        changed[row] = values
        return changed.view(right.shape)

    if right.dtype in SHORTER:
        yield "a row 5 % too large", with_row((b[row] * 1.05).to(right.dtype))
    yield "a row missing", with_row(torch.zeros_like(a[row]))
    if length > 1:
        yield "a row permuted", with_row(a[row].roll(1))
    if rows > 1:
        yield "a row of another", with_row(a[row - 1])


def _finite(t: Tensor) -> Tensor:
    return (t.float() if t.is_floating_point() and t.dtype.itemsize == 1 else t).isfinite()


def _rounded(wide: Tensor, dtype: torch.dtype | str) -> Tensor:
    if isinstance(dtype, torch.dtype):
        return wide.to(dtype).double()
    words = wide.float().view(torch.int32)
    return ((words + 0x1000) & ~0x1FFF).view(torch.float32).double()  # 10 bits are left
