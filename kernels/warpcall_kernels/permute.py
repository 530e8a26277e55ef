"""out = x.permute(dims), contiguous: any dtype, any strides, any number of dims.

Before a launch dims are merged and elements widened as far as layout and alignment allow. What is
left is one of three shapes: a plain copy; rows that stay whole (the inner dim is kept) and are
gathered; or a transposition of the input's inner dim with the output's, which goes through tiles:
loaded along the one, turned in shared memory, stored along the other, so that both sides move
16 bytes a thread. Dims too small to fill a tile take a third one into it.
Bytes: 2 * numel * itemsize.
Source: OneFlow, "How to implement a Permute/Transpose op 6x faster than PyTorch" (index width by
size, merged dims, wider movement, tiles through shared memory).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpcall_kernels import _dims
from warpcall_kernels._cases import Case, Layout, Sample, Values
from warpcall_kernels._dims import contiguous_strides, offset
from warpcall_kernels._errors import InvalidInput
from warpcall_kernels._op import Input, Meta, Op, Output, Param, TensorLike
from warpcall_kernels._torch import direct, on_device, register, runs_kernel

WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}  # what is moved, by its size
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32),
    *(torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    *(torch.float8_e8m0fnu, torch.complex64, torch.complex128),
)
MAX_DIMS = 12

# Side of a square tile by size of a word: 64 to 256 bytes along either side.
TILE_SIDE = {1: 128, 2: 64, 4: 64, 8: 32}
TILE_WARPS = {1: 8, 2: 4, 4: 8, 8: 4}
ROWS_BYTES = 16384  # that a program gathers: 4 accesses of 16 bytes in flight a thread
ROWS_WORDS = 4096  # and no more than so many words: each row costs its indices
ROWS_WARPS = 8
PLAIN = ("rows", "row_tiles", "units", "stride_xc", "sizes", "x_strides", "out_strides")
PLAIN_TILE = (
    *("size_o", "size_i", "size_j", "tiles_o", "tiles_i", "tiles_j"),
    *("stride_xo", "stride_xi", "stride_xj", "stride_oo", "stride_oi"),
)  # integers that no variant is compiled for: ALIGN says what divides them


@triton.jit(do_not_specialize=PLAIN)
def _rows_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.int64,
    col_tiles: tl.tensor,
    units: tl.tensor,
    stride_xc: tl.int64,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    NDIM: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    """Gather rows that both sides hold whole; of the output they are the linear index."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    row = pid // col_tiles * ROWS + tl.arange(0, ROWS)
    col = pid % col_tiles * COLS + tl.arange(0, COLS)
    columns = units * ALIGN  # so that the compiler knows what divides it
    inside = (row < rows)[:, None] & (col < columns)[None, :]
    begin = tl.multiple_of(offset(row, sizes, x_strides, NDIM), ALIGN)
    across = col if EVEN else col * stride_xc
    words = tl.load(x_ptr + begin[:, None] + across[None, :], mask=inside)
    tl.store(out_ptr + tl.multiple_of(row * columns, ALIGN)[:, None] + col[None, :], words, inside)


