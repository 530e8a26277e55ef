"""out = x / sqrt(the sum of x^2 over the last dim + eps).

The problem that examples/row_norm.py declares, as an op of the library with a kernel of its own: copy
this file to kernels/warpcall_kernels/row_norm.py.

A program reads a row twice: once for its length, and again, mostly from the cache, to divide it.
Bytes: 2 * numel * itemsize.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpcall_kernels.op.cases import Case, Sample
from warpcall_kernels.op.declaration import Input, Meta, Op, Output, Param, TensorLike
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import Launch, LayoutKey, layout_key, runs_kernel
from warpcall_kernels.op.registration import may_skip_dispatcher, register
from warpcall_kernels.op.tolerance import Sums, SumTolerance

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BLOCK = 4096  # elements of a row at a time


@triton.jit
def _row_norm_kernel(
    x_ptr: tl.tensor, out_ptr: tl.tensor, eps: tl.float64, columns: tl.int64, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64) * columns
    wide = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    squares = tl.full([BLOCK], 0.0, wide)
    for begin in range(0, columns, BLOCK):
        j = begin + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + j, mask=j < columns, other=0.0).to(wide)
        squares += x * x
    length = tl.sqrt(tl.sum(squares) + tl.full([], eps, wide))
    for begin in range(0, columns, BLOCK):
        j = begin + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + j, mask=j < columns).to(wide)
        tl.store(out_ptr + row + j, (x / length).to(out_ptr.dtype.element_ty), mask=j < columns)


def _launch(x: Tensor, eps: float = 1e-6) -> Tensor:
    if not runs_kernel(x) or not x.numel():
        return row_norm_reference(x, eps).contiguous()
    x = x.contiguous()
    out = torch.empty_like(x)
    _plan(layout_key(x), eps)(x, out)
    return out


@functools.lru_cache(maxsize=4096)
def _plan(x: LayoutKey, eps: float) -> Launch:
    *rows, columns = x[0]
    block = min(BLOCK, triton.next_power_of_2(columns))
    arguments = {"eps": float(eps), "columns": columns, "BLOCK": block}
    return Launch(_row_norm_kernel, (math.prod(rows),), arguments)


def _infer(x: TensorLike, eps: float = 1e-6) -> dict[str, Meta]:
    if not x.shape:
        raise InvalidInput("x", "x must have at least one dim")
    return {"out": Meta(tuple(x.shape), x.dtype)}


_op = register("row_norm", _launch, _infer)


def row_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide each row by its Euclidean length.

    Args:
        x: fp16, bf16, fp32 or fp64, any strides. A row is the last dim.
        eps: added below the root.

    Returns:
        A tensor of shape and dtype of x, contiguous.
    """
    if may_skip_dispatcher(x):
        return _launch(x, eps)
    out: Tensor = _op(x, eps)
    return out


def row_norm_reference(x: Tensor, eps: float = 1e-6) -> Tensor:
    """The reference of the problem."""
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def _bytes_moved(x: TensorLike, eps: float = 1e-6) -> int:
    return 2 * math.prod(x.shape) * x.dtype.itemsize


def _sums(x: Tensor, eps: float = 1e-6) -> dict[str, Sums]:
    """Each result has a sum over its row below a root, which halves the error, and a quotient."""
    return {"out": Sums(terms=x.shape[-1], amplification=2.0)}


def _case(name: str, shape: tuple[int, ...], dtype: torch.dtype, **how: object) -> Case:
    return Case(name, {"x": Sample(shape, dtype, **how)})  # type: ignore[arg-type]


OP = Op(
    name="row-norm",
    function=row_norm,
    reference=row_norm_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(Input("x", FLOATS, "[..., N]", "the rows"),),
    outputs=(Output("out", "[..., N]", "the rows, of length 1"),),
    equivalent="x / (x.square().sum(-1, keepdim=True) + eps).sqrt()",
    cases=(
        _case("a block", (1, 1024), torch.float32),
        _case("odd", (31, 33), torch.float32),
        _case("fp16", (7, 11), torch.float16),
        _case("bf16", (5, 300), torch.bfloat16),
        _case("fp64", (3, 4), torch.float64),
        _case("one dim", (65,), torch.float32),
        _case("empty", (0, 3), torch.float32),
        _case("special", (9, 20), torch.float32, values="special"),
        _case("strided", (9, 20), torch.float32, layout="strided"),
        _case("transposed", (9, 20), torch.float16, layout="transposed"),
        Case("large", {"x": Sample((16_384, 4096), torch.bfloat16)}, size="large"),
    ),
    params=(Param("eps", "float", "added below the root", default=1e-6),),
    tolerance=SumTolerance(_sums),
)
