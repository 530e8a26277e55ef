"""y = softmax(scale * x + bias) over the unmasked positions of the last dim; exactly 0 at the others.

The dims before the last are rows, and a program takes a tile of them. It reads them once, keeps
them in registers and writes the result once, so that the op takes as long as moving its bytes. Of a
long row several programs have a part each. Rows of a few positions have kernels of their own: see
the table of variants in `_softmax/__init__.py`.
Bytes: (positions that count + rows * K written) * itemsize + mask, lengths and bias as they lie.
Source: Choongwoo Han, "How to write a PyTorch custom layer in CUDA for Transformer", 2019: its
form with a mask and its form with lengths.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels._softmax import checks, common_cases
from warpcall_kernels._softmax.constants import MAX_COLUMN_STRIDE
from warpcall_kernels._softmax.forward_plan import plan
from warpcall_kernels._softmax.forward_rows import softmax_split_kernel
from warpcall_kernels._softmax.rows import Variant
from warpcall_kernels._softmax.sums import masked_positions, sums
from warpcall_kernels._transpose.contiguous import contiguous
from warpcall_kernels.masked_softmax_backward import masked_softmax_backward
from warpcall_kernels.masked_softmax_bias_backward import masked_softmax_bias_backward
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
from warpcall_kernels.op.tolerance import SumTolerance

MASKS = (torch.bool, torch.uint8)
WITHOUT_BIAS = (Variant.SHORT, Variant.SPLIT)  # whose kernels take no bias and no slopes


def _launch(
    x: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    launch = _planned(x, mask, lengths, scale, causal, bias, slopes)
    check_device(x, mask=mask, lengths=lengths, bias=bias, slopes=slopes)
    out = empty_like(x)
    if not out.numel():
        return out
    if not runs_kernel(x):
        plain = masked_softmax_reference(x, mask, lengths, scale, causal, bias, slopes)
        return out.copy_(plain)
    if bias is not None and bias.dim() and bias.stride(-1) > MAX_COLUMN_STRIDE:
        bias = contiguous(bias)
        launch = _planned(x, mask, lengths, scale, causal, bias, slopes)
    if launch is None:  # the strides fit no plan; first try a copy of x alone
        x = contiguous(x)
        launch = _planned(x, mask, lengths, scale, causal, bias, slopes)
    if launch is None:
        mask = None if mask is None else contiguous(mask.expand(x.shape))
        lengths = None if lengths is None else contiguous(lengths.expand(x.shape[:-1]))
        launch = _planned(x, mask, lengths, scale, causal, bias, slopes)
    if launch is None:
        assert bias is not None
        bias = contiguous(bias.expand(x.shape))
        launch = _planned(x, mask, lengths, scale, causal, bias, slopes)
        assert launch is not None
    if launch.kernel is softmax_split_kernel:
        launch.with_words(x, out)
    elif launch.variant in WITHOUT_BIAS:
        launch.with_words(x, mask, lengths, out)
    else:
        launch.with_words(x, mask, lengths, bias, slopes, out)
    return out


def _planned(
    x: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
    causal: bool,
    bias: Tensor | None,
    slopes: Tensor | None,
) -> Launch | None:
    if bias is None and slopes is None:
        return _plan(_layout(x), _layout(mask), _layout(lengths), scale, causal)
    added = _layout(bias), _layout(slopes)
    return _plan(_layout(x), _layout(mask), _layout(lengths), scale, causal, *added)


def _layout(t: Tensor | None) -> LayoutKey | None:
    return None if t is None else layout_key(t)


@functools.lru_cache(maxsize=4096)
def _plan(
    x: LayoutKey,
    mask: LayoutKey | None,
    lengths: LayoutKey | None,
    scale: float,
    causal: bool,
    bias: LayoutKey | None = None,
    slopes: LayoutKey | None = None,
) -> Launch | None:
    """Check a call and plan its launch; None if operands must be copied, or nothing is computed."""
    x_layout = Layout(*x)
    mask_layout, lengths_layout, bias_layout, slopes_layout = (
        None if key is None else Layout(*key) for key in (mask, lengths, bias, slopes)
    )
    _infer(
        x_layout.meta,
        mask_layout and mask_layout.meta,
        lengths_layout and lengths_layout.meta,
        *(scale, causal),
        bias_layout and bias_layout.meta,
        slopes_layout and slopes_layout.meta,
    )
    return plan(x_layout, mask_layout, lengths_layout, scale, causal, bias_layout, slopes_layout)


def _infer(
    x: TensorLike,
    mask: TensorLike | None = None,
    lengths: TensorLike | None = None,
    scale: float = 1.0,
    causal: bool = False,
    bias: TensorLike | None = None,
    slopes: TensorLike | None = None,
) -> dict[str, Meta]:
    checks.check_rows("x", x, causal)
    if mask is not None:
        checks.check_dtype("mask", mask, MASKS)
        checks.check_broadcast("mask", mask, x.shape, "the shape of x")
    if lengths is not None:
        checks.check_lengths(lengths, x.shape)
    if bias is not None:
        checks.check_bias(bias, x, "x")
    if slopes is not None:
        checks.check_slopes(slopes, x.shape)
    checks.check_scale(scale)
    return {"out": Meta(tuple(x.shape), x.dtype)}


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.scale = inputs[3]
    bias = inputs[5]
    takes = bias is not None and bias.requires_grad
    ctx.bias = (bias.shape, bias.dtype) if takes else None
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (output,) = ctx.saved_tensors
    if ctx.bias is None:
        grad_x = masked_softmax_backward(grad, output, ctx.scale)
        return grad_x, None, None, None, None, None, None
    shape, dtype = ctx.bias
    like_bias = grad.new_empty((), dtype=dtype).expand(shape)  # no value of it is read
    grad_x, grad_bias = masked_softmax_bias_backward(grad, output, like_bias, ctx.scale)
    return grad_x, None, None, None, None, grad_bias, None


_op = register("masked_softmax", _launch, _infer, backward=_backward, setup_context=_setup_context)


def masked_softmax(
    x: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Softmax over the last dim of the positions that are not masked; 0 at the others.

    A position counts if neither mask nor lengths nor causality masks it, and its bias is not -inf.
    The scores are scale * x, and bias and slopes are added to them. A row in which no position
    counts is all zeros. Values at masked positions have no influence, even if they are NaN or
    infinite. If a score that counts is NaN or inf, or if all of them are -inf, all positions of the
    row that count become NaN, as in torch. The op allocates no device memory but the result, and 8 or
    16 bytes for each part of a row that programs share, unless the row dims do not merge into three or
    the positions of a row lie far apart and its rows not side by side; then it copies operands. With
    bias or slopes it copies an operand whose positions lie far apart in any case.

    Args:
        x: scores of shape (..., K), fp16, bf16, fp32 or fp64, any strides; fp16 and bf16 are
            computed in fp32.
        mask: bool or uint8, not 0 where a position is masked, broadcastable to x.
        lengths: int32 or int64, how many leading positions of each row count, broadcastable to
            (...); a length below 0 means 0, and one above K means K.
        scale: the finite number that x is multiplied by.
        causal: mask position k of row q where k > q + K - Q, for x of shape (..., Q, K).
        bias: fp16, bf16 or fp32, or fp64 where x is, what is added to scale * x, broadcastable to x; -inf masks a
            position, also where x is NaN or infinite.
        slopes: any of these dtypes, of shape (H,), for x of shape (..., H, Q, K): the slope of each head
            (ALiBi), which is multiplied by k - (q + K - Q) for position k of row q, and added. Where
            causality masks, that is minus the distance of query and key times the slope. It has no
            gradient.

    Returns:
        Probabilities with shape and dtype of x, contiguous.

    Raises:
        InvalidInput: shapes or dtypes that do not fit, a scale that is not finite, slopes that
            require a gradient, or tensors on different devices.
    """
    if slopes is not None and slopes.requires_grad and torch.is_grad_enabled():
        raise InvalidInput(
            "slopes", "slopes have no gradient, but require one: pass slopes.detach()"
        )
    if may_skip_dispatcher(x, mask, lengths, bias, slopes):
        return _launch(x, mask, lengths, scale, causal, bias, slopes)
    out: Tensor = _op(x, mask, lengths, scale, causal, bias, slopes)
    return out


