"""The gradients of masked softmax with respect to x and to the bias that was added to it.

grad_x = scale * d and grad_bias = d summed over the dims in which the bias was broadcast, with
d = y * (g - sum(g * y)) from the output y. A program owns rows of the bias, writes the gradient of each
row of x that has them, and sums in registers: see `_softmax/bias_backward.py`.
Bytes: 3 * numel * itemsize, and those of the gradient of the bias.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels._softmax import checks, common_cases
from warpcall_kernels._softmax.bias_backward_plan import BiasPlan, plan
from warpcall_kernels._softmax.constants import MAX_COLUMN_STRIDE
from warpcall_kernels._transpose.contiguous import contiguous
from warpcall_kernels.masked_softmax_backward import _infer as infer_grad_x
from warpcall_kernels.op.cases import Case, Sample
from warpcall_kernels.op.declaration import (
    Input,
    Meta,
    Op,
    Output,
    Param,
    Size,
    TensorLike,
    TunedConstants,
)
from warpcall_kernels.op.launch import (
    Layout,
    LayoutKey,
    check_device,
    empty_like,
    layout_key,
    runs_kernel,
)
from warpcall_kernels.op.registration import may_skip_dispatcher, register
from warpcall_kernels.op.tolerance import Sums, SumTolerance, accumulator


def _launch(grad_output: Tensor, output: Tensor, bias: Tensor, scale: float = 1.0) -> list[Tensor]:
    if grad_output.dim() and grad_output.stride(-1) > MAX_COLUMN_STRIDE:
        grad_output = contiguous(grad_output)
    if output.dim() and output.stride(-1) > MAX_COLUMN_STRIDE:
        output = contiguous(output)
    launches = _plan(*map(layout_key, (grad_output, output, bias)), scale)
    check_device(output, grad_output=grad_output, bias=bias)
    if not runs_kernel(output):
        plain = masked_softmax_bias_backward_reference(grad_output, output, bias, scale)
        return [t.contiguous() for t in plain]
    grad_x, grad_bias = empty_like(output), bias.new_empty(bias.shape)
    if launches is None:
        return [grad_x, grad_bias.zero_()]
    totals, rows, main, slots, last = launches
    dtype = accumulator(output.dtype)
    of_rows = None
    if totals is not None:
        of_rows = output.new_empty(rows, dtype=dtype)
        totals(grad_output, output, of_rows)
    sums = grad_bias if last is None else output.new_empty((slots, bias.numel()), dtype=dtype)
    main(grad_output, output, of_rows, grad_x, sums)
    if last is not None:
        last(sums, grad_bias)
    return [grad_x, grad_bias]


@functools.lru_cache(maxsize=4096)
def _plan(grad: LayoutKey, output: LayoutKey, bias: LayoutKey, scale: float) -> BiasPlan | None:
    """Check a call and plan its launches; None if nothing is computed."""
    grad_layout, output_layout, bias_layout = Layout(*grad), Layout(*output), Layout(*bias)
    _infer(grad_layout.meta, output_layout.meta, bias_layout.meta, scale)
    return plan(grad_layout, output_layout, bias_layout, scale)


def _infer(
    grad_output: TensorLike, output: TensorLike, bias: TensorLike, scale: float = 1.0
) -> dict[str, Meta]:
    found = infer_grad_x(grad_output, output, scale)
    checks.check_bias(bias, output, "output")
    return found | {"grad_bias": Meta(tuple(bias.shape), bias.dtype)}


_op = register("masked_softmax_bias_backward", _launch, _infer)


def masked_softmax_bias_backward(
    grad_output: Tensor, output: Tensor, bias: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The gradients of masked softmax with respect to x and to the bias, from its output.

    They are 0 wherever the output is 0, even if `grad_output` is NaN or infinite there. The same inputs
    give the same bits. Besides the results, the op allocates partial sums of the gradient of a bias of
    few rows, 4 or 8 bytes for each row of x and every 4,096 positions if rows are longer than 16,384
    (8,192 in fp32, 4,096 in fp64), and copies of operands whose positions lie far apart.

    Args:
        grad_output: gradient of the output, of shape (..., K) and any strides.
        output: what masked softmax returned: fp16, bf16, fp32 or fp64; fp16 and bf16 are computed
            in fp32.
        bias: the bias that masked softmax was called with. Only its shape and dtype matter.
        scale: the finite scale that masked softmax was called with.

    Returns:
        The gradient of x with shape and dtype of the output, and that of the bias with shape and dtype
        of the bias, summed in fp32 (fp64 for fp64); contiguous.

    Raises:
        InvalidInput: shapes or dtypes that do not fit, a scale that is not finite, or tensors on
            different devices.
    """
    launch = _launch if may_skip_dispatcher(grad_output, output, bias) else _op
    grads = launch(grad_output, output, bias, scale)
    return grads[0], grads[1]


