"""out = a^T + b over the last two dims, each input read once.

A program moves one tile: the load of `a` follows its rows, the tile is turned in shared memory, the
load of `b` and the store follow the rows of the output, so that every access is coalesced and, where
sizes allow, 16 bytes a thread; where rows of large matrices do not begin at words, see `_transpose/unaligned.py`.
Bytes: numel(a) * itemsize(a) + numel(b) * itemsize(b) + numel(out) * itemsize(out), broadcast
operands as they lie in memory.
Source: an article on `input1.transpose(0, 1) + input2`, bf16 [24300, 11520]: 67 % of a copy's speed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpcall_kernels._transpose import strides as _dims
from warpcall_kernels._transpose import unaligned
from warpcall_kernels._transpose.strides import contiguous_strides, offset
from warpcall_kernels.op import cases
from warpcall_kernels.op.cases import COMMON_SIZES, Case, Sample, Values
from warpcall_kernels.op.declaration import Input, Meta, Op, Output, TensorLike
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import Launch, Layout, LayoutKey, layout_key, runs_kernel
from warpcall_kernels.op.registration import may_skip_dispatcher, register
from warpcall_kernels.permute import permute

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
MAX_BATCH_DIMS = 10

# Square tiles by itemsize of the output: (side, warps), where its rows begin at more than a word and where
# not: what `_transpose/unaligned.py` leaves of those, such as short sides, two types, and b that lies otherwise.
# Medians on an H200 of bf16: [24300, 11520] 400 us with 128, 412 and more with 64; [4097, 8191]
# 69 us with 32, 74 and more with others.
TILES = {1: (128, 8), 2: (128, 8), 4: (64, 8), 8: (32, 8)}
TILES_FEW_WORDS = {1: (64, 8), 2: (32, 4), 4: (32, 4), 8: (32, 8)}
# And where there would be fewer than MIN_TILES tiles. [512, 512] bf16: 2.1 us, with 128 3.2.
TILES_SMALL = {1: (64, 8), 2: (32, 4), 4: (32, 4), 8: (32, 8)}
MIN_TILES = 132  # multiprocessors of an H200
UNSPECIALIZED = (
    *("units_h", "units_w", "tiles_h", "tiles_w"),
    *("stride_ah", "stride_aw", "stride_bw", "stride_bh"),
)  # no variant is compiled for these: the ALIGNs say what divides them; of tuples Triton makes some


@triton.jit
def _as_term(x: tl.tensor, out_ptr: tl.tensor, ACC: tl.constexpr, FLOAT: tl.constexpr) -> tl.tensor:
    """`x` as torch adds it: first in the type of the output, then as wide as sums are computed.

    Adding 0.0 keeps the compiler from rounding an integer once where torch rounds it to fp32 first.
    A float is not touched: it only widens, and -0.0 + 0.0 is 0.0.
    """
    if FLOAT and x.dtype.is_int():
        x = (x.to(ACC) + 0.0).to(out_ptr.dtype.element_ty)
    return x.to(ACC)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _transpose_add_kernel(
    a_ptr: tl.tensor,
    out_ptr: tl.tensor,
    b_ptr: tl.tensor,
    units_h: tl.tensor,
    units_w: tl.tensor,
    tiles_h: tl.tensor,
    tiles_w: tl.tensor,
    stride_ah: tl.tensor,
    stride_aw: tl.tensor,
    stride_bw: tl.tensor,
    stride_bh: tl.tensor,
    sizes: tl.tensor,
    a_strides: tl.tensor,
    b_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM: tl.constexpr,
    EVEN_A: tl.constexpr,
    EVEN_B: tl.constexpr,
    ALIGN_W: tl.constexpr,
    ALIGN_H: tl.constexpr,
    WIDE: tl.constexpr,
    ACC: tl.constexpr,
    FLOAT: tl.constexpr,
    LOGICAL: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
) -> None:
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    h = pid % tiles_h * BLOCK_H + tl.arange(0, BLOCK_H)
    pid = pid // tiles_h
    w = pid % tiles_w * BLOCK_W + tl.arange(0, BLOCK_W)
    batch = pid // tiles_w
    size_h, size_w = units_h * ALIGN_H, units_w * ALIGN_W  # the compiler knows what divides them
    a_ptr += offset(batch, sizes, a_strides, NDIM, ALIGN_W)
    b_ptr += offset(batch, sizes, b_strides, NDIM, ALIGN_H)
    out_ptr += offset(batch, sizes, out_strides, NDIM, ALIGN_H)

    inside = (h < size_h)[:, None] & (w < size_w)[None, :]
    along = w if EVEN_A else w * stride_aw
    a = tl.load(
        a_ptr + tl.multiple_of(h * stride_ah, ALIGN_W)[:, None] + along[None, :], mask=inside
    )
    inside = (w < size_w)[:, None] & (h < size_h)[None, :]
    along = h if EVEN_B else h * stride_bh
    b = tl.load(
        b_ptr + tl.multiple_of(w * stride_bw, ALIGN_H)[:, None] + along[None, :], mask=inside
    )
    a = _as_term(tl.trans(a), out_ptr, ACC, FLOAT)
    b = _as_term(b, out_ptr, ACC, FLOAT)
    total = a | b if LOGICAL else a + b
    at = tl.multiple_of(w * size_h, ALIGN_H)[:, None] + h[None, :]
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)


@functools.lru_cache(maxsize=4096)
def _plan(a: LayoutKey, b: LayoutKey) -> tuple[Meta, Launch | None]:
    """The result, and the launch that makes it unless it is empty."""
    a_shape, a_strides, a_dtype, a_address = a
    b_shape, b_strides, b_dtype, b_address = b
    out = _infer(Layout(*a).meta, Layout(*b).meta)["out"]
    if not out.nbytes:
        return out, None
    dtype = out.dtype
    size_h, size_w = a_shape[-2:]
    batch = _batch(a_shape[:-2], b_shape[:-2])
    strides = (
        _dims.broadcast_strides(a_shape[:-2], a_strides[:-2], len(batch)),
        _dims.broadcast_strides(b_shape[:-2], b_strides[:-2], len(batch)),
        contiguous_strides(out.shape)[:-2],
    )
    dims = _dims.merge(batch, *strides) or [(1, (0, 0, 0))]
    (ah, aw), (bw, bh) = a_strides[-2:], b_strides[-2:]
    a_begin, b_begin = a_address // a_dtype.itemsize, b_address // b_dtype.itemsize
    spans = (
        _dims.reach(a_shape, a_strides),
        _dims.reach(b_shape, b_strides),
        math.prod(out.shape),
    )
    if a_dtype == b_dtype and (bw, bh) == (size_h, 1) and all(s[1] == s[2] for _, s in dims):
        by_words = unaligned.arrange(
            (size_w, (aw, size_h)),
            (size_h, (ah, 1)),
            [(n, (s[0], s[2])) for n, s in dims],
            dtype.itemsize,
            a_begin,
            add=dtype,
            b_begin=b_begin,
        )
        if by_words is not None:
            programs, arguments = by_words
            word = _dims.WORDS[dtype.itemsize]
            wide = max(spans) >= _dims.INT32_REACH
            kernel = unaligned.unaligned_kernel
            return out, Launch(kernel, (programs,), {**arguments, "WIDE": wide}, (word,) * 3)
    align_w = align_h = 1
    if aw == 1:
        align_w = _dims.alignment(a_dtype.itemsize, [a_begin, size_w, ah, *(s[0] for _, s in dims)])
    if bh == 1:
        widest = max(b_dtype.itemsize, dtype.itemsize)
        align_h = _dims.alignment(widest, [b_begin, size_h, bw, *(s[1] for _, s in dims)])
    side, warps = (TILES if align_h > 1 else TILES_FEW_WORDS)[dtype.itemsize]
    if math.prod(out.shape) < MIN_TILES * side * side:
        side, warps = TILES_SMALL[dtype.itemsize]
    block_h = min(triton.next_power_of_2(size_h), side)
    block_w = min(triton.next_power_of_2(size_w), side * side // block_h)
    if block_w < side:
        block_h = min(triton.next_power_of_2(size_h), side * side // block_w)
    tiles_h, tiles_w = triton.cdiv(size_h, block_h), triton.cdiv(size_w, block_w)
    arguments = {
        "units_h": size_h // align_h,
        "units_w": size_w // align_w,
        "tiles_h": tiles_h,
        "tiles_w": tiles_w,
        "stride_ah": ah,
        "stride_aw": aw,
        "stride_bw": bw,
        "stride_bh": bh,
        "sizes": tuple(n for n, _ in dims),
        "a_strides": tuple(s[0] for _, s in dims),
        "b_strides": tuple(s[1] for _, s in dims),
        "out_strides": tuple(s[2] for _, s in dims),
        "NDIM": len(dims),
        "EVEN_A": aw == 1,
        "EVEN_B": bh == 1,
        "ALIGN_W": align_w,
        "ALIGN_H": align_h,
        "WIDE": max(spans) >= _dims.INT32_REACH,
        "ACC": _ACCUMULATORS[dtype],
        "FLOAT": dtype.is_floating_point,
        "LOGICAL": dtype == torch.bool,
        "BLOCK_H": block_h,
        "BLOCK_W": block_w,
        "num_warps": warps,
    }
    words = tuple(tl.int8 if d == torch.bool else None for d in (a_dtype, dtype, b_dtype))
    return out, Launch(
        _transpose_add_kernel, (tiles_h * tiles_w * math.prod(batch),), arguments, words
    )


_ACCUMULATORS = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), tl.float32),
    torch.float64: tl.float64,
    torch.int64: tl.int64,
    torch.int32: tl.int32,
    torch.int16: tl.int16,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
    torch.bool: tl.int8,
}


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
            raise InvalidInput(name, f"{name} must be real numbers or bool, got {t.dtype}")
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
    """What two batch shapes that fit broadcast to."""
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
        summed = grad.sum_to_size((*batch, w, h)).to(a_dtype)
        rank = summed.dim()
        grad_a = permute(summed, (*range(rank - 2), rank - 1, rank - 2))
    if ctx.needs_input_grad[1]:
        grad_b = grad.sum_to_size(b_shape).to(b_dtype)
    return grad_a, grad_b


_op = register("transpose_add", _launch, _infer, backward=_backward, setup_context=_setup_context)


def transpose_add(a: Tensor, b: Tensor) -> Tensor:
    """Add `b` to the transpose of `a`.

    Exact: rounded once, as torch rounds. Needs no device memory but the result.

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
    turned = (*shape[:-2], *shape[:-3:-1])
    return {"a": Sample(shape, dtype), "b": Sample(turned, dtype)}


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
    _case("a transposed", (17, 30), (30, 17), layouts=("transposed", "contiguous")),
    _case("b transposed", (17, 30), (30, 17), layouts=("contiguous", "transposed")),
    _case("strided", (17, 30), (30, 17), torch.bfloat16, layouts=("strided", "strided")),
    _case("offset", (16, 32), (32, 16), torch.float16, layouts=("offset", "offset")),
    _case("expanded", (16, 9), (9, 16), layouts=("expanded", "expanded")),
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
    differentiable=("a", "b"),
    limits=f"at most {MAX_BATCH_DIMS} batch dims",
    derive=_derive,
)
