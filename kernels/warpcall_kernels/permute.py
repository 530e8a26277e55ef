"""out = x.permute(dims), contiguous: any dtype, any strides, any number of dims.

Before a launch, dims are merged and elements are widened to words, as far as the layout and the
alignment allow. What remains is a plain copy, rows that are gathered because the inner dim does not
move, or a transposition of the inner dims of x and of the output. A transposition goes through
tiles: a tile is loaded along the rows of x, transposed in shared memory, and stored along the rows
of the output, so that both sides move 16 bytes for each thread. If dims are too small to fill a
tile, further dims join them. The variants are in `_transpose/plan.py`. Bytes: 2 * numel * itemsize.
Source: OneFlow, "How to implement a Permute/Transpose op 6x faster than PyTorch" (index width by
size, merged dims, wider movement, tiles through shared memory).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels._transpose.constants import Threads, TileSize
from warpcall_kernels._transpose.plan import plan_permute
from warpcall_kernels.op import cases
from warpcall_kernels.op.cases import COMMON_SIZES, SHORT_DTYPES, Case, Sample, Values
from warpcall_kernels.op.declaration import (
    Input,
    Meta,
    Op,
    Output,
    Param,
    TensorLike,
    TunedConstants,
)
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import Launch, Layout, LayoutKey, layout_key, runs_kernel
from warpcall_kernels.op.registration import may_skip_dispatcher, register

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32),
    *(torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    *(torch.float8_e8m0fnu, torch.complex64, torch.complex128),
)
MAX_DIMS = 64  # as many as torch's own operations take


def _launch(x: Tensor, dims: Sequence[int]) -> Tensor:
    dims = tuple(dims)
    shape, launch = _plan(layout_key(x), dims)
    out = x.new_empty(shape)
    if launch is None or not runs_kernel(x):
        return out.copy_(x.permute(dims))
    launch(x, out)
    return out


@functools.lru_cache(maxsize=4096)
def _plan(x: LayoutKey, dims: tuple[int, ...]) -> tuple[tuple[int, ...], Launch | None]:
    """The shape of the result, and the launch, or None for a plain copy."""
    sizes, strides, dtype, address = x
    out = _infer(Layout(*x).meta, dims)["out"]
    if not out.nbytes:
        return out.shape, None
    rank = len(dims)
    return out.shape, plan_permute(
        sizes, strides, [d % rank for d in dims], dtype.itemsize, address
    )


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
        x: at most 64 dims, any dtype of 1, 2, 4, 8 or 16 bytes, any strides.
        dims: for each dim of the result the dim of x that it is; negatives count from the end.

    Returns:
        Of shape (x.shape[dims[0]], x.shape[dims[1]], ...), contiguous.

    Raises:
        InvalidInput: dims that are no permutation of the dims of x, or too many of them.
    """
    return _launch(x, dims) if may_skip_dispatcher(x) else _op(x, dims)


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
    layout: cases.SampleLayout = "contiguous",
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
    _case("tiny matrices", (301, 4, 4), (0, 2, 1), torch.float32),
    _case("tiny matrices of bytes", (199, 16, 4), (0, 2, 1), torch.uint8, layout="offset"),
    _case("tiny odd matrices", (303, 3, 3), (0, 2, 1), torch.float32),
    _case("pairs to halves", (2, 21, 5, 64, 2), (0, 1, 2, 4, 3), torch.bfloat16),
    _case("depth to space", (40, 5, 2, 2, 8, 8), (0, 1, 4, 2, 5, 3), torch.float16),
    _case("space to depth", (40, 5, 8, 2, 8, 2), (0, 1, 3, 5, 2, 4), torch.float16),
    _case("tiny matrices of columns", (4, 4, 501), (2, 1, 0), torch.float32, layout="transposed"),
    _case("six dims reversed", (2, 3, 4, 3, 2, 5), (5, 4, 3, 2, 1, 0), torch.int64),
    _case("twelve dims", (2,) * 12, (11, 0, 10, 1, 9, 2, 8, 3, 7, 4, 6, 5), torch.uint16),
    _case("thirteen qubits", (2,) * 13, (5, 12, 3, 8, 0, 10, 6, 1, 11, 4, 9, 2, 7), torch.complex64),
    _case("dims of size 1", (1, 3, *(1,) * 60, 5, 1), (*range(63, -1, -1),), torch.int16),
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
            ("HWC->CHW [256, 224, 224, 3] u8", (256, 224, 224, 3), (0, 3, 1, 2), torch.uint8),
            ("HWC->CHW [256, 225, 225, 3] u8", (256, 225, 225, 3), (0, 3, 1, 2), torch.uint8),
            ("odd rows (1,0,2) [16637, 137, 5] fp32", (16637, 137, 5), (1, 0, 2), torch.float32),
            ("narrow (1,0) [1048576, 16] fp32", (1048576, 16), (1, 0), torch.float32),
            ("big >2^31 (1,0) [46400, 46400] bf16", (46400, 46400), (1, 0), torch.bfloat16),
            ("4D (0,3,2,1) bool-ish u8 [64, 56, 56, 256] u8", (64, 56, 56, 256), (0, 3, 2, 1), torch.uint8),
            ("small (0,2,1) [8, 128, 64] fp32 (graph)", (8, 128, 64), (0, 2, 1), torch.float32),
            ("small BSHD [4, 512, 16, 64] fp16 (graph)", (4, 512, 16, 64), (0, 2, 1, 3), torch.float16),
            ("small 512x512 [512, 512] bf16 (graph)", (512, 512), (1, 0), torch.bfloat16),
        )
    ),
)  # fmt: skip

