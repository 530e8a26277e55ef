"""What the forward and backward convolution kernels share: filters, windows, and products of both.

The rows of one head share a filter. A program therefore takes a *tile* of such rows, which is cut
into *pieces* of neighbouring elements. `_conv/rows.py` reads and writes them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._conv.rows import (
    INTERIOR,
    Bounds,
    Strides,
    Tile,
    in_rows,
    load_block,
    locate,
    row_ptrs,
)
from warpcall_kernels.op.declaration import TensorLike, dtype_name
from warpcall_kernels.op.errors import InvalidInput

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NARROW = (torch.float16, torch.bfloat16)
OCTET = tl.constexpr(8)  # fp16 or bf16 elements of 16 bytes; windows of a dot begin at multiples
SOFTMAX_STEP = 1024  # taps that the normalisation loads at once

UNSPECIALIZED = (
    *("rows", "group", "channels", "units", "tiles", "tiles_wide", "taps", "padding", "bands"),
    *("lead_pieces", "lead_octets", "stride_wh", "stride_wk", "stride_bias"),
    *("stride_xb", "stride_xc", "stride_gb", "stride_gc", "parts"),
)  # integers that Triton does not compile variants for; UNIT says what divides them
UNALIGNED = (
    "stride_xt",
    "stride_gt",
)  # arguments that it compiles variants for only if they are None


def check_filter(
    name: str, x: TensorLike, weight: TensorLike, bias: TensorLike | None, padding_l: int | None
) -> int:
    """Check that these can be convolved, and return the padding: K - 1 unless it is given.

    The parameter is called padding_l, as in fairseq's lightconv: the zeros to the left of each row.

    Raises:
        InvalidInput: they cannot be; `name` is the name of x in the message.
    """
    if len(x.shape) != 3:
        raise InvalidInput(name, f"{name} must have 3 dims, [B, C, T], got shape {tuple(x.shape)}")
    if len(weight.shape) != 2:
        raise InvalidInput(
            "weight", f"weight must have 2 dims, [H, K], got shape {tuple(weight.shape)}"
        )
    channels, (heads, taps) = x.shape[1], weight.shape
    if x.dtype not in FLOATS:
        names = ", ".join(map(dtype_name, FLOATS))
        raise InvalidInput(name, f"{name} must be one of {names}, got {dtype_name(x.dtype)}")
    if heads < 1 or taps < 1 or channels % heads:
        raise InvalidInput(
            "weight",
            f"weight must have shape [H, K] with K >= 1 and H a divisor of the {channels} channels "
            f"of {name}, got {tuple(weight.shape)}",
        )
    if bias is not None and tuple(bias.shape) != (channels,):
        raise InvalidInput(
            "bias",
            f"bias must have shape ({channels},), one for each channel, got {tuple(bias.shape)}",
        )
    for other, t in (("weight", weight), ("bias", bias)):
        if t is not None and t.dtype != x.dtype:
            raise InvalidInput(
                other,
                f"{other} must be {dtype_name(x.dtype)} as {name} is, got {dtype_name(t.dtype)}",
            )
    padding = taps - 1 if padding_l is None else padding_l
    if not 0 <= padding < taps:
        raise InvalidInput(
            "padding_l", f"padding_l must be between 0 and {taps - 1}, K - 1, got {padding_l}"
        )
    return padding


@triton.jit
def unpack(x: tl.tensor, N: tl.constexpr, V: tl.constexpr) -> tl.tensor:
    """[N, V] -> V tensors [N]. It costs nothing if one thread holds all V elements of a row."""
    if V == 1:
        return (tl.reshape(x, (N,)),)
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        even, odd = tl.split(tl.reshape(x, (N, V // 2, 2)))
        evens = unpack(even, N, V // 2)
        odds = unpack(odd, N, V // 2)
        parts = ()
        for i in tl.static_range(V // 2):
            parts = parts + (evens[i], odds[i])  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
        return parts


@triton.jit
def pack(parts: tl.tensor, N: tl.constexpr, V: tl.constexpr) -> tl.tensor:
    """V tensors [N] -> [N, V]; the inverse of `unpack`."""
    if V == 1:
        return tl.reshape(parts[0], (N, 1))
    else:  # noqa: RET505
        evens = pack(parts[0::2], N, V // 2)
        odds = pack(parts[1::2], N, V // 2)
        return tl.reshape(tl.join(evens, odds), (N, V))


class Filter(NamedTuple):
    """The filter of a head, as a kernel reads it; a tap w counts as exp(w - peak) * scale if
    SOFTMAX.
    """

    ptr: tl.tensor  # of the first tap
    stride: tl.tensor  # to the next tap; negative if the filter is reversed
    peak: tl.tensor
    scale: tl.tensor


@triton.jit
def softmax_terms(
    w_ptr: tl.tensor, taps: tl.tensor, stride_wk: tl.tensor, STEP: tl.constexpr, ACC: tl.constexpr
) -> tl.tensor:
    """The maximum of a filter, and 1 over the sum of exp(w - maximum)."""
    at = tl.arange(0, STEP)
    peak = tl.full([], float("-inf"), ACC)
    for first in range(0, taps, STEP):
        w = tl.load(w_ptr + (first + at) * stride_wk, first + at < taps, other=float("-inf"))
        peak = tl.maximum(peak, tl.max(w.to(ACC)))
    total = tl.full([], 0.0, ACC)
    for first in range(0, taps, STEP):
        w = tl.load(w_ptr + (first + at) * stride_wk, first + at < taps, other=float("-inf"))
        total += tl.sum(tl.exp(w.to(ACC) - peak))
    return peak, 1.0 / total


@triton.jit
def filter_of(
    w_ptr: tl.tensor,
    taps: tl.tensor,
    stride_wk: tl.tensor,
    FLIP: tl.constexpr,
    SOFTMAX: tl.constexpr,
    STEP: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """The `Filter` of `taps` taps at `w_ptr`, reversed if FLIP."""
    peak, scale = tl.full([], 0.0, ACC), tl.full([], 1.0, ACC)
    if SOFTMAX:
        peak, scale = softmax_terms(w_ptr, taps, stride_wk, STEP, ACC)
    if FLIP:
        return Filter(w_ptr + (taps - 1) * stride_wk, -stride_wk, peak, scale)
    else:  # noqa: RET505
        return Filter(w_ptr, stride_wk, peak, scale)


@triton.jit
def weights_of(
    w_ptr: tl.tensor,
    stride_wk: tl.tensor,
    peak: tl.tensor,
    scale: tl.tensor,
    COUNT: tl.constexpr,
    SOFTMAX: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """The next COUNT weights, as COUNT scalars."""
    weights = ()
    for j in tl.static_range(COUNT):
        w = tl.load(w_ptr + j * stride_wk).to(ACC)
        if SOFTMAX:
            w = tl.exp(w - peak) * scale
        weights = weights + (w,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
    return weights


@triton.jit
def load_diagonals(
    w_ptr: tl.tensor,
    first: tl.tensor,
    taps: tl.tensor,
    stride_wk: tl.tensor,
    ROWS: tl.constexpr,
    N: tl.constexpr,
) -> tl.tensor:
    """[ROWS, N] with tap `first + row - column`, or 0, and whether the filter has that tap.

    An address is the sum of one for the row and one for the column. A product for each element
    would take some 15 instructions of 64 bits.
    """
    row, column = first + tl.arange(0, ROWS), tl.arange(0, N)
    tap = row[:, None] - column[None, :]
    inside = tap.to(tl.uint32) < taps.to(tl.uint32)  # a negative number is a large one
    ptrs = (w_ptr + row * stride_wk)[:, None] + (column * -stride_wk)[None, :]
    return tl.load(ptrs, mask=inside, other=0.0), inside


@triton.jit
def toeplitz(
    w_ptr: tl.tensor,
    first: tl.tensor,
    taps: tl.tensor,
    stride_wk: tl.tensor,
    peak: tl.tensor,
    scale: tl.tensor,
    SPAN: tl.constexpr,
    N: tl.constexpr,
    SOFTMAX: tl.constexpr,
    ALIGNED: tl.constexpr,
) -> tl.tensor:
    """The matrix [2 N, N] that has tap `first + r` along its diagonal r = row - column, for r <
    SPAN.
    """
    r = tl.arange(0, 2 * N)[:, None] - tl.arange(0, N)[None, :]
    if ALIGNED:
        w, in_filter = load_diagonals(w_ptr, first, taps, stride_wk, 2 * N, N)
        inside = in_filter & (r >= 0) & (r < SPAN)
        w = tl.where(inside, w, 0.0)
    else:  # of skewed rows: conv of [16, 256, 4099] bf16, 31 taps: 36.2 us, 7 % less than as above
        j = first + r
        inside = (r >= 0) & (r < SPAN) & (j >= 0) & (j < taps)
        w = tl.load(w_ptr + j * stride_wk, mask=inside, other=0.0)
    w = w.to(tl.float32)
    if SOFTMAX:
        w = tl.where(inside, tl.exp(w - peak) * scale, 0.0)
    return w


@triton.jit
def window(
    x_ptrs: tl.tensor,
    start: tl.tensor,
    bounds: Bounds,
    stride_xt: tl.tensor,
    COUNT: tl.constexpr,
    PIECES: tl.constexpr,
    V: tl.constexpr,
    ACC: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """COUNT neighbouring pieces of each row as COUNT * V tensors [PIECES]; 0 outside of the row."""
    values = ()
    for i in tl.static_range(COUNT):
        if (
            ACCESS == INTERIOR
        ):  # one address for each piece: the offsets from it are in the instructions
            x = tl.load((x_ptrs + start)[:, None] + (i * V + tl.arange(0, V))[None, :]).to(ACC)
        else:
            x = load_block(x_ptrs, start + i * V, bounds, stride_xt, V, ACCESS, ACC)
        values = values + unpack(x, PIECES, V)
    return values


@triton.jit
def correlate(
    values: tl.tensor,
    weights: tl.tensor,
    SHIFT: tl.constexpr,
    COUNT: tl.constexpr,
    PIECES: tl.constexpr,
    OWN: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """OWN tensors [PIECES]: number i is the sum over j < COUNT of weights[j] * values[i + j + SHIFT]."""
    totals = ()
    for i in tl.static_range(OWN):
        total = tl.zeros((PIECES,), ACC)
        for j in tl.static_range(COUNT):
            total += weights[j] * values[i + j + SHIFT]
        totals = totals + (total,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
    return totals


@triton.jit
def multiply(x: tl.tensor, w: tl.tensor, acc: tl.tensor, SOFTMAX: tl.constexpr) -> tl.tensor:
    """acc + x @ w.

    The weights of a softmax are multiplied in two parts, because one part would round them to the
    type of x.
    """
    high = w.to(x.dtype)
    acc = tl.dot(x, high, acc)
    if SOFTMAX:
        acc = tl.dot(x, (w - high.to(tl.float32)).to(x.dtype), acc)
    return acc


@triton.jit
def recompute_nan_rows(
    acc: tl.tensor,
    x_ptrs: tl.tensor,
    start: tl.tensor,
    bounds: Bounds,
    stride_xt: tl.tensor,
    w_ptr: tl.tensor,
    taps: tl.tensor,
    padding: tl.tensor,
    stride_wk: tl.tensor,
    peak: tl.tensor,
    scale: tl.tensor,
    BLOCKS: tl.constexpr,
    N: tl.constexpr,
    SOFTMAX: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """`acc`, computed again tap by tap if it holds NaN.

    A dot multiplies elements outside of the filter's reach by the zeros of the Toeplitz matrix. If
    such an element is inf or NaN, the product is NaN, which must not reach the neighbours of that
    element.
    """
    if tl.max((acc != acc).to(tl.int32)) != 0:  # noqa: PLR0124  # so NaN is found
        filters = Filter(w_ptr, stride_wk, peak, scale)
        acc = tap_by_tap(
            x_ptrs, start, bounds, stride_xt, filters, taps, padding, BLOCKS, N, SOFTMAX, ACCESS
        )
    return acc


@triton.jit
def tap_by_tap(
    x_ptrs: tl.tensor,
    start: tl.tensor,
    bounds: Bounds,
    stride_xt: tl.tensor,
    filters: Filter,
    taps: tl.tensor,
    padding: tl.tensor,
    BLOCKS: tl.constexpr,
    N: tl.constexpr,
    SOFTMAX: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """[BLOCKS, N]: the convolution of N positions of each row from `start` on, without a dot."""
    w_ptr, stride_wk, peak, scale = filters
    acc = tl.zeros((BLOCKS, N), tl.float32)
    for j in range(taps):
        w = tl.load(w_ptr + j * stride_wk).to(tl.float32)
        if SOFTMAX:
            w = tl.exp(w - peak) * scale
        acc += w * load_block(
            x_ptrs, start + (j - padding), bounds, stride_xt, N, ACCESS, tl.float32
        )
    return acc


@triton.jit
def tap_products(
    tile: Tile,
    g_ptr: tl.tensor,
    g_strides: Strides,
    x_ptr: tl.tensor,
    x_strides: Strides,
    further: tl.tensor,
    UNIT: tl.constexpr,
    SKEW: tl.constexpr,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDE: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """[BLOCKS, N]: each element of g in a tile times that of x `further` positions on; 0 outside of
    rows.
    """
    place, start, bounds = locate(tile, 0, BLOCKS, N, BLOCKS, WIDE, False, UNIT, SKEW, ACCESS)
    g_ptrs = row_ptrs(g_ptr, place, g_strides, UNIT, SKEW)
    x_ptrs = row_ptrs(x_ptr, place, x_strides, UNIT, SKEW)
    g = load_block(g_ptrs, start, bounds, g_strides.position, N, ACCESS, tl.float32)
    x = load_block(x_ptrs, start + further, bounds, x_strides.position, N, ACCESS, tl.float32)
    return tl.where(in_rows(start, bounds, N, ACCESS), g * x, 0.0)
