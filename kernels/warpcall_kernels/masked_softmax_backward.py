"""grad_x = scale * y * (g - sum(g * y)) over the last dim, from the output y of masked softmax.

A row of both operands is read once, kept in registers, and its gradient written; one that does not fit
is read twice. The mask is not
needed: y is 0 exactly where a position is masked, and there the gradient is 0 whatever g holds.
Bytes: 3 * numel * itemsize.
Source: Choongwoo Han, "How to write a PyTorch custom layer in CUDA for Transformer", 2019.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from warpcall_kernels._softmax import common_cases
from warpcall_kernels._softmax import rows as _softmax
from warpcall_kernels._softmax.backward import (
    masked_softmax_backward_kernel,
    masked_softmax_backward_long_kernel,
)
from warpcall_kernels._softmax.backward_packed import masked_softmax_backward_packed_kernel, packed
from warpcall_kernels._softmax.short_rows import Run, masked_softmax_backward_short_kernel
from warpcall_kernels._transpose import strides as _dims
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
    VECTOR_BYTES,
    Launch,
    Layout,
    LayoutKey,
    check_device,
    layout_key,
    runs_kernel,
)
from warpcall_kernels.op.registration import may_skip_dispatcher, register

# Against the fp64 reference, rtol and atol, at sums of products of normal values, which are larger than
# those of any real output.
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 5e-5, torch.float64: 1e-11}

SKEWED_BYTES = 64  # as in `masked_softmax`: 33 bf16 94 us, with its ends apart 78; 17 bf16 99 and 150; 5 fp32 84 and 124
# Bytes of rows of odd lengths that are turned in shared memory. On an H200: 5 fp32 64.5 us, as tiles 83.3; 17 bf16
# 77.3 and 97.9, 11 bf16 59.5 and 63.1; but 7 fp16 68.1 and 62.8, 3 fp16 80.2 and 70.8, 31 bf16 68.9 and 64.2; and even
# ones meet in the banks: 6 fp16 62.3 and 44.4.
SHORT_BYTES = range(20, 35)
# Bytes of a row of both operands that is held by 32 warps, if it is not skewed: [2048, 16384] fp32 98.9 us, read
# twice 121.9; but 10,007 fp32 117.9 and 114.7. Two-byte types, widened, would take twice the registers.
HELD_BYTES = 131072
# Bytes of a long row at a time, and warps; of rows of so many bytes more: [1024, 65536] bf16 125.8 us, as others
# 143.2; 100,003 fp32 165.2 and 181.2; but 50,021 bf16 85.6 and 81.5.
LONG_STEP = (32768, 16)
LONGER_STEP = (65536, 32)
LONGER_BYTES = 131072


def _launch(grad_output: Tensor, output: Tensor, scale: float = 1.0) -> Tensor:
    plan = _plan(layout_key(grad_output), layout_key(output), scale)
    check_device(grad_output, output=output)
    out = output.new_empty(output.shape)
    if not out.numel():
        return out
    if not runs_kernel(output):
        return out.copy_(masked_softmax_backward_reference(grad_output, output, scale))
    if plan is None:  # strides that fit no plan: of copies they do
        grad_output, output = grad_output.contiguous(), output.contiguous()
        plan = _plan(layout_key(grad_output), layout_key(output), scale)
        assert plan is not None
    plan(grad_output, output, out)
    return out


@functools.lru_cache(maxsize=4096)
def _plan(grad: LayoutKey, output: LayoutKey, scale: float) -> Launch | None:
    """The launch, or None where it takes copies of operands, or there is nothing to compute."""
    _infer(Layout(*grad).meta, Layout(*output).meta, scale)
    shape, y_strides, dtype, y_address = output
    g_strides, g_address = grad[1], grad[3]
    stride_gk, stride_yk = g_strides[-1], y_strides[-1]
    too_wide = max(stride_gk, stride_yk) > _softmax.MAX_COLUMN_STRIDE and shape[-1] > 1
    if not math.prod(shape) or too_wide:
        return None
    along = (g_strides[:-1], y_strides[:-1], _dims.contiguous_strides(shape)[:-1])
    rows = _softmax.plan_rows(shape[:-1], along, None)
    if rows is None:
        return None
    columns, itemsize = shape[-1], dtype.itemsize
    strides = rows.strides
    align = 1
    if stride_gk == stride_yk == 1:
        begins = [address // itemsize for address in (g_address, y_address)]
        steps = [step for s in strides for step in s]
        align = _dims.alignment(itemsize, [*begins, columns, *steps])
    operands = (
        *((strides[0], strides[1]), strides[2]),
        *((stride_gk, stride_yk), (g_address, y_address)),
    )
    short = columns % 2 and columns * itemsize in SHORT_BYTES
    run = Run.of(columns, itemsize, align, *operands) if short else None
    skewed = _softmax.has_skewed_rows(columns, itemsize, align, SKEWED_BYTES, *operands)
    if skewed:
        align = VECTOR_BYTES // itemsize
    whole = columns // align * align
    nbytes, warps = LONGER_STEP if columns * itemsize >= LONGER_BYTES else LONG_STEP
    most = _softmax.LONG_BYTES if skewed or itemsize == 2 else HELD_BYTES
    long = nbytes // itemsize, warps
    tile = _softmax.Tile.of(whole, itemsize, rows.count, long, most, held=2)
    wide = _softmax.reach(rows, tile, columns, (stride_gk, stride_yk)) >= 2**31
    arguments: dict[str, Any] = {
        "scale": float(scale),
        "columns": columns,
        "outer": rows.outer,
        "inner": rows.inner,
        "count": rows.count,
        "g_strides": strides[0],
        "y_strides": strides[1],
        "out_strides": strides[2],
        "WIDE": wide,
    }
    acc = tl.float64 if dtype == torch.float64 else tl.float32
    if run is not None:
        arguments |= {"ACC": acc, **run.constants(columns, itemsize)}
        return Launch(masked_softmax_backward_short_kernel, rows.grid(run.taken), arguments)
    arguments |= {"SKEWED": skewed, "ALIGN": align}
    held = packed(whole, itemsize, align)
    if held is not None:
        return Launch(masked_softmax_backward_packed_kernel, rows.grid(1), arguments | held)
    arguments |= {
        "stride_gk": stride_gk,
        "stride_yk": stride_yk,
        "ACC": acc,
        "BLOCK": tile.block,
        "num_warps": tile.warps,
    }
    if tile.long:
        return Launch(masked_softmax_backward_long_kernel, rows.grid(1), arguments)
    arguments |= {"EVEN": tile.block == columns and not skewed, "ROWS": tile.rows}
    return Launch(masked_softmax_backward_kernel, rows.grid(tile.rows), arguments)


def _infer(grad_output: TensorLike, output: TensorLike, scale: float = 1.0) -> dict[str, Meta]:
    _softmax.check_rows("output", output, False)
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
    _softmax.check_scale(scale)
    return {"grad_x": Meta(tuple(output.shape), output.dtype)}


_op = register("masked_softmax_backward", _launch, _infer)


def masked_softmax_backward(grad_output: Tensor, output: Tensor, scale: float = 1.0) -> Tensor:
    """The gradient of masked softmax with respect to x, from its output.

    It is 0 wherever the output is 0, whatever `grad_output` holds there. Needs no device memory but
    the result.

    Args:
        grad_output: (..., K), the gradient of what masked softmax returned; any strides.
        output: what it returned: fp16, bf16, fp32 or fp64; fp16 and bf16 are computed in fp32.
        scale: as masked softmax was given; finite.

    Returns:
        As output, contiguous.

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
    # Integers: the sums of what is no softmax are long and cancel, and only those of integers are exact.
    for shape, dtype, name in common_cases.sweep_shapes():
        values = Sample(shape, dtype, "integers", -3, 4)
        yield Case(name, {"grad_output": values, "output": values}, {}, "large")


