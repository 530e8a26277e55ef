"""What masked softmax and its gradient share: which rows a program takes, and how far it reads.

The dims before the last are rows. They are merged as far as the strides of all operands allow, and
one of the merged dims is cut into tiles of rows; at most two others remain, and a program's place
in them is worked out once, in scalars. Broadcast operands have a stride of zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpcall_kernels._transpose.strides import merge
from warpcall_kernels.op.declaration import TensorLike, dtype_name
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import VECTOR_BYTES

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LENGTHS = (torch.int32, torch.int64)

# Bytes of a row, of all operands held, of which more is too much for a block's registers where they are widened.
LONG_BYTES = 65536
SKEWED_ALIGN = 4  # bytes; rows that begin at multiples of more do well as they are
# Bytes of rows that a warp takes, 4 loads of 16 a thread; of rows that then take more than MOST_WARPS, twice as
# many. Forward, bf16, on an H200: [8, 16, 2048, 2048] 506 us, with twice as many bytes 562; [8, 16, 1024, 1024]
# with a full mask 159 against 196; [4096, 32768] 178 against 166. Backward of 2048: 731; held by one warp 880.
TILE_BYTES = 2048
MOST_WARPS = 16

OUTER = 2  # merged dims that a program is placed in besides the one cut into tiles
MAX_GRID_Y = 65535  # CUDA's limit on the second and third axis of a grid
MIN_SHARED = 4  # rows that must share a mask row for its dim to be the one cut into tiles
PLAIN = (
    *("columns", "outer", "count", "diagonal"),
    *("x_strides", "mask_strides", "lengths_strides", "q_strides", "out_strides"),
)  # integers that no variant is compiled for: the kernels are told what divides them
UNALIGNED = ("inner", "stride_xk", "stride_mk")  # only whether they are 1 matters
MAX_COLUMN_STRIDE = 8  # elements; a wider one fetches a 32-byte sector for each, a copy costs less


@dataclass(frozen=True, slots=True)
class Rows:
    """How a launch walks the rows of its operands.

    Args:
        count: rows along the dim that is cut into tiles.
        inner: size of the inner of the two other dims.
        outer: product of the sizes of both.
        strides: for each operand, in elements, along (outer dim, inner dim, tile dim).
        wide: an offset within a tile may not fit 32 bits.
    """

    count: int
    inner: int
    outer: int
    strides: tuple[tuple[int, int, int], ...]

    def grid(self, rows: int) -> tuple[int, int, int]:
        """Tiles of `rows` rows by the places in the other dims, split where CUDA needs it."""
        z = triton.cdiv(self.outer, MAX_GRID_Y)  # first, so that fewer than z programs are idle
        return triton.cdiv(self.count, rows), triton.cdiv(self.outer, z), z


class Tile(NamedTuple):
    """What a program takes: some short rows, one row, or (`long`) one row a block at a time."""

    rows: int
    block: int
    warps: int
    long: bool

    @staticmethod
    def of(
        columns: int,
        itemsize: int,
        count: int,
        long: tuple[int, int],
        most: int = LONG_BYTES,
        held: int = 1,
    ) -> Tile:
        """The tile for `count` rows of so many positions, of which `held` operands are held.

        Of a row that takes more than `most` bytes, `long` positions are taken at a time, by so many warps.
        """
        block = triton.next_power_of_2(columns)
        nbytes = block * itemsize * held
        if nbytes > most:
            return Tile(1, *long, True)
        rows = min(max(1, TILE_BYTES // nbytes), triton.next_power_of_2(count))
        warps = max(1, min(MOST_WARPS, nbytes // TILE_BYTES), nbytes // (2 * TILE_BYTES))
        return Tile(rows, block, warps, False)


def plan_rows(
    sizes: Sequence[int], strides: Sequence[Sequence[int]], shared: int | None
) -> Rows | None:
    """Merge dims and choose the one to cut into tiles.

    Args:
        sizes: of the row dims, none of them zero.
        strides: of each operand, along those dims.
        shared: the operand whose rows are worth loading once for several others, or None.

    Returns:
        The plan, or None when more than three dims remain.
    """
    merged = merge(sizes, *strides)
    if len(merged) > OUTER + 1:
        return None
    tiled = _tile_dim(merged, shared)
    last = merged.pop(tiled) if merged else (1, (0,) * len(strides))
    nothing = (1, (0,) * len(strides))
    outer, inner = [nothing] * (OUTER - len(merged)) + merged
    return Rows(
        count=last[0],
        inner=inner[0],
        outer=outer[0] * inner[0],
        strides=tuple(zip(outer[1], inner[1], last[1], strict=True)),
    )


def _tile_dim(merged: Sequence[tuple[int, tuple[int, ...]]], shared: int | None) -> int:
    """The innermost dim along which the shared operand repeats, or else the longest."""
    for i in reversed(range(len(merged))):
        if shared is not None and merged[i][1][shared] == 0 and merged[i][0] >= MIN_SHARED:
            return i
    return max(range(len(merged)), key=lambda i: (merged[i][0], i), default=0)


def row_index_strides(rank: int) -> tuple[int, ...]:
    """Strides of the "operand" that holds each row's index q along the last row dim."""
    return (0,) * (rank - 1) + (1,)


