"""How the gradients of x and of a bias are computed: which rows a program takes, and the launches."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._softmax import constants
from warpcall_kernels._softmax.bias_backward import (
    OPERANDS,
    add_parts_kernel,
    masked_softmax_bias_backward_kernel,
    totals_kernel,
)
from warpcall_kernels._softmax.rows import held_bytes
from warpcall_kernels._transpose.strides import (
    Dim,
    alignment,
    broadcast_strides,
    contiguous_strides,
    merge,
)
from warpcall_kernels.op.launch import Launch, Layout

G, Y, OUT, ROW, BIAS = range(5)  # the operands along the merged dims
# Rows of x of each row of the bias, whose numbers, with those of a tile behind them, fit into 32 bits.
FEW_ROWS_OF_X = 2**31 - 2**16
ONE = Dim(1, (0,) * (BIAS + 1))


class BiasPlan(NamedTuple):
    """The launches of a call.

    Args:
        totals: on (g, y, totals), for rows that are read twice.
        rows: how many numbers `totals` has.
        main: on (g, y, totals or None, grad_x, sums).
        slots: how many sums each element of the bias has.
        last: on (sums, grad_bias), if there are several; otherwise the sums are the gradient.
    """

    totals: Launch | None
    rows: int
    main: Launch
    slots: int
    last: Launch | None


class Tiles(NamedTuple):
    """The rows that a program takes at a time, the positions, the warps, and blocks of a row."""

    rows: int
    block: int
    warps: int
    blocks: int


def plan(grad: Layout, output: Layout, bias: Layout, scale: float) -> BiasPlan | None:
    """The launches; None if there is nothing to compute."""
    shape, columns, itemsize = output.shape, output.shape[-1], output.dtype.itemsize
    if not math.prod(shape):
        return None
    along_bias = broadcast_strides(bias.shape, contiguous_strides(bias.shape), len(shape))
    strides = (grad.strides, output.strides, contiguous_strides(shape))
    rows = contiguous_strides(shape[:-1])
    merged = merge(shape[:-1], *(s[:-1] for s in strides), rows, along_bias[:-1])
    kept = [dim for dim in merged if dim.strides[BIAS]]
    summed = [dim for dim in merged if not dim.strides[BIAS]]
    by_kept = not merged or bool(merged[-1].strides[BIAS])
    counts = [math.prod(dim.size for dim in dims) for dims in (kept, summed)]
    tiles = choose_tiles(columns, itemsize, counts[0 if by_kept else 1])
    owners = -(-counts[0] // tiles.rows) if by_kept else counts[0]
    steps = counts[1] if by_kept else -(-counts[1] // tiles.rows)
    sum_columns = not along_bias[-1] and columns > 1
    numel = math.prod(bias.shape)
    traffic = 3 * math.prod(shape) * itemsize
    steps_of_part = steps_of_parts(owners * tiles.blocks * tiles.warps, steps, numel, traffic)
    parts = -(-steps // steps_of_part)
    slots = parts * (tiles.blocks if sum_columns else 1)
    acc = tl.float64 if output.dtype == torch.float64 else tl.float32
    align = 1
    if (grad.strides[-1], output.strides[-1]) == (1, 1):
        begins = [grad.address // itemsize, output.address // itemsize]
        align = alignment(
            itemsize, [*begins, columns, *(s for d in merged for s in d.strides[:ROW])]
        )
    shared = {
        "stride_gk": grad.strides[-1],
        "stride_yk": output.strides[-1],
        "columns": columns,
        "ALIGN": align,
        "ACC": acc,
    }
    totals, total_parts = None, 1
    if tiles.blocks > 1:
        totals, total_parts = _totals(merged or [ONE], columns, shared)
    arguments: dict[str, Any] = {
        **shared,
        "scale": float(scale),
        "kept": counts[0],
        "summed": counts[1],
        "steps": steps_of_part,
        "parts": parts,
        "total_parts": total_parts,
        **_dims("kept", kept or [ONE]),
        **_dims("summed", summed or [ONE]),
        "KEPT_DIMS": max(1, len(kept)),
        "SUMMED_DIMS": max(1, len(summed)),
        "BY_KEPT": by_kept,
        "SUM_COLUMNS": sum_columns,
        "LANES": triton.next_power_of_2(total_parts),
        "WIDE": counts[1] >= FEW_ROWS_OF_X,
        "ROWS": tiles.rows,
        "BLOCK": tiles.block,
        "num_warps": tiles.warps,
    }
    grid = (owners * parts, tiles.blocks)
    main = Launch(masked_softmax_bias_backward_kernel, grid, arguments)
    last = None if slots == 1 else _last(slots, numel, acc)
    return BiasPlan(totals, math.prod(shape[:-1]) * total_parts, main, slots, last)


def choose_tiles(columns: int, itemsize: int, count: int) -> Tiles:
    """What a program takes at a time.

    Args:
        count: rows along the dims in which the rows of a tile lie.
    """
    nbytes = held_bytes(columns, itemsize, 2)
    per_warp = constants.BIAS_TILE_BYTES
    if nbytes > constants.HELD_BYTES_BIAS:
        block = constants.BIAS_BLOCK // itemsize
        return Tiles(1, block, constants.BIAS_BLOCK_WARPS, -(-columns // block))
    rows = min(max(1, per_warp // nbytes), triton.next_power_of_2(count))
    warps = max(1, min(constants.MAX_WARPS, nbytes // per_warp))
    return Tiles(rows, triton.next_power_of_2(columns), warps, 1)


def steps_of_parts(warps: int, steps: int, numel: int, traffic: int) -> int:
    """How many tiles of rows a program sums.

    Args:
        warps: of all programs if each sums all tiles.
        steps: tiles of rows that are summed.
        numel: elements of the bias.
        traffic: bytes of the call, of which the parts may be a share.
    """
    wanted = -(-constants.BIAS_WARPS // warps)
    affordable = max(1, int(traffic * constants.BIAS_PARTS_SHARE) // (4 * numel))
    parts = max(1, min(wanted, affordable, -(-steps // constants.BIAS_LEAST_STEPS)))
    return -(-steps // parts)


def _dims(kind: str, dims: list[Dim]) -> dict[str, Any]:
    """The sizes of these dims, and the strides of the operands along them, as arguments."""
    arguments = {f"{kind}_sizes": tuple(dim.size for dim in dims)}
    return arguments | {
        f"{kind}_{name}": tuple(dim.strides[i] for dim in dims) for i, name in enumerate(OPERANDS)
    }


def _totals(dims: list[Dim], columns: int, shared: dict[str, Any]) -> tuple[Launch, int]:
    """The launch that finds the sum of g * y of each row, and in how many parts of a row."""
    block, warps = constants.BIAS_TOTALS
    rows = math.prod(dim.size for dim in dims)
    blocks = -(-columns // block)
    steps = max(1, blocks // max(1, constants.BIAS_TOTALS_PROGRAMS // rows))
    parts = -(-blocks // steps)
    arguments = shared | {
        "parts": parts,
        "sizes": tuple(dim.size for dim in dims),
        "g_strides": tuple(dim.strides[G] for dim in dims),
        "y_strides": tuple(dim.strides[Y] for dim in dims),
        "NDIM": len(dims),
        "steps": steps,
        "BLOCK": block,
        "num_warps": warps,
    }
    return Launch(totals_kernel, (rows * parts,), arguments), parts


def _last(slots: int, numel: int, acc: Any) -> Launch:
    """The launch that adds the parts."""
    block = min(triton.next_power_of_2(numel), constants.BIAS_ADDED)
    at_once = min(triton.next_power_of_2(slots), constants.BIAS_ADDED_TILE // block)
    arguments = {
        "slots": slots,
        "numel": numel,
        "ACC": acc,
        "SLOTS": at_once,
        "BLOCK": block,
        "num_warps": 4,
    }
    return Launch(add_parts_kernel, (-(-numel // block),), arguments)