@triton.jit(do_not_specialize=PLAIN_TILE)
def _tile_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    size_o: tl.tensor,
    units_i: tl.tensor,
    units_j: tl.tensor,
    tiles_o: tl.tensor,
    tiles_i: tl.tensor,
    tiles_j: tl.tensor,
    stride_xo: tl.tensor,
    stride_xi: tl.tensor,
    stride_xj: tl.tensor,
    stride_oo: tl.tensor,
    stride_oi: tl.tensor,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN_X: tl.constexpr,
    ALIGN_OUT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
) -> None:
    """Transpose i, the input's inner dim, with j, the output's; o is a third dim in the tile."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    j = pid % tiles_j * BLOCK_J + tl.arange(0, BLOCK_J)
    pid = pid // tiles_j
    i = pid % tiles_i * BLOCK_I + tl.arange(0, BLOCK_I)
    pid = pid // tiles_i
    o = pid % tiles_o * BLOCK_O + tl.arange(0, BLOCK_O)
    rest = pid // tiles_o
    x_ptr += tl.multiple_of(offset(rest, sizes, x_strides, NDIM), ALIGN_X)
    out_ptr += tl.multiple_of(offset(rest, sizes, out_strides, NDIM), ALIGN_OUT)
    # The compiler knows what divides these sizes, and so how wide a masked access may be.
    exist_o, exist_i, exist_j = o < size_o, i < units_i * ALIGN_X, j < units_j * ALIGN_OUT

    across = i if EVEN else i * stride_xi
    x_at = tl.multiple_of(o * stride_xo, ALIGN_X)[:, None, None] + (
        tl.multiple_of(j * stride_xj, ALIGN_X)[None, :, None] + across[None, None, :]
    )
    inside = exist_o[:, None, None] & (exist_j[None, :, None] & exist_i[None, None, :])
    words = tl.load(x_ptr + x_at, mask=inside)
    out_at = tl.multiple_of(o * stride_oo, ALIGN_OUT)[:, None, None] + (
        tl.multiple_of(i * stride_oi, ALIGN_OUT)[None, :, None] + j[None, None, :]
    )
    inside = exist_o[:, None, None] & (exist_i[None, :, None] & exist_j[None, None, :])
    tl.store(out_ptr + out_at, tl.permute(words, (0, 2, 1)), mask=inside)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A launch, but for its pointers; without a kernel, a plain copy.

    Args:
        word: what both pointers point to.
        programs: size of the grid.
    """

    kernel: Any = None
    word: Any = None
    programs: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)


