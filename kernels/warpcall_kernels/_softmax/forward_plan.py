"""The choice of a variant for the rows of a forward call, and the launch of its kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from warpcall_kernels._softmax import constants
from warpcall_kernels._softmax.forward import masked_softmax_kernel
from warpcall_kernels._softmax.forward_long import masked_softmax_long_kernel
from warpcall_kernels._softmax.mask import BYTES, how_to_read
from warpcall_kernels._softmax.rows import (
    RowLayout,
    Rows,
    Tile,
    Variant,
    congruent,
    held_bytes,
    held_tile,
    is_wide,
    plan_rows,
    row_index_strides,
)
from warpcall_kernels._softmax.short_rows import is_run, masked_softmax_short_kernel, plan_run
from warpcall_kernels._transpose.strides import (
    alignment,
    broadcast_strides,
    contiguous_strides,
    reach,
)
from warpcall_kernels.op.launch import Launch, Layout

# Scales that are folded into the factor of the exponential: the products are finite in fp32.
FOLDED_SCALES = (2.0**-64, 2.0**64)
X, MASK, LENGTHS, Q, OUT = range(5)  # the operands, as `Rows.strides` has them


@dataclass(frozen=True)
class Call:
    """What a call's variant and the arguments of its kernel depend on.

    Args:
        rows: the rows of all operands.
        layout: how the rows of x lie.
        mask, lengths: the layouts of these inputs, or None.
        mask_stride: elements between the masks of neighbouring positions; 0 without a mask.
        mask_align: what divides where rows of the mask begin; where rows are skewed, their groups.
        skewed: whether the ends of the rows are read apart from their whole groups of 16 bytes.
        align: positions of x in one access; a whole group of 16 bytes if the rows are skewed.
    """

    rows: Rows
    layout: RowLayout
    mask: Layout | None
    lengths: Layout | None
    mask_stride: int
    mask_align: int
    skewed: bool
    align: int

    @property
    def whole(self) -> int:
        """Positions of a row in groups of `align`."""
        return self.layout.columns // self.align * self.align

    @property
    def mask_is_unaligned(self) -> bool:
        """Whether the masks of a group take more than one access."""
        return self.mask is not None and self.mask_align < self.align


def describe(x: Layout, mask: Layout | None, lengths: Layout | None, causal: bool) -> Call | None:
    """The rows of a call, or None if their strides fit no plan."""
    shape, columns, itemsize = x.shape, x.shape[-1], x.dtype.itemsize
    absent = (0,) * (len(shape) - 1)
    mask_strides = (0,) * len(shape)
    if mask is not None:
        mask_strides = broadcast_strides(mask.shape, mask.strides, len(shape))
    lengths_strides = absent
    if lengths is not None:
        lengths_strides = broadcast_strides(lengths.shape, lengths.strides, len(absent))
    q_strides = row_index_strides(len(absent)) if causal else absent
    along = (
        *(x.strides[:-1], mask_strides[:-1], lengths_strides, q_strides),
        contiguous_strides(shape)[:-1],
    )
    rows = plan_rows(shape[:-1], along, None if mask is None else MASK)
    if rows is None:
        return None
    strides, x_stride, mask_stride = rows.strides, x.strides[-1], mask_strides[-1]
    align = mask_align = 1
    if x_stride == 1:
        begin = x.address // itemsize
        align = alignment(itemsize, [begin, columns, *strides[X], *strides[OUT]])
    if mask is not None and mask_stride == 1:
        mask_align = alignment(1, [mask.address, columns, *strides[MASK]])
    layout = RowLayout(
        *(columns, itemsize, align, (strides[X],), strides[OUT], (x_stride,), (x.address,))
    )
    skewed = layout.is_skewed(constants.SKEWED_BYTES)
    if skewed:
        align = layout.group
        aligned = mask is not None and mask_stride == 1 and mask.address % align == 0
        same = aligned and congruent((strides[MASK],), strides[OUT], align)
        mask_align = align if same else 1
    return Call(rows, layout, mask, lengths, mask_stride, mask_align, skewed, align)


def choose(call: Call) -> Variant:
    """The variant that is fastest for these rows; the table of variants says why."""
    if is_run(call.layout):
        return Variant.SHORT
    unaligned = call.mask_is_unaligned
    most = constants.HELD_BYTES_MASKED if unaligned else constants.HELD_BYTES
    if held_bytes(call.whole, call.layout.itemsize) > most:
        return Variant.LONG
    return Variant.TILE


def plan(
    x: Layout, mask: Layout | None, lengths: Layout | None, scale: float, causal: bool
) -> Launch | None:
    """The launch; None if the operands must be copied first, or if there is nothing to compute."""
    columns, x_stride = x.shape[-1], x.strides[-1]
    too_wide = x_stride > constants.MAX_COLUMN_STRIDE and columns > 1
    call = None
    if math.prod(x.shape) and not too_wide:
        call = describe(x, mask, lengths, causal)
    if call is None:
        return None
    arguments: dict[str, Any] = {
        "scale": float(scale),
        "diagonal": columns - x.shape[-2] + 1 if causal else 0,
        "CAUSAL": causal,
        "FOLDED": FOLDED_SCALES[0] <= scale <= FOLDED_SCALES[1],
        "ACC": tl.float64 if x.dtype == torch.float64 else tl.float32,
    }
    variant = choose(call)
    if variant is Variant.SHORT:
        return _launch_short(call, arguments)
    if variant is Variant.LONG:
        return _launch_long(call, arguments)
    return _launch_tile(call, arguments)


def _launch(
    variant: Variant, kernel: Any, call: Call, tile: Tile, taken: int, arguments: dict[str, Any]
) -> Launch:
    """The launch of a kernel whose programs are `taken` rows apart."""
    rows, columns = call.rows, call.layout.columns
    strides = rows.strides
    column_strides = (*call.layout.column_strides, call.mask_stride)
    arguments |= {
        "columns": columns,
        "outer": rows.outer,
        "inner": rows.inner,
        "count": rows.count,
        "x_strides": strides[X],
        "mask_strides": strides[MASK],
        "lengths_strides": strides[LENGTHS],
        "q_strides": strides[Q],
        "out_strides": strides[OUT],
        "stride_mk": call.mask_stride,
        "WIDE": is_wide(rows, tile, columns, column_strides),
        "num_warps": tile.warps,
    }
    element_types = (None, None if call.mask is None else tl.uint8)
    return Launch(kernel, rows.grid(taken), arguments, element_types, variant)


def _launch_short(call: Call, arguments: dict[str, Any]) -> Launch:
    run = plan_run(call.layout)
    arguments |= {"SHARED": call.rows.strides[MASK].row == 0, **run.constants(call.layout)}
    tile = Tile(run.rows, arguments["BLOCK"], run.warps)
    return _launch(*(Variant.SHORT, masked_softmax_short_kernel, call, tile, run.taken, arguments))


def _launch_long(call: Call, arguments: dict[str, Any]) -> Launch:
    mask, itemsize = call.mask, call.layout.itemsize
    step = constants.LONG[itemsize]
    fits = held_bytes(call.whole, itemsize) <= constants.HELD_BYTES
    if call.mask_is_unaligned and (itemsize == 2 or fits):
        step = constants.LONG_MASKED
    how, mask_nbytes = BYTES, 0
    if mask is not None:
        how = how_to_read(itemsize, call.align, call.mask_align, call.mask_stride, mask.address)
        mask_nbytes = reach(mask.shape, mask.strides)
    arguments |= {
        "stride_xk": call.layout.column_strides[0],
        "SKEWED": call.skewed,
        "ALIGN": call.align,
        "BLOCK": step[0],
        "mask_nbytes": mask_nbytes,
        "HOW": how.value,
    }
    tile = Tile(1, *step)
    return _launch(Variant.LONG, masked_softmax_long_kernel, call, tile, 1, arguments)


def _launch_tile(call: Call, arguments: dict[str, Any]) -> Launch:
    tile = held_tile(call.whole, call.layout.itemsize, call.rows.count)
    prefix = call.lengths is not None or arguments["CAUSAL"]
    arguments |= {
        "stride_xk": call.layout.column_strides[0],
        "SKEWED": call.skewed,
        "ALIGN": call.align,
        "MASK_ALIGN": call.mask_align,
        "SHARED": call.rows.strides[MASK].row == 0 and not call.skewed,
        "EVEN": tile.block == call.layout.columns and not prefix and not call.skewed,
        "ROWS": tile.rows,
        "BLOCK": tile.block,
    }
    return _launch(Variant.TILE, masked_softmax_kernel, call, tile, tile.rows, arguments)