def reach(rows: Rows, tile: Tile, columns: int, column_strides: Sequence[int]) -> int:
    """A bound, in elements, on the offsets that a program adds to its first row of any operand.

    It counts whole blocks, because positions past the end of a row are numbered before they are
    left out, and a step of at least 1, because the positions themselves are such numbers.
    """
    steps = max(strides[-1] for strides in rows.strides)
    numbered = -(-columns // tile.block) * tile.block
    return tile.rows * steps + numbered * max(1, *column_strides)


def has_skewed_rows(
    columns: int,
    itemsize: int,
    align: int,
    least: int,
    operands: Sequence[Sequence[int]],
    out: Sequence[int],
    column_strides: Sequence[int],
    addresses: Sequence[int],
) -> bool:
    """Whether rows that begin anywhere have whole, aligned groups of 16 bytes at the same positions.

    Args:
        columns, itemsize: of a row, and of a position of it.
        align: positions; what divides where rows begin.
        least: bytes of a row from which on its ends are worth their instructions.
        operands, out: strides of what is read and of the result, as `Rows` has them.
        column_strides, addresses: of what is read; the result lies at a multiple of 16 bytes.
    """
    group = VECTOR_BYTES // itemsize
    return (
        align * itemsize <= SKEWED_ALIGN
        and columns * itemsize >= max(least, VECTOR_BYTES)
        and all(stride == 1 for stride in column_strides)
        and not any(addresses)
        and congruent(operands, out, group)
    )


def congruent(operands: Sequence[Sequence[int]], out: Sequence[int], group: int) -> bool:
    """Whether rows of all operands begin at the same places within groups of so many positions."""
    return all((a - b) % group == 0 for s in operands for a, b in zip(s, out, strict=True))


def check_rows(name: str, x: TensorLike, causal: bool) -> None:
    """Raise InvalidInput unless `x` has rows to take a softmax of."""
    check_dtype(name, x, FLOATS)
    if len(x.shape) < 1:
        raise InvalidInput(name, f"{name} must have at least 1 dim, [..., K], got shape ()")
    if causal and len(x.shape) < 2:
        raise InvalidInput(
            "causal",
            f"causal needs {name} to have at least 2 dims, [..., Q, K], got {tuple(x.shape)}",
        )


def check_lengths(lengths: TensorLike, shape: Sequence[int]) -> None:
    """Raise InvalidInput unless there is one length for each row of a tensor of this shape."""
    check_dtype("lengths", lengths, LENGTHS)
    check_broadcast("lengths", lengths, shape[:-1], "the shape of the rows")


def check_broadcast(name: str, t: TensorLike, shape: Sequence[int], whose: str) -> None:
    """Raise InvalidInput unless `t` can be broadcast to `shape`."""
    ours, theirs = tuple(t.shape), tuple(shape)
    fits = len(ours) <= len(theirs) and all(
        ours[-i] in (1, theirs[-i]) for i in range(1, len(ours) + 1)
    )
    if not fits:
        raise InvalidInput(name, f"{name} must be broadcastable to {theirs}, {whose}, got {ours}")


def check_dtype(name: str, t: TensorLike, allowed: Sequence[torch.dtype]) -> None:
    """Raise InvalidInput unless `t` has one of the allowed dtypes."""
    if t.dtype not in allowed:
        names = ", ".join(map(dtype_name, allowed))
        raise InvalidInput(name, f"{name} must be one of {names}, got {dtype_name(t.dtype)}")


def check_scale(scale: float) -> None:
    """Raise InvalidInput unless `scale` is finite."""
    if not math.isfinite(scale):
        raise InvalidInput("scale", f"scale must be finite, got {scale}")


def beyond_prefix(
    shape: Sequence[int], lengths: Tensor | None, causal: bool, device: torch.device
) -> Tensor | None:
    """The positions that lengths and causality mask, broadcastable to `shape`; None if no such."""
    k = torch.arange(shape[-1], device=device)
    beyond = None
    if lengths is not None:
        beyond = k >= lengths.unsqueeze(-1)
    if causal:
        q = torch.arange(shape[-2], device=device)
        after = k > q.unsqueeze(-1) + (shape[-1] - shape[-2])
        beyond = after if beyond is None else beyond | after
    return beyond


def prefix_elements(shape: Sequence[int], lengths: TensorLike | None, causal: bool) -> int:
    """Elements of a tensor of this shape that are not beyond its rows' prefixes.

    Exact where `lengths` is a tensor; from a mere description of it, the upper bound.
    """
    *rows, columns = shape
    limits = torch.tensor(columns)
    if isinstance(lengths, Tensor):
        limits = lengths.long().clamp(0, columns).cpu()
    if causal:
        q = torch.arange(rows[-1])
        limits = torch.minimum(limits, (q + 1 + columns - rows[-1]).clamp(0, columns))
    return int(limits.sum()) * (math.prod(rows) // max(1, limits.numel()))


@triton.jit
def program_rows(
    ROWS: tl.constexpr,
    TAKEN: tl.constexpr,
    outer: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    WIDE: tl.constexpr,
) -> tl.tensor:
    """Where this program is: (outer index, inner index, first row), all 64-bit; its rows; which exist.

    Programs are TAKEN rows apart. Places and rows past the end stand for the last one, so that no load
    needs a mask along them. `outer` and `count` arrive with 64 bits where they need them (2^31 rows of
    one position are but 4 GiB), and what is counted towards them is as wide.
    """
    index = tl.program_id(2).to(outer.dtype) * tl.num_programs(1) + tl.program_id(1)
    index = tl.minimum(index, outer - 1)
    first = tl.program_id(0).to(count.dtype) * TAKEN
    rows = tl.arange(0, ROWS)
    exist = (rows < count - first)[:, None]
    rows = tl.minimum(rows, count - first - 1)
    if WIDE:
        rows = rows.to(tl.int64)
    at = ((index // inner).to(tl.int64), (index % inner).to(tl.int64), first.to(tl.int64))
    return at, rows, exist


@triton.jit
def row_offset(at: tl.tensor, strides: tl.tensor, ALIGN: tl.constexpr) -> tl.tensor:
    """The offset of a place, in elements, 64-bit, a multiple of ALIGN."""
    return tl.multiple_of(at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2], ALIGN)


@triton.jit
def unaligned_prefix(
    at: tl.tensor, rows: tl.tensor, strides: tl.tensor, GROUP: tl.constexpr
) -> tl.tensor:
    """How many positions of each row lie before its first whole, aligned group."""
    begin = row_offset(at, strides, 1) + rows * strides[2]
    return ((GROUP - begin % GROUP) % GROUP).to(rows.dtype)


@triton.jit
def row_starts(
    at: tl.tensor,
    rows: tl.tensor,
    strides: tl.tensor,
    shift: tl.tensor,
    SKEWED: tl.constexpr,
    ALIGN: tl.constexpr,
) -> tl.tensor:
    """Where the rows begin, plus `shift`: an offset for all of them, 64-bit, and one for each.

    Both are multiples of ALIGN. Without SKEWED the rows themselves begin at such, and nothing is added.
    """
    if SKEWED:
        first = row_offset(at, strides, 1)
        begin = first // ALIGN * ALIGN
        steps = (first - begin).to(rows.dtype) + rows * strides[2] + shift
    else:
        begin = row_offset(at, strides, ALIGN)
        steps = rows * strides[2]
    return begin, tl.multiple_of(steps, ALIGN)[:, None]


@triton.jit
def row_start(starts: tl.tensor, ALIGN: tl.constexpr) -> tl.tensor:
    """Where a single row begins, of what `row_starts` gave."""
    return tl.multiple_of(starts[0] + tl.max(tl.max(starts[1], axis=1), axis=0), ALIGN)


@triton.jit
def broadcast_row_stat(reduced: tl.tensor, SKEWED: tl.constexpr) -> tl.tensor:
    """What a reduction left of each row, to be spread over it; with SKEWED, of a single row, a scalar."""
    each = reduced[:, None]
    if SKEWED and reduced.shape[0] == 1:
        each = tl.max(reduced, axis=0)  # a scalar ties no layouts of registers together
    return each


@triton.jit
def pointers(ptr: tl.tensor, at: tl.tensor, cols: tl.tensor, SKEWED: tl.constexpr) -> tl.tensor:
    """Pointers to positions of rows that begin at `at`; what is summed first is for the compiler.

    With SKEWED it is rows of 4,099 in 56 registers and not in 128; without, 165 us for [4096, 32768]
    bf16 on an H200 and not 172.
    """
    if SKEWED:
        return (ptr + at) + cols
    return ptr + (at + cols)


@triton.jit
def end_columns(
    head: tl.tensor, whole: tl.tensor, columns: tl.tensor, GROUP: tl.constexpr
) -> tl.tensor:
    """The positions before and after the `whole` ones of each row, all counted from its `head`.

    Lanes without a position get `columns`. They run backwards, so that the compiler sees nothing
    worth a wide access and gives each thread one of them.
    """
    lane = ((2 * GROUP - 1) - tl.arange(0, 2 * GROUP))[None, :].to(head.dtype)
    before = tl.where(lane < head, lane - head, columns)
    return tl.where(lane < GROUP, before, whole + (lane - GROUP))


@triton.jit
def round_up(number: tl.tensor, GROUP: tl.constexpr) -> tl.tensor:
    """The next multiple of GROUP; the compiler knows that it is one."""
    return (number + (GROUP - 1)) // GROUP * GROUP


@triton.jit
def row_limits(
    lengths_ptr: tl.tensor,
    at: tl.tensor,
    lengths_strides: tl.tensor,
    q_strides: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    diagonal: tl.tensor,
    CAUSAL: tl.constexpr,
) -> tl.tensor:
    """How many leading positions of each row lengths and causality leave; `diagonal` is K - Q + 1."""
    limit = rows * 0 + columns
    if lengths_ptr is not None:
        steps = rows.to(tl.int64) * lengths_strides[2]
        length = tl.load(lengths_ptr + row_offset(at, lengths_strides, 1) + steps)
        limit = tl.minimum(tl.maximum(length, 0), columns).to(limit.dtype)
    if CAUSAL:
        q = row_offset(at, q_strides, 1) + rows.to(tl.int64) * q_strides[2]
        limit = tl.minimum(limit, tl.maximum(q + diagonal, 0)).to(limit.dtype)
    return limit
