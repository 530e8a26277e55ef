"""Kernels of the tests of the interpreter's arithmetic and of its autotuner."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language import static_range

OPERATIONS = ("add", "subtract", "multiply", "divide", "less", "equal", "fma", "maximum", "where")


@triton.jit
def operation_kernel(
    a_ptr: Any, b_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr, NAME: tl.constexpr
) -> None:
    at = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    if NAME == "add":
        out = a + b
    elif NAME == "subtract":
        out = a - b
    elif NAME == "multiply":
        out = a * b
    elif NAME == "divide":
        out = a / b
    elif NAME == "less":
        out = (a < b).to(a.dtype)
    elif NAME == "equal":
        out = (a == b).to(a.dtype)
    elif NAME == "fma":
        out = tl.fma(a, b, a)
    elif NAME == "maximum":
        out = tl.maximum(a, b)
    else:
        out = tl.where(a < b, a, b * 0 + 1.5)
    tl.store(out_ptr + at, out)


@triton.jit
def constant_kernel(out_ptr: Any, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    x = tl.full([BLOCK], 1.7, tl.bfloat16) + tl.zeros([BLOCK], tl.bfloat16)
    tl.store(out_ptr + at, -x * 2.0)


@triton.jit
def clamp_kernel(x_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr, KEEP_NAN: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if KEEP_NAN:
        tl.store(out_ptr + at, tl.clamp(x, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL))
    else:
        tl.store(out_ptr + at, tl.clamp(x, -1.0, 1.0))


@triton.jit
def scalars_kernel(out_ptr: Any, scale: Any, negate: Any, nothing: Any) -> None:
    value = scale.to(tl.float32)
    if negate:
        value = -value
    if nothing is None:
        for i in static_range(2):
            tl.store(out_ptr + i, value + i)


@triton.jit
def multiply_high_kernel(a_ptr: Any, b_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.umulhi(tl.load(a_ptr + at), tl.load(b_ptr + at)))


def _note(arguments: dict[str, Any]) -> None:
    arguments["notes"].append(arguments["BLOCK"])


def _slower_if_smaller(BLOCK: int, **others: Any) -> float:
    return 1 / BLOCK


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (16, 32, 64)],
    key=["n"],
    prune_configs_by={"perf_model": _slower_if_smaller, "top_k": 2},
)
@triton.jit
def modelled_kernel(out_ptr: Any, n: Any, BLOCK: tl.constexpr) -> None:
    tl.store(out_ptr, BLOCK)


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, pre_hook=_note) for block in (16, 32)], key=[]
)
@triton.jit
def hooked_kernel(out_ptr: Any, notes: Any, BLOCK: tl.constexpr) -> None:
    tl.store(out_ptr, BLOCK)


@triton.jit
def annotated_kernel(
    fp_ptr: Any, int_ptr: Any, scale: tl.float64, plain: Any, number: tl.int64, small: Any
) -> None:
    tl.store(fp_ptr, scale)
    tl.store(fp_ptr + 1, (plain + 0.0).to(tl.float64))
    tl.store(int_ptr, number * number)
    tl.store(int_ptr + 1, (small * small).to(tl.int64))
