"""out = a^T + b over the last two dims, each input read once.

A program moves one tile. It loads `a` along its rows, transposes the tile in shared memory, and
loads `b` and stores the sum along the rows of the output. Every access is therefore coalesced and,
where sizes allow, 16 bytes for each thread. The variants are in `_transpose/plan.py`, and their
arguments in `_transpose/add_plan.py`. Bytes: numel(a) * itemsize(a) + numel(b) * itemsize(b) +
numel(out) * itemsize(out). An operand that is broadcast counts as it lies in memory. Source: an
article on `input1.transpose(0, 1) + input2`, bf16 [24300, 11520]: 67 % of a copy's speed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels._transpose.add_plan import plan_transpose_add
from warpcall_kernels._transpose.constants import Square
from warpcall_kernels.op import cases
from warpcall_kernels.op.cases import COMMON_SIZES, SHORT_DTYPES, Case, Sample, Values
from warpcall_kernels.op.declaration import (
    Input,
    Meta,
    Op,
    Output,
    TensorLike,
    TunedConstants,
    dtype_name,
)
from warpcall_kernels.op.errors import InvalidInput, listed
from warpcall_kernels.op.launch import Launch, Layout, LayoutKey, layout_key, runs_kernel
from warpcall_kernels.op.registration import may_skip_dispatcher, register
from warpcall_kernels.permute import permute

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, *COMPLEX)
MAX_BATCH_DIMS = 62  # with the other two, as many as torch's own operations take


@functools.lru_cache(maxsize=4096)
def _plan(a: LayoutKey, b: LayoutKey) -> tuple[Meta, Launch | None]:
    """The shape and dtype of the result, and the launch, or None if the result is empty."""
    a_layout, b_layout = Layout(*a), Layout(*b)
    out = _infer(a_layout.meta, b_layout.meta)["out"]
    return out, plan_transpose_add(a_layout, b_layout, out) if out.nbytes else None


def _launch(a: Tensor, b: Tensor) -> Tensor:
    meta, launch = _plan(layout_key(a), layout_key(b))
    if a.device != b.device:
        raise InvalidInput("b", f"b must be on {a.device} as a is, got {b.device}")
    out = a.new_empty(meta.shape, dtype=meta.dtype)
    if launch is None:
        return out
    if not runs_kernel(a):
        return torch.add(a.mT, b, out=out)
    launch(a, out, b)
    return out


def _infer(a: TensorLike, b: TensorLike) -> dict[str, Meta]:
    for name, t in (("a", a), ("b", b)):
        if not 2 <= len(t.shape) <= MAX_BATCH_DIMS + 2:
            raise InvalidInput(
                name,
                f"{name} must have 2 to {MAX_BATCH_DIMS + 2} dims, got shape {tuple(t.shape)}",
            )
        if t.dtype not in DTYPES:
            known = listed(map(dtype_name, DTYPES))
            raise InvalidInput(name, f"{name} must be one of {known}, got {dtype_name(t.dtype)}")
    *a_batch, h, w = a.shape
    *b_batch, b_w, b_h = b.shape
    if (b_w, b_h) != (w, h) or not _fit(a_batch, b_batch):
        raise InvalidInput(
            "b",
            f"b must have shape {(*a_batch, w, h)}, the transpose of a, or one that broadcasts "
            f"with its batch dims, got {tuple(b.shape)}",
        )
    return {"out": Meta((*_batch(a_batch, b_batch), w, h), torch.promote_types(a.dtype, b.dtype))}


def _batch(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The shape that two batch shapes broadcast to; they must fit."""
    longer = max(len(one), len(other))
    padded = ((1,) * (longer - len(s)) + tuple(s) for s in (one, other))
    return tuple(n if m == 1 else m for m, n in zip(*padded, strict=True))


def _fit(one: Sequence[int], other: Sequence[int]) -> bool:
    return all(m == n or m == 1 or n == 1 for m, n in zip(one[::-1], other[::-1], strict=False))


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    a, b = inputs
    ctx.shapes, ctx.dtypes = (a.shape, b.shape), (a.dtype, b.dtype)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a_shape, b_shape = ctx.shapes
    a_dtype, b_dtype = ctx.dtypes
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        *batch, h, w = a_shape
        summed = _as_dtype(grad.sum_to_size((*batch, w, h)), a_dtype)
        rank = summed.dim()
        grad_a = permute(summed, (*range(rank - 2), rank - 1, rank - 2))
    if ctx.needs_input_grad[1]:
        grad_b = _as_dtype(grad.sum_to_size(b_shape), b_dtype)
    return grad_a, grad_b


