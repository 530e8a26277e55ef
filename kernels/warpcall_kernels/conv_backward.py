"""The gradients of conv with respect to x, weight and bias.

Up to 32 taps (16 of fp64, 65 of aligned rows of fp16 and bf16), one pass over x and grad_output
computes the gradients of x and weight.
The variants are in `_conv/backward.py`. Bytes: (3 * B * C * T + 2 * H * K) * itemsize. The partial
sums that the public function describes come on top. Source: Wu et al., "Pay Less Attention with
Lightweight and Dynamic Convolutions", 2019.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # as all of torch's own pages have it
from torch import Tensor

from warpcall_kernels._conv import backward, forward
from warpcall_kernels._conv.backward_tuning import TUNING
from warpcall_kernels._conv.bias import BiasPlan, plan_bias, plan_both
from warpcall_kernels._conv.common_cases import PARAMS, SIZES, SWEEP_FILTERS, sweep_name
from warpcall_kernels._conv.filters import FLOATS, check_filter
from warpcall_kernels._conv.tiling import Alignment
from warpcall_kernels._conv.weights import (
    amplification_of,
    by_channel,
    effective_weight,
    expand_weight,
)
from warpcall_kernels._transpose.contiguous import COPIED_BYTES, contiguous, has_far_positions
from warpcall_kernels.op.cases import Case, Sample
from warpcall_kernels.op.declaration import (
    Input,
    Meta,
    Op,
    Output,
    Param,
    TensorLike,
    dtype_name,
)
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import (
    VECTOR_BYTES,
    Launch,
    Layout,
    LayoutKey,
    check_device,
    empty_like,
    layout_key,
    runs_kernel,
)
from warpcall_kernels.op.registration import may_skip_dispatcher, register
from warpcall_kernels.op.tolerance import Sums, SumTolerance, accumulator, squared

# Elements between positions of an operand beyond which it is copied first. [3091, 64, 56] bf16 with 3 and 15 taps,
# whose positions lie 64 apart, on an H200: 65 and 44 us, 80 and 200 without a copy.
MOST_STRIDE = 8
# Taps of fp32 beyond which rows that could be read whole, but begin elsewhere, are copied first. [30, 132, 2048] with
# 34 taps and x from its second element on, on an H200: 97 us, 382 without a copy of x.
MOST_UNALIGNED_TAPS = 16
SMALL_INTEGERS = (-3, 4)  # sums of millions of such terms are exact in fp32, whatever their order
INTEGERS: dict[str, Any] = {
    "values": "integers",
    "low": SMALL_INTEGERS[0],
    "high": SMALL_INTEGERS[1],
}


def _launch(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    padding_l: int | None = None,
    softmax_weight: bool = False,
    bias: bool = False,
) -> list[Tensor]:
    places = layout_key(grad_output), layout_key(x), layout_key(weight)
    plan = _plan(*places, padding_l, softmax_weight, bias)
    check_device(x, grad_output=grad_output, weight=weight)
    if plan is None or not runs_kernel(x):
        plain = conv_backward_reference(grad_output, x, weight, padding_l, softmax_weight, bias)
        return [t.contiguous() for t in plain if t is not None]
    if plan.copied:
        grad_output, x = (
            _copied(t) if _is_copied(place, weight.shape[1]) else t
            for t, place in zip((grad_output, x), places, strict=False)
        )
        plan = _plan(
            layout_key(grad_output), layout_key(x), places[2], padding_l, softmax_weight, bias
        )
        assert plan is not None
    gradients, separate, bias_parts, last, _ = plan
    grad_x, grad_weight = empty_like(x), empty_like(weight)
    sums = x.new_empty(gradients.sums, dtype=accumulator(x.dtype))
    if separate is not None:
        separate(grad_output, weight, None, grad_x)
    gradients.main(grad_output, x, weight, grad_x, sums)
    if last is None:
        grad_weight = _through_softmax(sums.sum(1), weight, softmax_weight)
        if not bias:
            return [grad_x, grad_weight]
        return [grad_x, grad_weight, grad_output.sum((0, 2), dtype=sums.dtype).to(x.dtype)]
    if not bias:
        last(sums, weight, grad_weight)
        return [grad_x, grad_weight]
    grad_bias, of_bias = x.new_empty(x.shape[1]), grad_output
    if bias_parts is not None:
        of_bias = x.new_empty((x.shape[1], bias_parts.parts), dtype=sums.dtype)
        bias_parts.main(grad_output, of_bias)
    last(sums, weight, grad_weight, of_bias, grad_bias)
    return [grad_x, grad_weight, grad_bias]


def _is_copied(place: LayoutKey, taps: int) -> bool:
    """Whether a copy of x or grad_output, which are large, saves more time than it takes."""
    if has_far_positions(place, MOST_STRIDE):
        return True
    shape, _, dtype, _ = place
    row = shape[-1] * dtype.itemsize
    if dtype != torch.float32 or taps <= MOST_UNALIGNED_TAPS or row % VECTOR_BYTES:
        return False
    large = math.prod(shape) * dtype.itemsize >= COPIED_BYTES
    return large and not Alignment.of(place).whole(dtype)


def _copied(t: Tensor) -> Tensor:
    return contiguous(t) if not t.is_contiguous() else t.clone()


class _Plan(NamedTuple):
    """The launches of a call.

    Args:
        gradients: of x and weight.
        separate: of grad_x, if the former do not compute it.
        bias_parts: sums parts of the bias, if it is wanted and has several.
        last: reduces the sums of the filters and, if it is wanted, those of the bias. None where
            torch does it.
        copied: whether x or grad_output is copied first: see `_is_copied`.
    """

    gradients: backward.BackwardPlan
    separate: Launch | None
    bias_parts: BiasPlan | None
    last: Launch | None
    copied: bool


@functools.lru_cache(maxsize=4096)
def _plan(
    grad_output: LayoutKey,
    x: LayoutKey,
    weight: LayoutKey,
    padding_l: int | None,
    softmax_weight: bool,
    bias: bool,
) -> _Plan | None:
    """The launches; None if x is empty."""
    _infer(
        Layout(*grad_output).meta,
        Layout(*x).meta,
        Layout(*weight).meta,
        padding_l,
        softmax_weight,
        bias,
    )
    if not math.prod(x[0]):
        return None
    taps = weight[0][1]
    padding = taps - 1 if padding_l is None else padding_l
    gradients = backward.plan(grad_output, x, weight, padding, softmax_weight)
    bias_parts, last = None, gradients.reduce
    if bias and last is not None:
        of_bias = plan_bias(grad_output)
        last = plan_both(last, of_bias)
        bias_parts = of_bias if of_bias.parts > 1 else None
    separate = None
    if not gradients.fused:
        flipped = (grad_output, weight, None, taps - 1 - padding, softmax_weight, True)
        separate = forward.plan(*flipped)
    copied = _is_copied(grad_output, taps) or _is_copied(x, taps)
    return _Plan(gradients, separate, bias_parts, last, copied)


def _through_softmax(grad: Tensor, weight: Tensor, softmax_weight: bool) -> Tensor:
    """The gradient of the given weights, in their dtype, from that of the weights after the
    softmax.
    """
    if softmax_weight:
        w = weight.to(grad.dtype).softmax(-1)
        grad = w * (grad - (grad * w).sum(-1, keepdim=True))
    return grad.to(weight.dtype)


def _infer(
    grad_output: TensorLike,
    x: TensorLike,
    weight: TensorLike,
    padding_l: int | None = None,
    softmax_weight: bool = False,
    bias: bool = False,
) -> dict[str, Meta]:
    check_filter("x", x, weight, None, padding_l)
    if tuple(grad_output.shape) != tuple(x.shape):
        raise InvalidInput(
            "grad_output",
            f"grad_output must have the shape of x, {tuple(x.shape)}, "
            f"got {tuple(grad_output.shape)}",
        )
    if grad_output.dtype != x.dtype:
        raise InvalidInput(
            "grad_output",
            f"grad_output must be {dtype_name(x.dtype)} as x is, "
            f"got {dtype_name(grad_output.dtype)}",
        )
    grads = {
        "grad_x": Meta(tuple(x.shape), x.dtype),
        "grad_weight": Meta(tuple(weight.shape), x.dtype),
    }
    return grads | ({"grad_bias": Meta((x.shape[1],), x.dtype)} if bias else {})


_op = register("conv_backward", _launch, _infer)


def conv_backward(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    padding_l: int | None = None,
    softmax_weight: bool = False,
    bias: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of conv. The same inputs give the same bits, on GPUs with as many multiprocessors.

    Needs device memory for partial sums beside the results: at most max(H, 12 for each
    multiprocessor) * K fp32 values (fp64 for fp64), and with a bias max(C, 256 for each). An
    operand of 4 MiB or more is copied if its positions lie more than 8 elements apart, or if it is
    fp32, there are more than 16 taps, and its rows have whole groups of 16 bytes that begin elsewhere.

    Args:
        grad_output: (B, C, T), the gradient of what conv returned; any strides.
        x, weight, padding_l, softmax_weight: as conv was given.
        bias: whether the gradient of a bias is wanted, too.

    Returns:
        grad_x (B, C, T), grad_weight (H, K) summed in fp32 (fp64 for fp64), and grad_bias (C,) or
        None; contiguous, of the dtype of x.

    Raises:
        InvalidInput: shapes or dtypes that do not fit, a padding out of range, or tensors on
            different devices.
    """
    launch = _launch if may_skip_dispatcher(grad_output, x, weight) else _op
    grads = launch(grad_output, x, weight, padding_l, softmax_weight, bias)
    return grads[0], grads[1], grads[2] if bias else None