@functools.lru_cache(maxsize=4096)
def _plan(
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    dims: tuple[int, ...],
    itemsize: int,
    address: int,
) -> _Plan:
    """Choose the launch for a layout.

    Args:
        sizes: of x, none of them zero.
        strides: of x, in elements.
        dims: what goes where, normalised.
        address: of x's first element, modulo 16.
    """
    shape = [sizes[d] for d in dims]
    merged = _dims.merge(shape, [strides[d] for d in dims], contiguous_strides(shape))
    merged, word = _widen(merged, itemsize, address)
    if not merged or (len(merged) == 1 and merged[0][1][0] == 1):
        return _Plan()
    spans = (_dims.reach([n for n, _ in merged], [s[k] for _, s in merged]) for k in (0, 1))
    wide = max(spans) >= _dims.INT32_REACH
    i = min(range(len(merged)), key=lambda d: (merged[d][1][0] or math.inf, -d))
    arrange = _rows if i == len(merged) - 1 else functools.partial(_tiles, i=i)
    kernel, programs, arguments = arrange(merged, word, address // word)
    return _Plan(kernel, WORDS[word], programs, {**arguments, "WIDE": wide})


def _widen(merged: list[_dims.Dim], itemsize: int, address: int) -> tuple[list[_dims.Dim], int]:
    """Take pairs of neighbours as one word while they stay neighbours; words of up to 8 bytes."""
    if itemsize == 16:  # two words of 8 bytes, an inner dim that is kept
        doubled: list[_dims.Dim] = [(n, (sx * 2, so * 2)) for n, (sx, so) in merged]
        merged = [*doubled, (2, (1, 1))]
        merged = _dims.merge([n for n, _ in merged], *zip(*(s for _, s in merged), strict=True))
        return merged, 8
    word = itemsize
    while word < 8 and merged and address % (2 * word) == 0:
        *outer, (n, inner) = merged
        if inner != (1, 1) or n % 2 or any(step % 2 for _, steps in outer for step in steps):
            break
        halved: list[_dims.Dim] = [(size, (sx // 2, so // 2)) for size, (sx, so) in outer]
        merged = [*halved, (n // 2, (1, 1))] if n > 2 else halved
        word *= 2
    return merged, word


def _rows(merged: list[_dims.Dim], word: int, begin: int) -> tuple[Any, int, dict[str, Any]]:
    """The launch that gathers rows along the last dim."""
    *outer, (columns, (step, _)) = merged
    outer = outer or [(1, (0, 0))]
    rows = math.prod(n for n, _ in outer)
    align = _dims.alignment(word, [begin, columns, *(s[0] for _, s in outer)]) if step == 1 else 1
    cols = min(triton.next_power_of_2(columns), ROWS_BYTES // word // 4)
    block = min(ROWS_BYTES // word, ROWS_WORDS) // cols
    col_tiles = triton.cdiv(columns, cols)
    return (
        _rows_kernel,
        triton.cdiv(rows, block) * col_tiles,
        {
            "rows": rows,
            "col_tiles": col_tiles,
            "units": columns // align,
            "stride_xc": step,
            "sizes": tuple(n for n, _ in outer),
            "x_strides": tuple(s[0] for _, s in outer),
            "NDIM": len(outer),
            "EVEN": step == 1,
            "ALIGN": align,
            "ROWS": block,
            "COLS": cols,
            "num_warps": ROWS_WARPS,
        },
    )


def _tiles(
    merged: list[_dims.Dim], word: int, begin: int, i: int
) -> tuple[Any, int, dict[str, Any]]:
    """The launch that transposes dim `i` with the last one."""
    *rest, (size_j, (xj, _)) = merged
    size_i, (xi, oi) = rest.pop(i)
    # The third dim is the one that goes on where a row of the tile ends, on either side.
    o = next((d for d, (_, (xo, oo)) in enumerate(rest) if oo == size_j or xo == size_i * xi), -1)
    size_o, (xo, oo) = rest.pop(o) if rest else (1, (0, 0))
    rest = rest or [(1, (0, 0))]

    side = TILE_SIDE[word]
    block_i = min(triton.next_power_of_2(size_i), side)
    block_j = min(triton.next_power_of_2(size_j), side * side // block_i)
    if block_j < side:
        block_i = min(triton.next_power_of_2(size_i), side * side // block_j)
    block_o = min(triton.next_power_of_2(size_o), side * side // (block_i * block_j))
    align_x = _dims.alignment(word, [begin, size_i, xo, xj, *(s[0] for _, s in rest)])
    align_out = _dims.alignment(word, [size_j, oo, oi, *(s[1] for _, s in rest)])
    align_x = align_x if xi == 1 else 1
    tiles_o, tiles_i = triton.cdiv(size_o, block_o), triton.cdiv(size_i, block_i)
    tiles_j = triton.cdiv(size_j, block_j)
    return (
        _tile_kernel,
        tiles_o * tiles_i * tiles_j * math.prod(n for n, _ in rest),
        {
            "size_o": size_o,
            "units_i": size_i // align_x,
            "units_j": size_j // align_out,
            "tiles_o": tiles_o,
            "tiles_i": tiles_i,
            "tiles_j": tiles_j,
            "stride_xo": xo,
            "stride_xi": xi,
            "stride_xj": xj,
            "stride_oo": oo,
            "stride_oi": oi,
            "sizes": tuple(n for n, _ in rest),
            "x_strides": tuple(s[0] for _, s in rest),
            "out_strides": tuple(s[1] for _, s in rest),
            "NDIM": len(rest),
            "EVEN": xi == 1,
            "ALIGN_X": align_x,
            "ALIGN_OUT": align_out,
            "BLOCK_O": block_o,
            "BLOCK_I": block_i,
            "BLOCK_J": block_j,
            "num_warps": TILE_WARPS[word],
        },
    )


def _launch(x: Tensor, dims: Sequence[int]) -> Tensor:
    out = x.new_empty(_infer(x, dims)["out"].shape)
    if not out.numel():
        return out
    if not runs_kernel(x):
        return out.copy_(x.permute(tuple(dims)))
    rank = len(dims)
    plan = _plan(
        tuple(x.shape),
        x.stride(),
        tuple(d % rank for d in dims),
        x.dtype.itemsize,
        x.data_ptr() % _dims.VECTOR_BYTES,
    )
    if plan.kernel is None:
        return out.copy_(x.permute(tuple(dims)))
    with on_device(x):
        plan.kernel[(plan.programs,)](
            triton.reinterpret(x, plan.word), triton.reinterpret(out, plan.word), **plan.arguments
        )
    return out


def _infer(x: TensorLike, dims: Sequence[int]) -> dict[str, Meta]:
    rank = len(x.shape)
    if rank > MAX_DIMS:
        raise InvalidInput("x", f"x must have at most {MAX_DIMS} dims, got {rank}")
    if len(dims) != rank or sorted(d % rank if -rank <= d < rank else rank for d in dims) != [
        *range(rank)
    ]:
        raise InvalidInput(
            "dims",
            f"dims must name each of the {rank} dims of x once, as 0 to {rank - 1} or negative "
            f"from the end, got {tuple(dims)}",
        )
    return {"out": Meta(tuple(x.shape[d] for d in dims), x.dtype)}


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    dims = inputs[1]
    ctx.inverse = sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return permute(grad, ctx.inverse), None


_op = register("permute", _launch, _infer, backward=_backward, setup_context=_setup_context)


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Reorder the dims of a tensor, as a new contiguous one.

    Exact: bits are moved. Needs no device memory but the result.

    Args:
        x: at most 12 dims, any dtype of 1, 2, 4, 8 or 16 bytes, any strides.
        dims: for each dim of the result the dim of x that it is; negatives count from the end.

    Returns:
        Of shape (x.shape[dims[0]], x.shape[dims[1]], ...), contiguous.

    Raises:
        InvalidInput: dims that are no permutation of the dims of x, or too many of them.
    """
    return _launch(x, dims) if direct(x) else _op(x, dims)


def permute_reference(x: Tensor, dims: Sequence[int]) -> Tensor:
    """The same in plain torch, as a view."""
    return x.permute(tuple(dims))


def _bytes_moved(x: TensorLike, dims: Sequence[int]) -> int:
    return 2 * math.prod(x.shape) * x.dtype.itemsize


def _case(
    name: str,
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    layout: Layout = "contiguous",
    values: Values = "normal",
    large: bool = False,
) -> Case:
    sample = Sample(shape, dtype, values, layout=layout)
    return Case(name, {"x": sample}, {"dims": dims}, "large" if large else "small")


CASES = (
    _case("square", (64, 64), (1, 0)),
    _case("odd", (31, 33), (1, 0), torch.bfloat16, values="special"),
    _case("one element", (1, 1, 1), (2, 0, 1), torch.float64),
    _case("no dims", (), (), torch.int16),
    _case("empty", (0, 3), (1, 0)),
    _case("nothing moves", (3, 5), (0, 1), torch.uint8),
    _case("only size 1 moves", (1, 7, 1, 5), (1, 0, 3, 2), torch.int32),
    _case("HWC to CHW", (16, 19, 3), (2, 0, 1), torch.uint8),
    _case("CHW to HWC", (3, 16, 19), (1, 2, 0), torch.uint8),
    _case("rows stay whole", (5, 7, 6, 16), (0, 2, 1, 3), torch.float16),
    _case("rows of 3 stay whole", (9, 11, 3), (1, 0, 2), torch.bool),
    _case("rows of 2 bytes widen", (33, 17, 2), (1, 0, 2), torch.int8),
    _case("small dims", (13, 3, 5), (0, 2, 1), torch.float32),
    _case("six dims reversed", (2, 3, 4, 3, 2, 5), (5, 4, 3, 2, 1, 0), torch.int64),
    _case("twelve dims", (2,) * 12, (11, 0, 10, 1, 9, 2, 8, 3, 7, 4, 6, 5), torch.uint16),
    _case("complex64", (6, 10), (1, 0), torch.complex64),
    _case("complex128", (6, 5, 4), (2, 0, 1), torch.complex128),
    _case("fp8", (20, 33), (1, 0), torch.float8_e4m3fn),
    _case("negative dims", (4, 5, 6), (-1, 0, -2), torch.uint32),
    _case("transposed input", (5, 17, 30), (2, 1, 0), torch.float32, layout="transposed"),
    _case("strided input", (7, 9, 10), (1, 2, 0), torch.float16, layout="strided"),
    _case("NaN, inf and -0.0", (30, 7), (1, 0), torch.float64, values="special"),
    _case("strided rows", (7, 9, 10), (1, 0, 2), torch.int32, layout="strided"),
    _case("offset input", (8, 16, 8), (1, 0, 2), torch.bfloat16, layout="offset"),
    _case("expanded input", (5, 12, 8), (2, 1, 0), torch.float32, layout="expanded"),
    *(
        _case(name, shape, dims, dtype, large=True)
        for name, shape, dims, dtype in (
            ("2D (1,0) [8192, 8192] bf16", (8192, 8192), (1, 0), torch.bfloat16),
            ("2D (1,0) [8192, 8192] fp32", (8192, 8192), (1, 0), torch.float32),
            ("2D (1,0) [24300, 11520] bf16", (24300, 11520), (1, 0), torch.bfloat16),
            ("2D odd (1,0) [4097, 8191] bf16", (4097, 8191), (1, 0), torch.bfloat16),
            ("2D u8 (1,0) [16384, 16384] u8", (16384, 16384), (1, 0), torch.uint8),
            ("BSHD->BHSD [32, 1024, 16, 64] bf16", (32, 1024, 16, 64), (0, 2, 1, 3), torch.bfloat16),
            ("BSHD->BHSD [32, 1024, 16, 64] fp32", (32, 1024, 16, 64), (0, 2, 1, 3), torch.float32),
            ("BHSD->BHDS [32, 16, 1024, 64] bf16", (32, 16, 1024, 64), (0, 1, 3, 2), torch.bfloat16),
            ("NCHW->NHWC [64, 256, 56, 56] bf16", (64, 256, 56, 56), (0, 2, 3, 1), torch.bfloat16),
            ("NCHW->NHWC [64, 256, 56, 56] fp32", (64, 256, 56, 56), (0, 2, 3, 1), torch.float32),
            ("3D (2,1,0) [256, 512, 1024] bf16", (256, 512, 1024), (2, 1, 0), torch.bfloat16),
            ("3D (2,1,0) [256, 512, 1024] fp32", (256, 512, 1024), (2, 1, 0), torch.float32),
            ("3D (1,2,0) [512, 512, 512] fp32", (512, 512, 512), (1, 2, 0), torch.float32),
            ("4D rev (3,2,1,0) [64, 64, 64, 64] fp32", (64,) * 4, (3, 2, 1, 0), torch.float32),
            ("HWC->CHW [8294400, 3] fp32", (8294400, 3), (1, 0), torch.float32),
            ("CHW->HWC [3, 8294400] fp32", (3, 8294400), (1, 0), torch.float32),
            ("narrow (1,0) [1048576, 16] fp32", (1048576, 16), (1, 0), torch.float32),
            ("big >2^31 (1,0) [46400, 46400] bf16", (46400, 46400), (1, 0), torch.bfloat16),
            ("4D (0,3,2,1) bool-ish u8 [64, 56, 56, 256] u8", (64, 56, 56, 256), (0, 3, 2, 1), torch.uint8),
            ("small (0,2,1) [8, 128, 64] fp32 (graph)", (8, 128, 64), (0, 2, 1), torch.float32),
            ("small BSHD [4, 512, 16, 64] fp16 (graph)", (4, 512, 16, 64), (0, 2, 1, 3), torch.float16),
            ("small 512x512 [512, 512] bf16 (graph)", (512, 512), (1, 0), torch.bfloat16),
        )
    ),
)  # fmt: skip

OP = Op(
    name="permute",
    function=permute,
    reference=permute_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(Input("x", DTYPES, "[...]", "what is reordered, of up to 12 dims"),),
    outputs=(Output("out", "x.shape by dims", "the dims of x in the order of `dims`"),),
    equivalent="x.permute(dims).contiguous()",
    cases=CASES,
    params=(
        Param(
            "dims",
            "ints",
            "for each dim of the result the dim of x that it is, such as 1,0; negatives count from "
            "the end",
            required=True,
            minimum=-MAX_DIMS,
            maximum=MAX_DIMS - 1,
        ),
    ),
    differentiable=("x",),
    limits=f"at most {MAX_DIMS} dims",
)
