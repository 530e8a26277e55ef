"""grad_x = scale * y * (g - sum(g * y)) over the last dim, from the output y of masked softmax.

A program reads a row of both operands once, keeps it in registers and writes its gradient. Of a
long row several programs have a part each. Other rows have kernels of their own: see the table of
variants in `_softmax/__init__.py`. The mask is not
needed: y is exactly 0 where a position is masked, and the gradient is 0 there, even if g is NaN or
infinite.
Bytes: 3 * numel * itemsize.
Source: Choongwoo Han, "How to write a PyTorch custom layer in CUDA for Transformer", 2019.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels._softmax import checks, common_cases
from warpcall_kernels._softmax.backward_plan import plan
from warpcall_kernels._transpose.contiguous import contiguous
from warpcall_kernels.op.cases import Case, Sample
from warpcall_kernels.op.declaration import (
    Input,
    Meta,
    Op,
    Output,
    Param,
    TensorLike,
    TunedConstants,
    dtype_name,
)
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import (
    Launch,
    Layout,
    LayoutKey,
    check_device,
    empty_like,
    layout_key,
    runs_kernel,
)
from warpcall_kernels.op.registration import may_skip_dispatcher, register
from warpcall_kernels.op.tolerance import Sums, SumTolerance


def _launch(grad_output: Tensor, output: Tensor, scale: float = 1.0) -> Tensor:
    launch = _plan(layout_key(grad_output), layout_key(output), scale)
    check_device(grad_output, output=output)
    out = empty_like(output)
    if not out.numel():
        return out
    if not runs_kernel(output):
        return out.copy_(masked_softmax_backward_reference(grad_output, output, scale))
    if launch is None:  # the strides fit no plan; those of copies do
        grad_output, output = contiguous(grad_output), contiguous(output)
        launch = _plan(layout_key(grad_output), layout_key(output), scale)
        assert launch is not None
    launch.with_words(grad_output, output, out)
    return out


@functools.lru_cache(maxsize=4096)
def _plan(grad: LayoutKey, output: LayoutKey, scale: float) -> Launch | None:
    """Check a call and plan its launch; None if operands must be copied, or nothing is computed."""
    grad_layout, output_layout = Layout(*grad), Layout(*output)
    _infer(grad_layout.meta, output_layout.meta, scale)
    return plan(grad_layout, output_layout, scale)


def _infer(grad_output: TensorLike, output: TensorLike, scale: float = 1.0) -> dict[str, Meta]:
    checks.check_rows("output", output, False)
    if tuple(grad_output.shape) != tuple(output.shape):
        raise InvalidInput(
            "grad_output",
            f"grad_output must have the shape of output, {tuple(output.shape)}, "
            f"got {tuple(grad_output.shape)}",
        )
    if grad_output.dtype != output.dtype:
        raise InvalidInput(
            "grad_output",
            f"grad_output must be {dtype_name(output.dtype)} as output is, "
            f"got {dtype_name(grad_output.dtype)}",
        )
    checks.check_scale(scale)
    return {"grad_x": Meta(tuple(output.shape), output.dtype)}


_op = register("masked_softmax_backward", _launch, _infer)


def masked_softmax_backward(grad_output: Tensor, output: Tensor, scale: float = 1.0) -> Tensor:
    """The gradient of masked softmax with respect to x, from its output.

    It is 0 wherever the output is 0, even if `grad_output` is NaN or infinite there. Besides the
    result, the op allocates 8 bytes for every 4,096 positions of a long row (2,048 in fp32, 1,024 in fp64), and
    copies of both operands if the row dims do not merge into three or the positions of a row lie
    far apart and its rows not side by side.

    Args:
        grad_output: gradient of the output, of shape (..., K) and any strides.
        output: what masked softmax returned: fp16, bf16, fp32 or fp64; fp16 and bf16 are computed
            in fp32.
        scale: the finite scale that masked softmax was called with.

    Returns:
        The gradient of x with shape and dtype of the output, contiguous.

    Raises:
        InvalidInput: shapes or dtypes that differ, a scale that is not finite, or tensors on
            different devices.
    """
    if may_skip_dispatcher(grad_output, output):
        return _launch(grad_output, output, scale)
    grad_x: Tensor = _op(grad_output, output, scale)
    return grad_x


def masked_softmax_backward_reference(
    grad_output: Tensor, output: Tensor, scale: float = 1.0
) -> Tensor:
    """The same in plain torch."""
    dtype = torch.float64 if output.dtype == torch.float64 else torch.float32
    y = output.to(dtype)
    g = grad_output.to(dtype).masked_fill(y == 0, 0)
    grad = scale * y * (g - (g * y).sum(-1, keepdim=True))
    return grad.masked_fill_(y == 0, 0).to(output.dtype)


def _sums(grad_output: Tensor, output: Tensor, scale: float = 1.0) -> dict[str, Sums]:
    """An element is scale * y * (g - P). P is a sum of K terms of both signs, and g - P may cancel,
    so that the size of an element is that of g, of P and of the terms of P, times |scale * y|.
    """
    y = output.double()
    g = grad_output.double().masked_fill(y == 0, 0)
    products = g * y
    total = products.sum(-1, keepdim=True).abs()
    total += torch.linalg.vector_norm(products, dim=-1, keepdim=True)
    return {"grad_x": Sums(y.shape[-1], (g.abs_().add_(total)).mul_(y).mul_(scale).abs_())}


def _bytes_moved(grad_output: TensorLike, output: TensorLike, scale: float = 1.0) -> int:
    return 3 * math.prod(output.shape) * output.dtype.itemsize


def _case(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    *,
    large: bool = False,
    **how: Any,
) -> Case:
    inputs = {"grad_output": Sample(shape, dtype, **how), "output": Sample(shape, dtype)}
    return Case(name, inputs, {"scale": scale}, "large" if large else "small")


CASES = (
    _case("rows", (5, 7, 33)),
    _case("fp16", (4, 3, 64), torch.float16, 0.125),
    _case("bf16, odd", (3, 65), torch.bfloat16),
    _case("fp64", (2, 3, 20), torch.float64, -2.0),
    _case("one row", (17,)),
    _case("one position", (4, 1)),
    _case("no rows", (0, 5)),
    _case("no positions", (3, 0)),
    _case("scale 0", (3, 20), scale=0.0),
    _case("1000 positions", (2, 1000), torch.bfloat16),
    _case("4097 positions", (2, 4097)),
    _case("20000 positions", (2, 20000), torch.float16, 0.5),
    _case("transposed", (3, 8, 16), layout="transposed"),
    _case("strided", (5, 6, 20), torch.float16, layout="strided"),
    _case("offset", (4, 24), torch.bfloat16, layout="offset"),
    _case("expanded", (4, 3, 12), layout="expanded"),
    *(
        _case(f"{list(shape)} {short} {kind}", shape, dtype, large=True)
        for shape, dtype, short, kind in (
            ((32, 16, 512, 512), torch.float16, "fp16", "key"),
            ((32, 16, 512, 512), torch.bfloat16, "bf16", "key"),
            ((32, 16, 512, 512), torch.float32, "fp32", "key"),
            ((8, 16, 2048, 2048), torch.bfloat16, "bf16", "key"),
            ((8, 16, 2048, 2048), torch.bfloat16, "bf16", "causal"),
            ((128, 8, 64, 64), torch.float16, "fp16", "key"),
            ((128, 8, 64, 64), torch.float32, "fp32", "key"),
        )
    ),
    _case("[4096, 32768] bf16", (4096, 32768), torch.bfloat16, large=True),
)


def _sweep() -> Iterator[Case]:
    # The values are integers, because the sums of random values that are no softmax are long and
    # cancel. Those of small integers are exact.
    for shape, dtype, name in common_cases.sweep_shapes():
        values = Sample(shape, dtype, "integers", -3, 4)
        yield Case(name, {"grad_output": values, "output": values}, {}, "large")


TUNING = (
    common_cases.TILE_CONSTANTS,
    TunedConstants(
        "_softmax.constants",
        ("SPLIT[2]",),
        [((2048, 2),), ((4096, 4),), ((8192, 8),)],
        ("[670,50021] bf16", "[4096, 32768] bf16"),
    ),
    TunedConstants(
        "_softmax.constants",
        ("SPLIT[4]",),
        [((1024, 2),), ((2048, 4),), ((4096, 8),)],
        ("[335,100003] fp32", "[3353,10007] fp32"),
    ),
)

OP = Op(
    name="masked-softmax-backward",
    function=masked_softmax_backward,
    reference=masked_softmax_backward_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(
        Input("grad_output", checks.FLOATS, "[..., K]", "the gradient of the output"),
        Input("output", checks.FLOATS, "[..., K]", "what masked-softmax returned"),
    ),
    outputs=(Output("grad_x", "[..., K]", "the gradient of x, 0 where the output is 0"),),
    equivalent="scale * output * (g - (g * output).sum(-1, keepdim=True)), g = grad_output",
    cases=CASES,
    common=tuple(
        _case("common", shape) for shape in (*common_cases.COMMON_SHAPES, common_cases.DEMO)
    ),
    params=(Param("scale", "float", "the scale that masked-softmax was called with", default=1.0),),
    tolerance=SumTolerance(_sums),
    sweep=tuple(_sweep()),
    tuning=TUNING,
)
