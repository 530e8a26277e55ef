"""What the convolution kernels, forward and backward, share: tiles, windows, filters.

Rows of one head share a filter, so a program takes a *tile* of such rows, cut into *pieces* of some
neighbouring elements. Positions are counted along a row; what lies outside of it is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._errors import InvalidInput
from warpcall_kernels._op import TensorLike, dtype_name
from warpcall_kernels._torch import VECTOR_BYTES, Layout

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NARROW = (torch.float16, torch.bfloat16)
OCTET = tl.constexpr(8)  # fp16 or bf16 elements in 16 bytes: windows of a dot start at multiples
SOFTMAX_STEP = 1024  # taps read at once for the normalisation
WASTE = 8  # a tile may hang over the end of its rows by one part in so many

PLAIN = (
    *("rows", "group", "channels", "units", "tiles", "tiles_wide", "taps", "padding", "bands"),
    *("lead_pieces", "lead_octets", "stride_wh", "stride_wk", "stride_bias"),
    *("stride_xb", "stride_xc", "stride_gb", "stride_gc", "parts"),
)  # integers that no variant is compiled for: UNIT says what divides them
UNALIGNED = ("stride_xt", "stride_gt")  # only whether they are there matters


class Tiling(NamedTuple):
    """How the rows of a head are cut: tiles of `wide` pieces of each of some rows."""

    wide: int
    tiles_wide: int
    tiles: int
    big: bool  # more rows than 32 bits count

    @staticmethod
    def of(rows: int, length: int, piece: int, pieces: int) -> Tiling:
        """Tiles of `pieces` pieces, as wide as does not waste much at the end of a row."""
        in_row = -(-length // piece)
        wide = pieces
        while wide > 1 and -(-in_row // wide) * wide * WASTE > in_row * (WASTE + 1):
            wide //= 2
        tiles_wide = -(-in_row // wide)
        return Tiling(wide, tiles_wide, tiles_wide * -(-rows // (pieces // wide)), rows >= 2**31)


def check_filter(
    name: str, x: TensorLike, weight: TensorLike, bias: TensorLike | None, padding_l: int | None
) -> int:
    """The padding, K - 1 unless given.

    Raises:
        InvalidInput: unless these can be convolved; `name` is what x is called there.
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


def step_of(x: Layout) -> int | None:
    """The stride along the last dim, None for 1; an empty or single position has any."""
    return None if x[1][-1] == 1 or x[0][-1] == 1 else x[1][-1]


def common_unit(*tensors: Layout) -> int:
    """The largest power of two, up to 16 bytes of elements, that divides where each row starts.

    And the rows' length: all addresses are multiples of it, and so are the limits of masks.
    """
    itemsize = tensors[0][2].itemsize
    bits = VECTOR_BYTES // itemsize
    for (batches, channels, length), strides, _, address in tensors:
        if length > 1 and strides[2] != 1:
            return 1
        bits |= length | address // itemsize
        bits |= strides[0] if batches > 1 else 0
        bits |= strides[1] if channels > 1 else 0
    return bits & -bits


@triton.jit
def unpack(x: tl.tensor, N: tl.constexpr, V: tl.constexpr) -> tl.tensor:
    """[N, V] -> V tensors [N]; free when the V elements of a row lie in one thread."""
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