def masked_softmax_reference(
    x: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """The same in plain torch."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    bias = None if bias is None else bias.to(dtype)
    masked = masked_positions(x, mask, lengths, causal, bias)
    scores = x.to(dtype) * scale
    if slopes is not None:
        scores = scores + slopes.to(dtype)[:, None, None] * checks.distances(x.shape, x.device)
    if bias is not None:
        scores = scores + bias
    if masked is None:
        return scores.softmax(-1).to(x.dtype)
    scores = scores.masked_fill_(masked, -math.inf)
    return scores.softmax(-1).masked_fill_(masked, 0).to(x.dtype)


def _bytes_moved(
    x: TensorLike,
    mask: TensorLike | None = None,
    lengths: TensorLike | None = None,
    scale: float = 1.0,
    causal: bool = False,
    bias: TensorLike | None = None,
    slopes: TensorLike | None = None,
) -> int:
    read = checks.prefix_elements(x.shape, lengths, causal) + math.prod(x.shape)
    others = [t for t in (mask, lengths, bias, slopes) if t is not None]
    beside = sum(math.prod(t.shape) * t.dtype.itemsize for t in others)
    return read * x.dtype.itemsize + beside


def _derive(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    params: Mapping[str, Any],
    mask: str,
    lengths: str,
    bias: str = "none",
) -> dict[str, Sample]:
    inputs, alone = {"x": Sample(shape, dtype)}, (1,) * len(shape[1:-1])
    if mask != "none":  # "key": all rows of a batch have the same mask, as padding has
        full = mask == "full" or len(shape) < 2
        masked = shape if full else (*shape[:1], *alone, *shape[-1:])
        inputs["mask"] = Sample(masked, torch.bool, "mask")
    if lengths != "none":
        rows = shape[:-1] if lengths == "rows" else (*shape[:-1][:1], *alone)
        inputs["lengths"] = Sample(rows, torch.int32, "integers", 0, math.prod(shape[-1:]) + 1)
    if bias != "none":
        inputs["bias"] = Sample(common_cases.bias_shape(shape, bias), dtype)
    return inputs


def _case(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    mask: tuple[int, ...] | None = None,
    lengths: tuple[int, ...] | None = None,
    params: Mapping[str, Any] | None = None,
    large: bool = False,
    bias: Sample | None = None,
    slopes: bool = False,
    **how: Any,
) -> Case:
    inputs = {"x": Sample(shape, dtype, **how)}
    if mask is not None:
        inputs["mask"] = Sample(
            mask, MASKS[len(name) % 2], "mask"
        )  # so that cases have both dtypes
    if lengths is not None:
        high = shape[-1] + 3
        inputs["lengths"] = Sample(lengths, torch.int32, "integers", low=-1, high=high)
    if bias is not None:
        inputs["bias"] = bias
    if slopes:
        inputs["slopes"] = Sample(shape[-3:-2], torch.float32, "uniform", scale=0.5)
    return Case(name, inputs, params or {}, "large" if large else "small")


CASES = (
    _case("rows", (5, 7, 33)),
    _case("key padding", (2, 3, 5, 40), mask=(2, 1, 1, 40), params={"scale": 0.125}),
    _case("rows share a mask", (2, 8, 9, 32), torch.float16, mask=(1, 1, 9, 32)),
    _case("few rows share a mask", (2, 3, 90, 32), torch.float16, mask=(1, 1, 90, 32)),
    _case("few short rows share a mask", (4, 301, 8), torch.bfloat16, mask=(301, 8)),
    _case("full mask", (3, 4, 65), torch.bfloat16, mask=(3, 4, 65)),
    _case("lengths", (6, 10, 48), lengths=(6, 10)),
    _case("lengths by batch, fp16", (4, 3, 72), torch.float16, lengths=(4, 1)),
    _case("causal", (2, 8, 8), params={"causal": True}),
    _case("causal, more keys", (2, 5, 40), torch.bfloat16, params={"causal": True, "scale": 2.0}),
    _case("causal, fewer keys", (2, 12, 5), torch.float64, params={"causal": True}),
    _case("all together", (2, 3, 8, 24), mask=(1, 3, 1, 24), lengths=(2, 1, 1), params={"causal": True}),
    _case("NaN and inf", (4, 30), values="special"),
    _case("NaN and inf under a mask", (6, 30), torch.float16, mask=(6, 30), values="special"),
    _case("one row", (17,), torch.float64),
    _case("one position", (4, 1)),
    _case("no rows", (0, 5)),
    _case("no positions", (3, 0)),
    _case("negative scale", (3, 20), params={"scale": -3.0}),
    _case("scale 0", (3, 20), torch.float64, params={"scale": 0.0}),
    _case("1000 positions", (2, 1000), torch.bfloat16, mask=(1, 1000)),
    _case("4097 positions", (2, 4097), lengths=(2,)),
    _case("20000 positions", (2, 20000), mask=(2, 20000), lengths=(2,)),
    _case("20000 positions, causal", (2, 20000), torch.float16, params={"causal": True}),
    _case("transposed", (3, 8, 16), layout="transposed", mask=(8, 16)),
    _case("strided", (5, 6, 20), torch.float16, layout="strided"),
    _case("offset", (4, 24), torch.bfloat16, layout="offset", mask=(4, 24)),
    _case("expanded", (4, 3, 12), layout="expanded"),
    _case("five dims, no two of which merge", (2, 2, 2, 2, 3), mask=(2, 1, 2, 1, 3)),
    _case("odd rows, their masks", (9, 77), torch.float16, mask=(9, 77)),
    _case("odd rows of batches", (3, 5, 131), torch.bfloat16, mask=(3, 1, 131), lengths=(3, 5)),
    _case("odd rows, NaN and inf", (7, 71), torch.float16, mask=(1, 71), values="special"),
    _case("odd rows, causal", (3, 6, 1029), torch.float16, params={"causal": True}),
    _case("odd rows, strided", (6, 35), torch.float32, layout="strided"),
    _case("20001 positions", (3, 20001), mask=(1, 20001), lengths=(3,)),
    _case("20003 positions", (3, 20003), torch.bfloat16, mask=(1, 20003)),
    _case("short odd rows", (1301, 3), torch.float16, mask=(1, 3)),
    _case("short odd rows by batches", (8, 200, 17), torch.bfloat16, mask=(8, 1, 17), lengths=(8, 200)),
    _case("short odd rows, NaN and inf", (300, 7), torch.float16, mask=(300, 7), values="special"),
    _case("short odd rows, causal", (40, 9, 9), params={"causal": True}),
    _case("short odd rows, scale 0", (70, 33), torch.float64, params={"scale": 0.0}),
    _case("[32, 16, 512, 512] fp16 key", (32, 16, 512, 512), torch.float16, mask=(32, 1, 1, 512), large=True),
    _case("[32, 16, 512, 512] bf16 key", (32, 16, 512, 512), torch.bfloat16, mask=(32, 1, 1, 512), large=True),
    _case("[32, 16, 512, 512] fp32 key", (32, 16, 512, 512), mask=(32, 1, 1, 512), large=True),
    _case("[8, 16, 2048, 2048] bf16 key", (8, 16, 2048, 2048), torch.bfloat16, mask=(8, 1, 1, 2048), large=True),
    _case("[8, 16, 2048, 2048] bf16 causal", (8, 16, 2048, 2048), torch.bfloat16, params={"causal": True}, large=True),
    _case("[8, 16, 2048, 2048] bf16 lengths", (8, 16, 2048, 2048), torch.bfloat16, lengths=(8, 1, 1), large=True),
    _case("[8, 16, 1024, 1024] bf16 full", (8, 16, 1024, 1024), torch.bfloat16, mask=(8, 16, 1024, 1024), large=True),
    _case("[128, 8, 64, 64] fp16 key", (128, 8, 64, 64), torch.float16, mask=(128, 1, 1, 64), large=True),
    _case("[128, 8, 64, 64] fp32 key", (128, 8, 64, 64), mask=(128, 1, 1, 64), large=True),
    _case("[4096, 32768] bf16", (4096, 32768), torch.bfloat16, large=True),
    *(
        _case(one.name, one.shape, one.dtype, bias=one.bias, slopes=one.slopes, params=one.params, **one.how)
        for one in (*common_cases.BIASED, *common_cases.SLOPED)
    ),
    *(
        _case(one.name, one.shape, one.dtype, bias=one.bias, slopes=one.slopes, params=one.params, large=True)
        for one in (*common_cases.BIASED_LARGE, *common_cases.SLOPED_LARGE)
    ),
)  # fmt: skip


def _sweep() -> Iterator[Case]:
    for shape, dtype, name in common_cases.sweep_shapes():
        mask = Sample((1, shape[1]), torch.bool, "mask")
        yield Case(f"{name} key", {"x": Sample(shape, dtype), "mask": mask}, {}, "large")
    square = {"x": Sample((61, 701, 701), torch.float16)}
    yield Case("[61,701,701] fp16 causal", square, {"causal": True}, "large")
    x = Sample((4093, 4099), torch.bfloat16)
    lengths = Sample((4093,), torch.int64, "integers", 0, 4099)
    yield Case("[4093,4099] bf16 lengths", {"x": x, "lengths": lengths}, {}, "large")


SPLIT_STEPS: dict[int, list[tuple[Any, ...]]] = {
    2: [((4096, 4, 48),), ((4096, 4, 56),), ((2048, 2, 64),), ((8192, 8, None),)],
    4: [((2048, 4, 40),), ((2048, 4, 48),), ((4096, 4, 80),), ((4096, 8, 56),)],
}
TUNING = (
    common_cases.TILE_CONSTANTS,
    TunedConstants(
        "_softmax.constants", ("SPLIT_FORWARD[2]",), SPLIT_STEPS[2], ("[670,50021] bf16 key",)
    ),
    TunedConstants(
        "_softmax.constants",
        ("SPLIT_FORWARD[4]",),
        SPLIT_STEPS[4],
        ("[335,100003] fp32 key", "[3353,10007] fp32 key"),
    ),
    TunedConstants(
        "_softmax.constants",
        ("SPLIT_ROWS[2]",),
        [((2048, 1, 128),), ((4096, 2, None),), ((4096, 4, 80),)],
        ("[4096, 32768] bf16",),
    ),
    TunedConstants(
        "_softmax.constants",
        ("HELD_BYTES_ADDED",),
        [(16_384,), (32_768,), (65_536,)],
        ("keys bias [2048, 16384]", "full bias [2048, 32768]"),
    ),
    TunedConstants(
        "_softmax.constants",
        ("MIN_SHARED_BIAS",),
        [(2,), (4,), (64,), (1 << 30,)],
        (
            "T5 bias [32, 16, 512, 512] fp16",
            "Swin bias [2048",
            "Swin bias [1024",
            "BEiT",
            "pairs bias",
            "BLOOM",
            "float mask as bias",
        ),
    ),
)

OP = Op(
    name="masked-softmax",
    function=masked_softmax,
    reference=masked_softmax_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(
        Input("x", checks.FLOATS, "[..., K]", "the scores"),
        Input(
            "mask", MASKS, "broadcastable to x", "not 0 where a position is masked", True, "mask"
        ),
        Input(
            "lengths",
            checks.LENGTHS,
            "broadcastable to x without its last dim",
            "how many leading positions of each row count",
            True,
            "integers",
        ),
        Input(
            "bias",
            checks.FLOATS,
            "broadcastable to x",
            "what is added to scale * x; -inf masks a position",
            True,
        ),
        Input(
            "slopes",
            checks.FLOATS,
            "[H]",
            "the slope of each head of x [..., H, Q, K], which is multiplied by k - (q + K - Q) and added",
            True,
            "uniform",
        ),
    ),
    outputs=(Output("out", "[..., K]", "probabilities, 0 at masked positions"),),
    equivalent="(scale * x + bias).masked_fill(mask, -inf).softmax(-1).masked_fill(mask, 0)",
    cases=CASES,
    common=tuple(_case("common", **call) for call in common_cases.common_calls()),
    params=(
        Param("scale", "float", "the number that x is multiplied by", default=1.0),
        Param(
            "causal",
            "bool",
            "mask position k of row q where k > q + K - Q, for x of [..., Q, K]",
            default=False,
        ),
    ),
    tolerance=SumTolerance(sums),
    differentiable=("x", "bias"),
    derive=_derive,
    sizes=(
        Size(
            "mask",
            "none, one mask for each batch, or one for each row",
            "none",
            choices=("none", "key", "full"),
        ),
        Size(
            "lengths",
            "none, one length for each batch, or one for each row",
            "none",
            choices=("none", "batch", "rows"),
        ),
        Size(
            "bias",
            "none, one bias for each batch and key, for each head, query and key, or for each position",
            "none",
            choices=common_cases.BIAS_CHOICES,
        ),
    ),
    sweep=tuple(_sweep()),
    tuning=TUNING,
)
