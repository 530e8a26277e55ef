"""out[b, c, t] = sum_j w[c // (C / H), j] * x[b, c, t + j - padding_l] + bias[c], 0 outside of a
row.

Lightweight convolution: depthwise, with one filter for the C / H channels of a head. Each element
    of x
is read from memory once. Few taps, and those of fp32 and fp64, are multiplied in registers; more
taps of fp16 and bf16 are a product with the filter's banded Toeplitz matrix on tensor cores. The
time is therefore that of moving the bytes, up to 31 taps and beyond. The variants are in
`_conv/forward.py`. Bytes: (2 * B * C * T + H * K + C with a bias) * itemsize. Source: Wu et al.,
"Pay Less Attention with Lightweight and Dynamic Convolutions", 2019, and fairseq's lightconv.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as all of torch's own pages have it
from torch import Tensor

from warpcall_kernels._conv.common_cases import PARAMS, SIZES, SWEEP_FILTERS, sweep_name
from warpcall_kernels._conv.filters import FLOATS, check_filter
from warpcall_kernels._conv.forward import FMA_MAX_TAPS, plan
from warpcall_kernels._conv.weights import (
    amplification_of,
    by_channel,
    effective_weight,
    expand_weight,
)
from warpcall_kernels._transpose.contiguous import contiguous, has_far_positions
from warpcall_kernels.conv_backward import conv_backward
from warpcall_kernels.op.cases import Case, Sample
from warpcall_kernels.op.declaration import (
    Input,
    Meta,
    Op,
    Output,
    Size,
    TensorLike,
    TunedConstants,
)
from warpcall_kernels.op.launch import check_device, empty_like, layout_key, runs_kernel
from warpcall_kernels.op.registration import may_skip_dispatcher, register
from warpcall_kernels.op.tolerance import Sums, SumTolerance, squared

# Elements between positions of x beyond which it is copied first. [64, 512, 1024] bf16 with 3 and 15 taps, whose
# positions lie 512 apart, on an H200: 74 and 81 us, 215 and 398 without a copy; 64 apart and fp32, a copy loses.
MOST_STRIDE = 128


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding_l: int | None = None,
    softmax_weight: bool = False,
) -> Tensor:
    places = layout_key(x), layout_key(weight), None if bias is None else layout_key(bias)
    launch = plan(*places, padding_l, softmax_weight)
    check_device(x, weight=weight, bias=bias)
    out = empty_like(x)
    if not out.numel():
        return out
    if not runs_kernel(x):
        return out.copy_(conv_reference(x, weight, bias, padding_l, softmax_weight))
    if has_far_positions(places[0], MOST_STRIDE):
        x = contiguous(x)
        launch = plan(layout_key(x), *places[1:], padding_l, softmax_weight)
    launch(x, weight, bias, out)
    return out


def _infer(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    padding_l: int | None = None,
    softmax_weight: bool = False,
) -> dict[str, Meta]:
    check_filter("x", x, weight, bias, padding_l)
    return {"out": Meta(tuple(x.shape), x.dtype)}


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.padding_l, ctx.softmax_weight = inputs
    ctx.bias = bias is not None
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    grads = conv_backward(grad, x, weight, ctx.padding_l, ctx.softmax_weight, ctx.bias)
    return (*grads, None, None)


_op = register("conv", _launch, _infer, backward=_backward, setup_context=_setup_context)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding_l: int | None = None,
    softmax_weight: bool = False,
) -> Tensor:
    """Convolve each channel with the filter of its head, keeping the length.

    Needs no device memory but the result, and a copy of an x of 4 MiB or more whose positions lie more
    than 128 elements apart.

    Args:
        x: (B, C, T), fp16, bf16, fp32 or fp64, any strides; fp16 and bf16 are summed in fp32.
        weight: (H, K), C divisible by H: channels c with the same c // (C / H) share a filter.
        bias: (C,).
        padding_l: zeros before each row, 0 to K - 1; None is K - 1, which is causal.
        softmax_weight: normalise each filter by softmax over its taps first.

    Returns:
        (B, C, T), contiguous.

    Raises:
        InvalidInput: shapes or dtypes that do not fit, a padding out of range, or tensors on
            different devices.
    """
    if may_skip_dispatcher(x, weight, bias):
        return _launch(x, weight, bias, padding_l, softmax_weight)
    out: Tensor = _op(x, weight, bias, padding_l, softmax_weight)
    return out


def conv_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding_l: int | None = None,
    softmax_weight: bool = False,
) -> Tensor:
    """The same in plain torch."""
    if not x.numel():
        return x
    channels, taps = x.shape[1], weight.shape[1]
    padding = taps - 1 if padding_l is None else padding_l
    w = expand_weight(effective_weight(weight, softmax_weight), channels)
    padded = F.pad(x.to(w.dtype), (padding, taps - 1 - padding))
    wide_bias = None if bias is None else bias.to(w.dtype)
    return F.conv1d(padded, w, wide_bias, groups=channels).to(x.dtype)


def _sums(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding_l: int | None = None,
    softmax_weight: bool = False,
) -> dict[str, Sums]:
    """An element has K terms of both signs, and the bias.

    The sum of the squares of the terms is the convolution of the squares.
    """
    w = effective_weight(weight.double(), softmax_weight)
    squares = None if bias is None else squared(bias)
    size = conv_reference(squared(x), squared(w), squares, padding_l).sqrt_()
    terms = weight.shape[1] + (bias is not None)
    amplification = by_channel(amplification_of(weight, softmax_weight), x.shape[1])
    return {"out": Sums(terms, size, amplification)}


def _bytes_moved(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    padding_l: int | None = None,
    softmax_weight: bool = False,
) -> int:
    numel = 2 * math.prod(x.shape) + math.prod(weight.shape)
    return (numel + (x.shape[1] if bias is not None else 0)) * x.dtype.itemsize


def _derive(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    params: Mapping[str, Any],
    heads: int,
    taps: int,
    bias: str,
) -> dict[str, Sample]:
    inputs = {"x": Sample(shape, dtype), "weight": Sample((heads, taps), dtype)}
    return inputs | ({"bias": Sample(shape[1:2], dtype)} if bias == "yes" else {})


def _case(
    name: str,
    shape: tuple[int, int, int],
    weight: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    params: Mapping[str, Any] | None = None,
    *,
    bias: bool = False,
    large: bool = False,
    **how: Any,
) -> Case:
    inputs = {"x": Sample(shape, dtype, **how), "weight": Sample(weight, dtype)}
    if bias:
        inputs["bias"] = Sample(shape[1:2], dtype)
    return Case(name, inputs, params or {}, "large" if large else "small")


def _large(shape: tuple[int, int, int], heads: int) -> list[Case]:
    """Shapes and filters that other implementations were measured with."""
    cases = []
    filters = [(3, "K-1"), (7, "K-1"), (15, "K-1"), (31, "K-1"), (7, "K//2")]
    for dtype, short in (
        (torch.bfloat16, "bf16"),
        (torch.float32, "fp32"),
        (torch.float16, "fp16"),
    ):
        for taps, padding in filters:
            if (short == "fp16" and taps != 31) or (short == "fp32" and taps == 15):
                continue
            if short != "bf16" and padding == "K//2":
                continue
            sizes = ",".join(map(str, shape))
            name = f"[{sizes}] H{heads} K{taps} pad{padding} {short}"
            params = {} if padding == "K-1" else {"padding_l": taps // 2}
            cases.append(_case(name, shape, (heads, taps), dtype, params, large=True))
    return cases


CASES = (
    _case("causal", (2, 8, 40), (4, 3)),
    _case("centred", (2, 6, 33), (3, 5), params={"padding_l": 2}),
    _case("not causal", (1, 4, 20), (2, 4), params={"padding_l": 0}),
    _case("one tap", (2, 4, 16), (4, 1)),
    _case("one tap, softmax", (2, 4, 16), (4, 1), params={"softmax_weight": True}),
    _case("one head", (2, 3, 24), (1, 7), torch.float16, bias=True),
    _case("bias", (3, 4, 31), (2, 3), torch.bfloat16, bias=True),
    _case("softmax", (2, 4, 30), (2, 6), params={"softmax_weight": True}),
    _case("15 taps", (2, 4, 50), (2, 15), torch.bfloat16, {"padding_l": 7}),
    _case("31 taps", (2, 4, 64), (2, 31), torch.float16),
    _case("31 taps, softmax", (1, 2, 50), (2, 31), torch.bfloat16, {"softmax_weight": True}),
    _case("31 taps, fp32", (1, 4, 45), (2, 31), bias=True),
    _case("40 taps, fp16", (1, 2, 60), (1, 40), torch.float16, {"padding_l": 11}),
    _case("40 taps, fp32", (1, 2, 24), (1, 40), params={"padding_l": 11}),
    _case("70 taps, softmax", (1, 2, 50), (1, 70), torch.bfloat16, {"softmax_weight": True}),
    _case("64 taps", (1, 4, 136), (2, 64), torch.bfloat16, {"softmax_weight": True}),
    _case("257 taps", (1, 2, 264), (1, 257), torch.float16, bias=True),
    _case("fp64", (2, 4, 23), (2, 5), torch.float64, {"softmax_weight": True}, bias=True),
    _case("one position", (3, 4, 1), (2, 3)),
    _case("fewer positions than taps", (2, 2, 4), (1, 9), torch.float64),
    _case("no batches", (0, 4, 8), (2, 3)),
    _case("no positions", (2, 4, 0), (2, 3)),
    _case("no channels", (2, 0, 8), (2, 3)),
    _case("NaN and inf", (2, 4, 40), (2, 3), values="special"),
    _case(
        "NaN and inf, many taps",
        (2, 4, 60),
        (2, FMA_MAX_TAPS + 1),
        torch.bfloat16,
        values="special",
    ),
    _case("transposed", (2, 6, 16), (3, 3), layout="transposed"),
    _case("strided", (2, 4, 24), (2, FMA_MAX_TAPS + 1), torch.float16, layout="strided"),
    _case("offset", (2, 4, 32), (2, 3), torch.bfloat16, layout="offset"),
    _case("expanded", (3, 4, 16), (2, 3), layout="expanded"),
    _case("skewed to the last group", (1, 1, 6137), (1, 3), torch.bfloat16),
    _case("skewed to the last group, 31 taps", (1, 1, 6137), (1, 31), torch.bfloat16),
    *_large((32, 512, 512), 8),
    *_large((8, 1024, 2048), 16),
    *_large((64, 512, 32), 8),
    *_large((4, 1024, 8192), 16),
)

DEMO = _case("the demo's", (1, 8, 48_000), (8, 31), params={"padding_l": 15})
COMMON = (
    DEMO,
    *(
        _case("common", (*rows, length), (rows[1], taps), bias=bias)
        for rows in ((1, 1), (1, 8), (8, 64))
        for length in (100, 1000, 16000)
        for taps in (3, 4, 5, 7, 9, 15, 31, 63, 128)
        for bias in (False, True)
    ),
)

# Shapes that no kernel was tuned for.
SWEEP = tuple(
    _case(sweep_name(shape, heads, taps, dtype), shape, (heads, taps), dtype, large=True)
    for shape, heads, taps, dtype in SWEEP_FILTERS
)

TUNING = (
    TunedConstants(
        "_conv.forward",
        ("FMA_PIECES", "FMA_WARPS"),
        [(128, 1), (128, 2), (256, 2), (256, 4), (512, 4)],
        ("[8,1024,2048] H16 K7 padK-1 bf16", "[8,1024,2048] H16 K31 padK-1 fp32"),
    ),
    TunedConstants(
        "_conv.forward",
        ("DOT_TILE", "DOT_WARPS", "DOT_PROGRAMS"),
        [(4096, 4, 4), (4096, 4, 2), (2048, 4, 4), (2048, 2, 8), (8192, 8, 2)],
        ("[8,1024,2048] H16 K31 padK-1 bf16", "[32,512,512] H8 K31 padK-1 bf16"),
    ),
    TunedConstants(
        "_conv.forward",
        ("FMA_MAX_TAPS",),
        [(8,), (16,)],
        ("[8,1024,2048] H16 K15", "[32,512,512] H8 K15"),
    ),
    TunedConstants(
        "_conv.forward",
        ("INTERIOR_TILES",),
        [(2,), (4,), (32,)],
        ("[4,1024,8192] H16 K15", "[4,1024,8192] H16 K31 padK-1 fp32"),
    ),
)

OP = Op(
    name="conv",
    function=conv,
    reference=conv_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(
        Input("x", FLOATS, "[B, C, T]", "the rows"),
        Input("weight", FLOATS, "[H, K]", "a filter for each head of C / H channels"),
        Input("bias", FLOATS, "[C]", "what is added to each channel", True),
    ),
    outputs=(Output("out", "[B, C, T]", "the rows, filtered"),),
    equivalent="F.conv1d(F.pad(x, (padding_l, K - 1 - padding_l)), "
    "weight.repeat_interleave(C // H, 0)[:, None], bias, groups=C)",
    cases=CASES,
    common=COMMON,
    sweep=SWEEP,
    tuning=TUNING,
    params=PARAMS,
    tolerance=SumTolerance(_sums),
    differentiable=("x", "weight", "bias"),
    derive=_derive,
    sizes=(*SIZES, Size("bias", "whether there is one", "no", choices=("no", "yes"))),
)