@triton.jit
def locate(
    tile: tl.tensor,
    head: tl.tensor,
    rows: tl.tensor,
    group: tl.tensor,
    tiles_wide: tl.tensor,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    BIG: tl.constexpr,
) -> tl.tensor:
    """The pieces of a tile: batch [PIECES], channel, first position in the row, and whether it is one.

    A tile spans WIDE pieces of each of PIECES / WIDE rows; the rows of a head are all its channels
    of all batches.
    """
    piece = tl.arange(0, PIECES)
    high = tile // tiles_wide
    first_row = (high.to(tl.int64) if BIG else high) * (PIECES // WIDE)
    row = first_row + piece // WIDE
    start = ((tile % tiles_wide) * WIDE + piece % WIDE) * PIECE
    return row // group, head * group + row % group, start, row < rows


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
    """Where the filter's first tap is, the step to the next, and the terms of its softmax."""
    peak, scale = tl.full([], 0.0, ACC), tl.full([], 1.0, ACC)
    if SOFTMAX:
        peak, scale = softmax_terms(w_ptr, taps, stride_wk, STEP, ACC)
    if FLIP:
        return w_ptr + (taps - 1) * stride_wk, -stride_wk, peak, scale
    else:  # noqa: RET505
        return w_ptr, stride_wk, peak, scale


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
    """The next COUNT weights as that many scalars."""
    weights = ()
    for j in tl.static_range(COUNT):
        w = tl.load(w_ptr + j * stride_wk).to(ACC)
        if SOFTMAX:
            w = tl.exp(w - peak) * scale
        weights = weights + (w,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
    return weights


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
) -> tl.tensor:
    """The matrix [2 N, N] that has tap `first + r` all along its diagonal r = row - column < SPAN."""
    r = tl.arange(0, 2 * N)[:, None] - tl.arange(0, N)[None, :]
    j = first + r
    inside = (r >= 0) & (r < SPAN) & (j >= 0) & (j < taps)
    w = tl.load(w_ptr + j * stride_wk, mask=inside, other=0.0).to(tl.float32)
    if SOFTMAX:
        w = tl.where(inside, tl.exp(w - peak) * scale, 0.0)
    return w


@triton.jit
def window(
    x_ptrs: tl.tensor,
    start: tl.tensor,
    live: tl.tensor,
    length: tl.tensor,
    stride_xt: tl.tensor,
    COUNT: tl.constexpr,
    PIECES: tl.constexpr,
    V: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """COUNT neighbouring pieces of each row as COUNT * V tensors [PIECES]; 0 outside of the row."""
    values = ()
    for i in tl.static_range(COUNT):
        x = load_block(x_ptrs, start + i * V, live, length, stride_xt, V)
        values = values + unpack(x.to(ACC), PIECES, V)
    return values


@triton.jit
def load_block(
    x_ptrs: tl.tensor,
    start: tl.tensor,
    live: tl.tensor,
    length: tl.tensor,
    stride_xt: tl.tensor,
    N: tl.constexpr,
) -> tl.tensor:
    """[blocks, N]: of each row N elements from `start`; 0 outside of the row.

    `stride_xt` is None where neighbours are neighbours in memory: only so does the compiler know it.
    """
    t = start[:, None] + tl.arange(0, N)[None, :]
    inside = live[:, None] & (t >= 0) & (t < length)
    at = t if stride_xt is None else t.to(tl.int64) * stride_xt
    return tl.load(x_ptrs[:, None] + at, mask=inside, other=0.0)


@triton.jit
def store_block(
    out_ptrs: tl.tensor,
    out: tl.tensor,
    start: tl.tensor,
    live: tl.tensor,
    length: tl.tensor,
    N: tl.constexpr,
) -> None:
    """Round [blocks, N] and write it to contiguous rows."""
    t = start[:, None] + tl.arange(0, N)[None, :]
    out = out.to(out_ptrs.dtype.element_ty)
    tl.store(out_ptrs[:, None] + t, out, mask=live[:, None] & (t < length))


@triton.jit
def correlate(
    values: tl.tensor,
    weights: tl.tensor,
    SHIFT: tl.constexpr,
    COUNT: tl.constexpr,
    PIECES: tl.constexpr,
    V: tl.constexpr,
    ACC: tl.constexpr,
) -> tl.tensor:
    """[PIECES, V]: at i the sum over j < COUNT of weights[j] * values[i + j + SHIFT]."""
    totals = ()
    for i in tl.static_range(V):
        total = tl.zeros((PIECES,), ACC)
        for j in tl.static_range(COUNT):
            total += weights[j] * values[i + j + SHIFT]
        totals = totals + (total,)  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
    return pack(totals, PIECES, V)


@triton.jit
def multiply(x: tl.tensor, w: tl.tensor, acc: tl.tensor, SOFTMAX: tl.constexpr) -> tl.tensor:
    """acc + x @ w; the weights of a softmax in two parts, lest they be rounded to the type of x."""
    high = w.to(x.dtype)
    acc = tl.dot(x, high, acc)
    if SOFTMAX:
        acc = tl.dot(x, (w - high.to(tl.float32)).to(x.dtype), acc)
    return acc


@triton.jit
def without_strangers(
    acc: tl.tensor,
    x_ptrs: tl.tensor,
    start: tl.tensor,
    live: tl.tensor,
    length: tl.tensor,
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
) -> tl.tensor:
    """`acc`, computed anew tap by tap if it holds NaN.

    A dot multiplies what a filter does not reach by the zeros of the Toeplitz matrix: NaN for an
    inf or NaN of x, which must not spread to its neighbours.
    """
    if tl.max((acc != acc).to(tl.int32)) != 0:  # noqa: PLR0124  # so NaN is found
        acc = tl.zeros((BLOCKS, N), tl.float32)
        for j in range(taps):
            w = tl.load(w_ptr + j * stride_wk).to(tl.float32)
            if SOFTMAX:
                w = tl.exp(w - peak) * scale
            x = load_block(x_ptrs, start + (j - padding), live, length, stride_xt, N)
            acc += x.to(tl.float32) * w
    return acc