COMMON = (
    *(
        _case("matrix", shape, (1, 0), dtype)
        for shape in itertools.product(COMMON_SIZES, repeat=2)
        for dtype in (torch.float32, torch.uint8)
    ),
    *(
        _case("three dims", shape, dims)
        for shape in itertools.product((16, 64, 512), repeat=3)
        for dims in itertools.permutations(range(3))
    ),
    *(
        _case(
            "image", (*batch, *shape), (*range(len(batch)), *(d + len(batch) for d in dims)), dtype
        )
        for batch in ((), (16,))
        for side in (32, 192, 224, 512)
        for shape, dims in (((side, side, 3), (2, 0, 1)), ((3, side, side), (1, 2, 0)))
        for dtype in (torch.float32, torch.uint8)
    ),
    *(
        _case("heads", (8, length, heads, size), (0, 2, 1, 3))
        for length in (128, 1000, 1024)
        for heads in (8, 12, 16)
        for size in (32, 64, 128)
    ),
)

# Shapes that no kernel was tuned for.
SWEEP = tuple(
    _case(f"{dims} {list(shape)} {SHORT_DTYPES[dtype]}".replace(" ", "", 2), shape, dims, dtype, large=True)
    for shape, dims, dtype in (
        ((7919, 7907), (1, 0), torch.float32),  # primes
        ((5003, 4999), (1, 0), torch.uint8),
        ((3001, 2003), (1, 0), torch.float64),
        ((1 << 24, 1), (1, 0), torch.float32),  # inner dims of 1, 2, 3, 5, 16
        ((1 << 23, 2), (1, 0), torch.bfloat16),
        ((5_000_011, 3), (1, 0), torch.uint8),
        ((3_000_017, 5), (1, 0), torch.float32),
        ((1 << 21, 16), (1, 0), torch.bfloat16),
        ((3, 1080, 1920, 8), (3, 0, 1, 2), torch.uint8),
        ((127, 131, 137, 5), (2, 0, 1, 3), torch.float32),
        ((31, 37, 41, 43, 7), (4, 2, 0, 3, 1), torch.float16),
        ((16,) * 6, (5, 3, 1, 4, 2, 0), torch.float16),
        ((8,) * 8, (7, 0, 6, 1, 5, 2, 4, 3), torch.bfloat16),  # rank 8
        ((12, 6, 10, 8, 9, 7, 11, 5), (0, 2, 1, 4, 3, 6, 5, 7), torch.float32),
        ((4096, 4096), (1, 0), torch.complex64),
    )
)  # fmt: skip

_CANDIDATES = [
    (TileSize(i, j, warps),)
    for i, j, warps in (
        (32, 16, 2),
        (32, 32, 4),
        (32, 64, 4),
        (64, 64, 4),
        (64, 64, 8),
        (64, 128, 8),
        (64, 256, 8),
        (128, 128, 8),
    )
]
_THREADS = [
    (Threads(*shape, most),) for shape in ((8, 32), (16, 16), (16, 32)) for most in (None, 64)
]
TUNING = tuple(
    TunedConstants("_transpose.constants", (name,), candidates, decisive)
    for name, candidates, decisive in (
        ("TILES[2]", _CANDIDATES, ("2D (1,0) [8192, 8192] bf16", "BHSD", "3D (2,1,0) [256, 512, 1024] bf16")),
        ("TILES_FEW_WORDS[2]", _CANDIDATES, ("2D (1,0) [24300",)),
        ("TILES_ONE_WORD[2]", _CANDIDATES, ("(4,2,0, 3, 1)",)),
        ("THREADS[2]", _THREADS, ("2D odd",)),
        ("TILES_SMALL[2]", _CANDIDATES, ("small 512",)),
        ("TILES_SMALL[4]", _CANDIDATES, ("small (0,2,1)",)),
        ("TILES[4]", _CANDIDATES, ("2D (1,0) [8192, 8192] fp32", "NCHW->NHWC [64, 256, 56, 56] fp32")),
        ("TILES[1]", _CANDIDATES, ("2D u8", "4D (0,3,2,1)")),
    )
)  # fmt: skip

OP = Op(
    name="permute",
    function=permute,
    reference=permute_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(Input("x", DTYPES, "[...]", f"what is reordered, of up to {MAX_DIMS} dims"),),
    outputs=(Output("out", "x.shape by dims", "the dims of x in the order of `dims`"),),
    equivalent="x.permute(dims).contiguous()",
    cases=CASES,
    common=COMMON,
    sweep=SWEEP,
    tuning=TUNING,
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