def masked_softmax_bias_backward_reference(
    grad_output: Tensor, output: Tensor, bias: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""
    dtype = torch.float64 if output.dtype == torch.float64 else torch.float32
    y = output.to(dtype)
    g = grad_output.to(dtype).masked_fill(y == 0, 0)
    grad = (y * (g - (g * y).sum(-1, keepdim=True))).masked_fill_(y == 0, 0)
    # A bias of the shape of x has the sum itself, which must not share its memory.
    grad_bias = grad.sum_to_size(bias.shape).to(bias.dtype)
    return (grad * scale).to(output.dtype), grad_bias


def _sums(grad_output: Tensor, output: Tensor, bias: Tensor, scale: float = 1.0) -> dict[str, Sums]:
    """An element of grad_x is as in `masked_softmax_backward`, and one of grad_bias a sum of such.

    Where the sum goes along a row, the errors of P are the same in all of its terms, and add up.
    """
    y = output.double()
    g = grad_output.double().masked_fill(y == 0, 0)
    products = g * y
    total = products.sum(-1, keepdim=True).abs()
    total += torch.linalg.vector_norm(products, dim=-1, keepdim=True)
    columns = y.shape[-1]
    along = not bias.dim() or (bias.shape[-1] == 1 and columns > 1)
    if along:
        size = torch.linalg.vector_norm(products, dim=-1, keepdim=True)
        size = size + total * y.abs().sum(-1, keepdim=True)
    terms = (g.abs_().add_(total)).mul_(y).abs_()
    squares = (size if along else terms).square().sum_to_size(bias.shape)
    added = y.numel() // max(1, bias.numel())
    return {
        "grad_x": Sums(columns, terms * abs(scale)),
        "grad_bias": Sums(columns + added, squares.sqrt_()),
    }


def _bytes_moved(
    grad_output: TensorLike, output: TensorLike, bias: TensorLike, scale: float = 1.0
) -> int:
    written = math.prod(bias.shape) * bias.dtype.itemsize
    return 3 * math.prod(output.shape) * output.dtype.itemsize + written


def _derive(
    shape: tuple[int, ...], dtype: torch.dtype, params: dict[str, Any], bias: str
) -> dict[str, Sample]:
    # Integers, because the sums of random values that are no softmax are long and cancel.
    values = Sample(shape, dtype, "integers", -3, 4)
    of_bias = common_cases.bias_shape(shape, bias)
    return {"grad_output": values, "output": values, "bias": Sample(of_bias, dtype)}


def _case(one: common_cases.Biased, *, large: bool = False) -> Case:
    assert one.bias is not None
    how: dict[str, Any] = {"values": "integers", "low": -3, "high": 4} if large else {}
    how |= one.how
    rows = Sample(one.shape, one.dtype, **how)
    inputs = {"grad_output": rows, "output": Sample(one.shape, one.dtype, **how), "bias": one.bias}
    scale = {"scale": one.params.get("scale", 1.0)}
    return Case(one.name, inputs, scale, "large" if large else "small")


CASES = (
    *(_case(one) for one in common_cases.BIASED),
    *(_case(one, large=True) for one in common_cases.BIASED_LARGE),
)

SUMMED = (
    "BERT",
    "T5 bias [32, 16, 512, 512] fp16",
    "Swin bias [2048",
    "BLOOM",
    "float mask as bias",
    "full bias [8, 16, 1024, 1024] bf16",
)
TUNING = (
    TunedConstants(
        "_softmax.constants", ("BIAS_TILE_BYTES",), [(1024,), (2048,), (4096,), (8192,)], SUMMED
    ),
    TunedConstants(
        "_softmax.constants",
        ("BIAS_WARPS", "BIAS_PARTS_SHARE", "BIAS_LEAST_STEPS"),
        [
            (2112, 1 / 24, 4),
            (4224, 1 / 24, 4),
            (8192, 1 / 24, 4),
            (16_384, 1 / 12, 4),
            (16_384, 1 / 12, 1),
        ],
        ("BERT", "Swin bias [2048", "BEiT", "pairs bias", "BLOOM", "decode", "keys bias"),
    ),
    TunedConstants(
        "_softmax.constants",
        ("HELD_BYTES_BIAS",),
        [(16_384,), (32_768,), (65_536,)],
        ("keys bias", "decode"),
    ),
    TunedConstants(
        "_softmax.constants",
        ("BIAS_BLOCK", "BIAS_BLOCK_WARPS"),
        [(2048, 2), (4096, 4), (8192, 4), (8192, 8)],
        ("full bias [2048, 32768]", "full bias [512, 65536]"),
    ),
)

OP = Op(
    name="masked-softmax-bias-backward",
    function=masked_softmax_bias_backward,
    reference=masked_softmax_bias_backward_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(
        Input("grad_output", checks.FLOATS, "[..., K]", "the gradient of the output"),
        Input("output", checks.FLOATS, "[..., K]", "what masked-softmax returned"),
        Input(
            "bias",
            checks.FLOATS,
            "broadcastable to output",
            "the bias that masked-softmax was called with, of which only shape and dtype matter",
        ),
    ),
    outputs=(
        Output("grad_x", "[..., K]", "the gradient of x, 0 where the output is 0"),
        Output("grad_bias", "as bias", "the gradient of the bias, deterministic"),
    ),
    equivalent=(
        "d = output * (g - (g * output).sum(-1, keepdim=True)), g = grad_output; "
        "scale * d, d.sum_to_size(bias.shape)"
    ),
    cases=CASES,
    params=(Param("scale", "float", "the scale that masked-softmax was called with", default=1.0),),
    tolerance=SumTolerance(_sums),
    tuning=TUNING,
    derive=_derive,
    sizes=(
        Size(
            "bias",
            "one bias for each batch and key, for each head, query and key, or for each position",
            "head",
            choices=common_cases.BIAS_CHOICES[1:],
        ),
    ),
)
