"""How the kernels of the variant "long" are launched: a program for each row, or several of few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import triton

from warpcall_kernels._softmax import constants
from warpcall_kernels._softmax.forward_long import BOTH, RESULTS, SUMS
from warpcall_kernels._softmax.rows import RowLayout, Rows, Tile, Variant
from warpcall_kernels.op.launch import Launch

# The arguments of a launch that does both passes, for whole rows.
LONG_ROWS: dict[str, Any] = {"parts": 1, "step": 0, "PASS": BOTH.value, "LANES": 1}


class LongParts(NamedTuple):
    """How few rows are shared by programs.

    Args:
        tile: what a program takes at a time.
        arguments: of both launches; the pass comes on top.
    """

    tile: Tile
    arguments: dict[str, Any]


def parts_of_long(layout: RowLayout) -> LongParts | None:
    """The parts of few long rows; None if there are enough rows, or these are too short."""
    tile = Tile(1, *constants.LONG_PART[layout.itemsize])
    rows = layout.rows.total
    blocks = -(-layout.whole // tile.block)
    if rows > constants.FEW_LONG_ROWS[layout.itemsize] or blocks < constants.LEAST_LONG_PARTS:
        return None
    of_part = -(-blocks // max(1, constants.LONG_PROGRAMS // rows))
    parts = -(-blocks // of_part)
    arguments = {
        "parts": parts,
        "step": of_part * tile.block,
        "LANES": triton.next_power_of_2(parts),
    }
    return LongParts(tile, arguments)


def long_launch(
    kernel: Any,
    rows: Rows,
    arguments: Mapping[str, Any],
    types: tuple[Any, ...],
    words_of_part: int,
) -> Launch:
    """The launch for all rows, with the one that follows it if rows have several parts.

    Args:
        types: the element types of the tensors, of which the last one has what is known of each part.
        words_of_part: how many numbers these are.
    """
    parts = arguments["parts"]
    blocks, *outer = rows.grid(1)
    grid = (blocks * parts, *outer)
    if parts == 1:
        return Launch(kernel, grid, {**arguments, "stats_ptr": None}, types[:-1], Variant.LONG)
    words = rows.total * parts * words_of_part
    results = Launch(kernel, grid, {**arguments, "PASS": RESULTS.value}, types, Variant.LONG)
    sums = {**arguments, "PASS": SUMS.value}
    return Launch(kernel, grid, sums, types, Variant.LONG, words, then=results)