STEPS = [((16384, 8),), ((16384, 16),), ((32768, 16),), ((65536, 32),)]
TUNING = (
    common_cases.TILE_CONSTANTS,
    TunedConstants(
        "masked_softmax_backward",
        ("LONG_STEP",),
        STEPS,
        ("[670,50021] bf16", "[3353,10007] fp32"),
    ),
    TunedConstants("masked_softmax_backward", ("LONGER_STEP",), STEPS, ("[335,100003] fp32",)),
)

OP = Op(
    name="masked-softmax-backward",
    function=masked_softmax_backward,
    reference=masked_softmax_backward_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(
        Input("grad_output", _softmax.FLOATS, "[..., K]", "the gradient of the output"),
        Input("output", _softmax.FLOATS, "[..., K]", "what masked-softmax returned"),
    ),
    outputs=(Output("grad_x", "[..., K]", "the gradient of x, 0 where the output is 0"),),
    equivalent="scale * output * (g - (g * output).sum(-1, keepdim=True)), g = grad_output",
    cases=CASES,
    common=tuple(
        _case("common", shape) for shape in (*common_cases.COMMON_SHAPES, common_cases.DEMO)
    ),
    params=(Param("scale", "float", "as masked-softmax was given", default=1.0),),
    tolerance=TOLERANCE,
    sweep=tuple(_sweep()),
    tuning=TUNING,
)
