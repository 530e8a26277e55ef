"""The choice of a variant for the rows of a backward call, and the launch of its kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from warpcall_kernels._softmax import backward_packed, constants
from warpcall_kernels._softmax.backward import (
    masked_softmax_backward_kernel,
    masked_softmax_backward_long_kernel,
)
from warpcall_kernels._softmax.rows import (
    RowLayout,
    Rows,
    Tile,
    Variant,
    held_bytes,
    held_tile,
    is_wide,
    plan_rows,
)
from warpcall_kernels._softmax.short_rows import (
    is_run,
    masked_softmax_backward_short_kernel,
    plan_run,
)
from warpcall_kernels._transpose.strides import alignment, contiguous_strides
from warpcall_kernels.op.launch import Launch, Layout

G, Y, OUT = range(3)  # the operands, as `Rows.strides` has them
OPERANDS = 2  # of a row that are held: the gradient of the output, and the output


@dataclass(frozen=True)
class Call:
    """What a call's variant and the arguments of its kernel depend on.

    Args:
        rows: the rows of all operands.
        layout: how the rows lie.
        skewed: whether the ends of the rows are read apart from their whole groups of 16 bytes.
        align: positions in one access; a whole group of 16 bytes if the rows are skewed.
    """

    rows: Rows
    layout: RowLayout
    skewed: bool
    align: int

    @property
    def whole(self) -> int:
        """Positions of a row in groups of `align`."""
        return self.layout.columns // self.align * self.align


def describe(grad: Layout, output: Layout) -> Call | None:
    """The rows of a call, or None if their strides fit no plan."""
    shape, columns, itemsize = output.shape, output.shape[-1], output.dtype.itemsize
    along = (grad.strides[:-1], output.strides[:-1], contiguous_strides(shape)[:-1])
    rows = plan_rows(shape[:-1], along, None)
    if rows is None:
        return None
    strides = rows.strides
    column_strides = (grad.strides[-1], output.strides[-1])
    addresses = (grad.address, output.address)
    align = 1
    if column_strides == (1, 1):
        begins = [address // itemsize for address in addresses]
        align = alignment(itemsize, [*begins, columns, *(step for s in strides for step in s)])
    layout = RowLayout(
        *(columns, itemsize, align, (strides[G], strides[Y]), strides[OUT]),
        *(column_strides, addresses),
    )
    skewed = layout.is_skewed(constants.SKEWED_BYTES_BACKWARD)
    return Call(rows, layout, skewed, layout.group if skewed else align)


def choose(call: Call) -> Variant:
    """The variant that is fastest for these rows; the table of variants says why."""
    columns, itemsize = call.layout.columns, call.layout.itemsize
    odd = columns % 2 == 1
    if odd and columns * itemsize in constants.SHORT_BYTES_BACKWARD and is_run(call.layout):
        return Variant.SHORT
    if backward_packed.fits_packed(call.whole, itemsize, call.align):
        return Variant.PACKED
    most = constants.HELD_BYTES_BACKWARD
    if call.skewed or itemsize == 2:
        most = constants.HELD_BYTES
    if held_bytes(call.whole, itemsize, OPERANDS) > most:
        return Variant.LONG
    return Variant.TILE


def plan(grad: Layout, output: Layout, scale: float) -> Launch | None:
    """The launch; None if the operands must be copied first, or if there is nothing to compute."""
    widest = max(grad.strides[-1], output.strides[-1])
    too_wide = widest > constants.MAX_COLUMN_STRIDE and output.shape[-1] > 1
    call = None
    if math.prod(output.shape) and not too_wide:
        call = describe(grad, output)
    if call is None:
        return None
    arguments: dict[str, Any] = {
        "scale": float(scale),
        "ACC": tl.float64 if output.dtype == torch.float64 else tl.float32,
    }
    variant = choose(call)
    if variant is Variant.SHORT:
        return _launch_short(call, arguments)
    arguments |= {"SKEWED": call.skewed, "ALIGN": call.align}
    if variant is Variant.PACKED:
        return _launch_packed(call, arguments)
    g_stride, y_stride = call.layout.column_strides
    arguments |= {"stride_gk": g_stride, "stride_yk": y_stride}
    if variant is Variant.LONG:
        return _launch_long(call, arguments)
    return _launch_tile(call, arguments)


def _launch(
    variant: Variant, kernel: Any, call: Call, tile: Tile, taken: int, arguments: dict[str, Any]
) -> Launch:
    """The launch of a kernel whose programs are `taken` rows apart."""
    rows, columns = call.rows, call.layout.columns
    arguments |= {
        "columns": columns,
        "outer": rows.outer,
        "inner": rows.inner,
        "count": rows.count,
        "g_strides": rows.strides[G],
        "y_strides": rows.strides[Y],
        "out_strides": rows.strides[OUT],
        "WIDE": is_wide(rows, tile, columns, call.layout.column_strides),
        "num_warps": tile.warps,
    }
    return Launch(kernel, rows.grid(taken), arguments, variant=variant)


def _launch_short(call: Call, arguments: dict[str, Any]) -> Launch:
    run = plan_run(call.layout)
    arguments |= run.constants(call.layout)
    tile = Tile(run.rows, arguments["BLOCK"], run.warps)
    kernel = masked_softmax_backward_short_kernel
    return _launch(Variant.SHORT, kernel, call, tile, run.taken, arguments)


def _launch_packed(call: Call, arguments: dict[str, Any]) -> Launch:
    del arguments["ACC"]  # always fp32
    arguments["zero"] = 0
    tile = Tile(1, backward_packed.COLUMNS.value, backward_packed.WARPS)
    kernel = backward_packed.masked_softmax_backward_packed_kernel
    return _launch(Variant.PACKED, kernel, call, tile, 1, arguments)


def _launch_long(call: Call, arguments: dict[str, Any]) -> Launch:
    itemsize = call.layout.itemsize
    longer = call.layout.columns * itemsize >= constants.LONGER_BYTES
    nbytes, warps = constants.LONGER_STEP if longer else constants.LONG_STEP
    tile = Tile(1, nbytes // itemsize, warps)
    arguments["BLOCK"] = tile.block
    kernel = masked_softmax_backward_long_kernel
    return _launch(Variant.LONG, kernel, call, tile, 1, arguments)


def _launch_tile(call: Call, arguments: dict[str, Any]) -> Launch:
    tile = held_tile(call.whole, call.layout.itemsize, call.rows.count, OPERANDS)
    arguments |= {
        "EVEN": tile.block == call.layout.columns and not call.skewed,
        "ROWS": tile.rows,
        "BLOCK": tile.block,
    }
    kernel = masked_softmax_backward_kernel
    return _launch(Variant.TILE, kernel, call, tile, tile.rows, arguments)