def _as_dtype(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of a term of this dtype; that of a real term is the real part."""
    return (grad if dtype.is_complex or not grad.is_complex() else grad.real).to(dtype)


_op = register("transpose_add", _launch, _infer, backward=_backward, setup_context=_setup_context)


def transpose_add(a: Tensor, b: Tensor) -> Tensor:
    """Add `b` to the transpose of `a`.

    Exact: rounded once, as torch rounds. Needs no device memory but the result. A complex `b` with
    an infinite part gives NaN for the other part, as in torch, which multiplies it by 1 + 0i first.

    Args:
        a: (..., H, W), any strides.
        b: (..., W, H), same device; batch dims broadcast, dtypes promote as in torch.

    Returns:
        (..., W, H), contiguous.

    Raises:
        InvalidInput: shapes that do not fit, or tensors on different devices.
    """
    return _launch(a, b) if may_skip_dispatcher(a, b) else _op(a, b)


def transpose_add_reference(a: Tensor, b: Tensor) -> Tensor:
    """The same in plain torch."""
    return a.mT + b


def _bytes_moved(a: TensorLike, b: TensorLike) -> int:
    out = _infer(a, b)["out"]
    inputs = sum(math.prod(t.shape) * t.dtype.itemsize for t in (a, b))
    return inputs + out.nbytes


def _derive(
    shape: tuple[int, ...], dtype: torch.dtype, params: Mapping[str, Any]
) -> dict[str, Sample]:
    transposed = (*shape[:-2], *shape[:-3:-1])
    return {"a": Sample(shape, dtype), "b": Sample(transposed, dtype)}


def _case(
    name: str,
    a: tuple[int, ...],
    b: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    b_dtype: torch.dtype | None = None,
    *,
    layouts: tuple[cases.SampleLayout, cases.SampleLayout] = ("contiguous", "contiguous"),
    values: Values = "normal",
    large: bool = False,
) -> Case:
    samples = {
        "a": Sample(a, dtype, values, layout=layouts[0]),
        "b": Sample(b, b_dtype or dtype, values, layout=layouts[1]),
    }
    return Case(name, samples, {}, "large" if large else "small")


def _large(h: int, w: int, dtype: torch.dtype, short: str, graph: str = "") -> Case:
    return _case(f"[{h}, {w}] {short}{graph}", (h, w), (w, h), dtype, large=True)


CASES = (
    _case("square", (64, 64), (64, 64)),
    _case("odd", (33, 31), (31, 33), torch.bfloat16, values="special"),
    _case("fp16", (40, 24), (24, 40), torch.float16),
    _case("fp64", (7, 65), (65, 7), torch.float64),
    _case("NaN, inf and -0.0", (9, 20), (20, 9), values="special"),
    _case("one element", (1, 1), (1, 1)),
    _case("empty", (0, 3), (3, 0), torch.int32),
    _case("a row", (1, 70), (70, 1), torch.int16),
    _case("u8 wraps", (16, 130), (130, 16), torch.uint8),
    _case("bool", (20, 12), (12, 20), torch.bool),
    _case("int8 and int64", (10, 9), (9, 10), torch.int8, torch.int64),
    _case("fp16 and bf16 give fp32", (12, 8), (8, 12), torch.float16, torch.bfloat16),
    _case("int32 and bf16", (12, 8), (8, 12), torch.int32, torch.bfloat16),
    _case("batches", (3, 2, 9, 20), (3, 2, 20, 9)),
    _case("a broadcasts", (9, 20), (3, 20, 9)),
    _case("both broadcast", (4, 1, 5, 6), (3, 6, 5), torch.float64),
    _case("tiny matrices", (301, 4, 8), (301, 8, 4), torch.bfloat16, values="special"),
    _case("tiny odd matrices", (303, 3, 3), (303, 3, 3)),
    _case("tiny matrices, b broadcasts", (299, 4, 6), (6, 4), torch.int32, torch.float16),
    _case(
        "tiny matrices, a broadcasts", (4, 1, 5, 3), (4, 70, 3, 5), layouts=("strided", "offset")
    ),
    _case("many batch dims", (2,) * 6 + (1,) + (2,) * 5, (2,) * 3 + (1,) + (2,) * 7, torch.float16),
    _case("batch dims of size 1", (*(1,) * 30, 3, *(1,) * 30, 4, 5), (5, 4)),
    _case("a transposed", (17, 30), (30, 17), layouts=("transposed", "contiguous")),
    _case("b transposed", (17, 30), (30, 17), layouts=("contiguous", "transposed")),
    _case("strided", (17, 30), (30, 17), torch.bfloat16, layouts=("strided", "strided")),
    _case("offset", (16, 32), (32, 16), torch.float16, layouts=("offset", "offset")),
    _case("expanded", (16, 9), (9, 16), layouts=("expanded", "expanded")),
    _case("complex", (18, 20), (20, 18), torch.complex64),
    _case("complex, NaN, inf and -0.0", (9, 21), (21, 9), torch.complex64, values="special"),
    _case("complex128", (2, 7, 9), (9, 7), torch.complex128, layouts=("strided", "offset")),
    _case("fp64 and complex64 give complex128", (6, 5), (5, 6), torch.float64, torch.complex64),
    _case("complex64 and int64", (6, 34), (34, 6), torch.complex64, torch.int64),
    _large(24300, 11520, torch.bfloat16, "bf16"),
    _large(24300, 11520, torch.float16, "fp16"),
    _large(24300, 11520, torch.float32, "fp32"),
    _large(8192, 8192, torch.bfloat16, "bf16"),
    _large(4096, 4096, torch.bfloat16, "bf16"),
    _large(4097, 8191, torch.bfloat16, "bf16"),
    _large(2048, 2048, torch.bfloat16, "bf16"),
    _large(512, 512, torch.bfloat16, "bf16", " (graph)"),
    _large(512, 512, torch.float32, "fp32", " (graph)"),
)

COMMON = tuple(
    _case("matrix", (h, w), (w, h)) for h, w in itertools.product((1, 10, *COMMON_SIZES), repeat=2)
)

# Shapes that no kernel was tuned for.
SWEEP = tuple(
    _case(
        f"{list(a)} {SHORT_DTYPES[dtype]} + {SHORT_DTYPES[other]}".replace(" ", "", len(a) - 1),
        *(a, (*a[:-2], a[-1], a[-2]), dtype, other),
        large=True,
    )
    for a, dtype, other in (
        ((7919, 7907), torch.float32, torch.float32),
        ((5003, 4999), torch.uint8, torch.uint8),
        ((3001, 2003), torch.float64, torch.float64),
        ((1 << 24, 1), torch.float32, torch.float32),
        ((1 << 23, 2), torch.bfloat16, torch.bfloat16),
        ((3, 5_000_011), torch.bfloat16, torch.bfloat16),
        ((16, 1 << 20), torch.float32, torch.float32),
        ((1021, 127, 131), torch.float16, torch.float16),
        ((4096, 4096), torch.bfloat16, torch.float32),
        ((4093, 4099), torch.int32, torch.float16),
        ((4096, 4096), torch.complex64, torch.complex64),
        ((3001, 2003), torch.complex64, torch.float32),
        ((2048, 4096), torch.complex128, torch.complex128),
    )
)

_CANDIDATES = [(Square(side, warps),) for side, warps in ((32, 4), (64, 4), (64, 8), (128, 8))]
TUNING = tuple(
    TunedConstants("_transpose.constants", (name,), _CANDIDATES, decisive)
    for name, decisive in (
        ("SQUARES[2]", ("[24300, 11520] bf16", "[4096")),
        ("SQUARES_UNALIGNED[2]", ("[1021",)),
        ("SQUARES_SMALL[2]", ("[512, 512] bf16",)),
        ("SQUARES[4]", ("[24300, 11520] fp32",)),
    )
)

OP = Op(
    name="transpose-add",
    function=transpose_add,
    reference=transpose_add_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(
        Input("a", DTYPES, "[..., H, W]", "what is transposed"),
        Input("b", DTYPES, "[..., W, H]", "what is added to it; batch dims broadcast"),
    ),
    outputs=(Output("out", "[..., W, H]", "the sum, in the common dtype of both"),),
    equivalent="a.transpose(-1, -2) + b",
    cases=CASES,
    common=COMMON,
    sweep=SWEEP,
    tuning=TUNING,
    differentiable=("a", "b"),
    limits=f"at most {MAX_BATCH_DIMS} batch dims",
    derive=_derive,
)