def conv_backward_reference(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    padding_l: int | None = None,
    softmax_weight: bool = False,
    bias: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same in plain torch."""
    heads, taps = weight.shape
    channels, length = x.shape[1:]
    padding = taps - 1 if padding_l is None else padding_l
    w = effective_weight(weight, softmax_weight)
    g = grad_output.to(w.dtype)
    grad_bias = g.sum((0, 2)).to(x.dtype) if bias else None
    if not x.numel():
        return x.new_zeros(x.shape), torch.zeros_like(weight), grad_bias
    flipped = expand_weight(w.flip(1), channels)
    grad_x = F.conv1d(F.pad(g, (taps - 1 - padding, padding)), flipped, groups=channels)
    padded = F.pad(x.to(w.dtype), (padding, taps - 1 - padding))
    by_tap = [(g * padded[..., j : j + length]).sum((0, 2)) for j in range(taps)]
    applied = torch.stack(by_tap, -1).view(heads, channels // heads, taps).sum(1)
    grad_weight = _through_softmax(applied, weight, softmax_weight)
    return grad_x.to(x.dtype), grad_weight, grad_bias


def _sums(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    padding_l: int | None = None,
    softmax_weight: bool = False,
    bias: bool = False,
) -> dict[str, Sums]:
    """The sums of the squares of the terms are the same sums, of the squares of the inputs.

    An element of grad_x has K terms, one of grad_weight B * T * C / H, one of grad_bias B * T. They
    have both signs. The gradient through the softmax, w * (a - sum(a * w)), may cancel once more,
    so that its size is that of a and of the errors of its sum, times w.
    """
    heads, taps = weight.shape
    batches, channels, length = x.shape
    w = effective_weight(weight.double(), softmax_weight)
    squares = conv_backward_reference(
        squared(grad_output), squared(x), squared(w), padding_l, False, bias
    )
    grad_x, grad_weight, grad_bias = (None if t is None else t.sqrt() for t in squares)
    assert grad_weight is not None
    amplification = amplification_of(weight, softmax_weight)
    if softmax_weight:
        plain = conv_backward_reference(grad_output.double(), x.double(), w, padding_l)[1]
        grad_weight = torch.maximum(grad_weight, plain.abs())
        total = torch.linalg.vector_norm(grad_weight * w, dim=-1, keepdim=True)
        grad_weight = w * torch.hypot(grad_weight, total)
    positions = batches * length
    found = {
        "grad_x": Sums(taps, grad_x, by_channel(amplification, channels)),
        "grad_weight": Sums(positions * channels // heads, grad_weight, amplification),
    }
    return found | ({"grad_bias": Sums(positions, grad_bias)} if bias else {})


def _bytes_moved(
    grad_output: TensorLike,
    x: TensorLike,
    weight: TensorLike,
    padding_l: int | None = None,
    softmax_weight: bool = False,
    bias: bool = False,
) -> int:
    numel = 3 * math.prod(x.shape) + 2 * math.prod(weight.shape)
    return (numel + (x.shape[1] if bias else 0)) * x.dtype.itemsize


def _derive(
    shape: tuple[int, ...], dtype: torch.dtype, params: Mapping[str, Any], heads: int, taps: int
) -> dict[str, Sample]:
    whole = Sample(shape, dtype, "integers", *SMALL_INTEGERS)
    return {"grad_output": whole, "x": whole, "weight": Sample((heads, taps), dtype)}


def _case(
    name: str,
    shape: tuple[int, int, int],
    weight: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    params: Mapping[str, Any] | None = None,
    *,
    large: bool = False,
    **how: Any,
) -> Case:
    if large:
        how = INTEGERS
    inputs = {
        "grad_output": Sample(shape, dtype, **how),
        "x": Sample(shape, dtype, **how),
        "weight": Sample(weight, dtype),
    }
    return Case(name, inputs, params or {}, "large" if large else "small")


def _large(shape: tuple[int, int, int], heads: int) -> list[Case]:
    """Shapes and filters that other implementations were measured with."""
    cases = []
    for dtype, short, taps in (
        *((torch.bfloat16, "bf16", taps) for taps in (3, 7, 15, 31)),
        *((torch.float32, "fp32", taps) for taps in (3, 7, 31)),
        (torch.float16, "fp16", 31),
    ):
        sizes = ",".join(map(str, shape))
        name = f"[{sizes}] H{heads} K{taps} padK-1 {short}"
        cases.append(_case(name, shape, (heads, taps), dtype, large=True))
    name = f"[{','.join(map(str, shape))}] H{heads} K7 padK//2 bf16"
    half = {"padding_l": 3}
    return [*cases, _case(name, shape, (heads, 7), torch.bfloat16, half, large=True)]


CASES = (
    _case("causal", (2, 8, 40), (4, 3)),
    _case("centred, with bias", (2, 6, 33), (3, 5), params={"padding_l": 2, "bias": True}),
    _case("not causal", (1, 4, 20), (2, 4), params={"padding_l": 0}),
    _case("one tap", (2, 4, 16), (4, 1), torch.float16),
    _case("one tap, softmax", (2, 4, 16), (4, 1), params={"softmax_weight": True}),
    _case("one head", (2, 3, 24), (1, 7), torch.float16, {"bias": True}),
    _case("softmax", (2, 4, 30), (2, 6), params={"softmax_weight": True}),
    _case("15 taps", (2, 4, 50), (2, 15), torch.bfloat16, {"padding_l": 7}),
    _case("31 taps", (1, 4, 64), (2, 31), torch.float16),
    _case("31 taps, softmax", (1, 4, 70), (2, 31), torch.bfloat16, {"softmax_weight": True}),
    _case("31 taps, fp32", (1, 4, 45), (2, 31)),
    _case("40 taps", (1, 2, 24), (1, 40), params={"padding_l": 20}),
    _case("64 taps", (1, 4, 136), (2, 64), torch.bfloat16, {"softmax_weight": True}),
    _case("257 taps", (1, 2, 264), (1, 257), torch.float16),
    _case("fp64", (2, 4, 23), (2, 5), torch.float64, {"softmax_weight": True, "bias": True}),
    _case("one position", (3, 4, 1), (2, 3)),
    _case("fewer positions than taps", (2, 2, 4), (1, 9), torch.float64),
    _case("no batches", (0, 4, 8), (2, 3), params={"bias": True}),
    _case("no positions", (2, 4, 0), (2, 3)),
    _case("many rows", (40, 4, 17), (2, 3)),
    _case("NaN and inf", (2, 4, 37), (2, 3), values="special"),
    _case("transposed", (2, 6, 16), (3, 3), layout="transposed"),
    _case("strided", (2, 4, 24), (2, 15), torch.float16, layout="strided"),
    _case("offset", (2, 4, 32), (2, 3), torch.bfloat16, layout="offset"),
    _case("expanded", (3, 4, 16), (2, 3), layout="expanded"),
    _case("skewed to the last group", (1, 1, 6137), (1, 3), torch.bfloat16, **INTEGERS),
    _case("skewed to the last group, 31 taps", (1, 1, 6137), (1, 31), torch.bfloat16, **INTEGERS),
    *_large((32, 512, 512), 8),
    *_large((8, 1024, 2048), 16),
    *_large((64, 512, 32), 8),
    *_large((4, 1024, 8192), 16),
)

DEMO = _case("the demo's", (1, 8, 48_000), (8, 31), params={"padding_l": 15})
COMMON = (
    DEMO,
    *(
        _case("common", (*rows, length), (rows[1], taps))
        for rows in ((1, 1), (1, 8), (8, 64))
        for length in (100, 1000, 16000)
        for taps in (3, 4, 5, 7, 9, 15, 31, 63, 128)
    ),
)

# Shapes that no kernel was tuned for.
SWEEP = tuple(
    _case(sweep_name(shape, heads, taps, dtype), shape, (heads, taps), dtype, large=True)
    for shape, heads, taps, dtype in SWEEP_FILTERS
)

OP = Op(
    name="conv-backward",
    function=conv_backward,
    reference=conv_backward_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(
        Input(
            "grad_output",
            FLOATS,
            "[B, C, T]",
            "the gradient of the output",
            False,
            "integers",
            *SMALL_INTEGERS,
        ),
        Input("x", FLOATS, "[B, C, T]", "as conv was given", False, "integers", *SMALL_INTEGERS),
        Input("weight", FLOATS, "[H, K]", "as conv was given"),
    ),
    outputs=(
        Output("grad_x", "[B, C, T]", "the gradient of x"),
        Output("grad_weight", "[H, K]", "the gradient of weight, deterministic"),
        Output("grad_bias", "[C]", "the gradient of bias", when="bias is true"),
    ),
    equivalent="torch.autograd.grad(conv(x, weight, bias), (x, weight, bias), grad_output)",
    cases=CASES,
    common=COMMON,
    sweep=SWEEP,
    tuning=TUNING,
    params=(*PARAMS, Param("bias", "bool", "give the gradient of a bias, too", default=False)),
    tolerance=SumTolerance(_sums),
    derive=_derive,
    sizes=SIZES,
)
