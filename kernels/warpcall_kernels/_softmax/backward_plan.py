"""The choice of a variant for the rows of a backward call, and the launch of its kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from warpcall_kernels._softmax import constants
from warpcall_kernels._softmax.backward import (
    masked_softmax_backward_kernel,
    masked_softmax_backward_long_kernel,
)
from warpcall_kernels._softmax.backward_short import masked_softmax_backward_short_kernel
from warpcall_kernels._softmax.backward_split import masked_softmax_backward_split_kernel
from warpcall_kernels._softmax.long_rows import LONG_ROWS, long_launch, parts_of_long
from warpcall_kernels._softmax.rows import (
    RowLayout,
    Tile,
    Variant,
    beside_tile,
    held_bytes,
    held_tile,
    plan_rows,
)
from warpcall_kernels._softmax.short_rows import is_run, plan_run
from warpcall_kernels._transpose.strides import alignment, contiguous_strides
from warpcall_kernels.op.launch import Launch, Layout

G, Y, OUT = range(3)  # the operands, as `Rows.strides` has them
OPERANDS = 2  # of a row that are held: the gradient of the output, and the output


KERNELS = {
    Variant.TILE: masked_softmax_backward_kernel,
    Variant.SHORT: masked_softmax_backward_short_kernel,
    Variant.LONG: masked_softmax_backward_long_kernel,
    Variant.SPLIT: masked_softmax_backward_split_kernel,
}


def describe(grad: Layout, output: Layout) -> RowLayout | None:
    """The rows of a call, or None if their strides fit no plan."""
    shape, columns, itemsize = output.shape, output.shape[-1], output.dtype.itemsize
    along = (grad.strides[:-1], output.strides[:-1], contiguous_strides(shape)[:-1])
    column_strides = (grad.strides[-1], output.strides[-1])
    beside = [i for i, far in enumerate(are_far(column_strides, columns)) if far]
    rows = plan_rows(shape[:-1], along, None, columns * itemsize, beside)
    if rows is None:
        return None
    addresses = (grad.address, output.address)
    align = 1
    if column_strides == (1, 1):
        begins = [address // itemsize for address in addresses]
        steps = [step for strides in rows.strides for step in strides]
        align = alignment(itemsize, [*begins, columns, *steps])
    operands = (rows.strides[:OUT], rows.strides[OUT], column_strides, addresses)
    layout = RowLayout(rows, columns, itemsize, align, *operands)
    if beside and tile_of_far(layout) is None:
        return None
    return layout.skew(
        constants.SKEWED_BYTES_BACKWARD, most_held(itemsize, skewed=False) // OPERANDS
    )


def are_far(column_strides: Sequence[int], columns: int) -> list[bool]:
    """Whether the positions of a row of each operand lie far apart."""
    return [stride > constants.MAX_COLUMN_STRIDE and columns > 1 for stride in column_strides]


def tile_of_far(layout: RowLayout) -> Tile | None:
    """The tile of rows that lie side by side; None if there are none, or if they are copied first."""
    far = are_far(layout.column_strides, layout.columns)
    if not any(far):
        return None
    return beside_tile(layout.columns, layout.itemsize, layout.rows, all_so=all(far))


def split_tile(layout: RowLayout) -> Tile:
    """The part of a row that a program of the variant "split" holds."""
    return Tile(1, *constants.SPLIT[layout.itemsize])


def parts_of(layout: RowLayout) -> int:
    """How many programs share a row of the variant "split"."""
    return max(1, -(-layout.whole // split_tile(layout).block))


def most_parts(layout: RowLayout) -> int:
    """The most parts of a row: as many as a program has threads, so that each reads one word.

    128 programs run at the same time on GPUs of 16 multiprocessors and more.
    """
    return 32 * split_tile(layout).warps


def fits_split(layout: RowLayout) -> bool:
    """Whether a row is read by accesses of 16 bytes, is long, and has few enough parts."""
    if layout.itemsize not in constants.SPLIT or layout.column_strides != (1, 1):
        return False
    long = held_bytes(layout.whole, layout.itemsize) > constants.SPLIT_BYTES[layout.itemsize]
    return long and layout.access == layout.group and parts_of(layout) <= most_parts(layout)


def tries() -> int:
    """How often a program looks for the words of other parts before it makes them itself.

    In the interpreter programs run one after another, so that waiting is in vain.
    """
    return 0 if triton.knobs.runtime.interpret else constants.SPLIT_TRIES


def most_held(itemsize: int, skewed: bool) -> int:
    """Bytes of a row of both operands that a tile holds."""
    narrow = skewed or itemsize == 2
    return constants.HELD_BYTES if narrow else constants.HELD_BYTES_BACKWARD


def choose(layout: RowLayout) -> Variant:
    """The variant that is fastest for these rows; the table of variants says why."""
    columns, itemsize = layout.columns, layout.itemsize
    if any(are_far(layout.column_strides, columns)):
        return Variant.TILE
    odd = columns % 2 == 1
    if odd and columns * itemsize in constants.SHORT_BYTES_BACKWARD[itemsize] and is_run(layout):
        return Variant.SHORT
    most = most_held(itemsize, layout.skewed)
    held = held_bytes(layout.whole, itemsize, OPERANDS) <= most
    if fits_split(layout) and not (held and layout.rows.total <= constants.FEW_ROWS):
        return Variant.SPLIT
    return Variant.TILE if held else Variant.LONG


def arguments(variant: Variant, layout: RowLayout) -> tuple[Tile, dict[str, Any]]:
    """The tile of a program, and the arguments that only the kernel of this variant has."""
    acc = tl.float64 if layout.itemsize == 8 else tl.float32
    if variant is Variant.SHORT:
        run = plan_run(layout)
        own = {"ACC": acc, **run.constants(layout)}
        return Tile(own["TAKEN"], own["BLOCK"], run.warps), own
    own = {"SKEWED": layout.skewed, "ALIGN": layout.access}
    if variant is Variant.SPLIT:
        tile = split_tile(layout)
        parts = parts_of(layout)
        return tile, own | {
            "BLOCK": tile.block,
            "parts": parts,
            "WHOLE": parts == 1,
            "LANES": most_parts(layout),
            "tries": tries(),
            "zero": 0,
            "maxnreg": constants.SPLIT_REGISTERS,
        }
    g_stride, y_stride = layout.column_strides
    own |= {"stride_gk": g_stride, "stride_yk": y_stride, "ACC": acc}
    if variant is Variant.LONG:
        longer = layout.columns * layout.itemsize >= constants.LONGER_BYTES
        nbytes, warps = constants.LONGER_STEP if longer else constants.LONG_STEP
        tile = Tile(1, nbytes // layout.itemsize, warps)
        if shared := parts_of_long(layout):
            tile = shared.tile
            own |= shared.arguments
        return tile, LONG_ROWS | own | {"BLOCK": tile.block}
    g_far, y_far = are_far(layout.column_strides, layout.columns)
    own |= {"G_BESIDE": g_far, "Y_BESIDE": y_far}
    beside = tile_of_far(layout)
    tile = beside or held_tile(layout.whole, layout.itemsize, layout.rows, OPERANDS)
    even = tile.block == layout.columns and not layout.skewed and beside is None
    return tile, own | {"EVEN": even, "ROWS": tile.rows, "BLOCK": tile.block}


def plan(grad: Layout, output: Layout, scale: float) -> Launch | None:
    """The launch; None if the operands must be copied first, or if there is nothing to compute."""
    if not math.prod(output.shape):
        return None
    layout = describe(grad, output)
    if layout is None:
        return None
    variant = choose(layout)
    tile, own = arguments(variant, layout)
    shared = {
        "scale": float(scale),
        "g_strides": layout.rows.strides[G],
        "y_strides": layout.rows.strides[Y],
        **layout.arguments(tile),
    }
    grid = layout.rows.grid(own.get("TAKEN", tile.rows))
    words = 0
    if variant is Variant.SPLIT and own["parts"] > 1:
        words = layout.rows.outer * layout.rows.count * own["parts"]
        grid = (grid[0] * own["parts"], *grid[1:])
    elif variant is Variant.SPLIT:
        own["words_ptr"] = None
    if variant is Variant.LONG:
        types: tuple[Any, ...] = (None, None, None, own["ACC"])
        return long_launch(KERNELS[variant], layout.rows, shared | own, types, words_of_part=1)
    types = (None, None, None, tl.uint64)[: 4 if words else 3]
    return Launch(KERNELS[variant], grid, shared | own, types, variant, words)
