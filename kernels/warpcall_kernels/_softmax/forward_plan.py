"""The choice of a variant for the rows of a forward call, and the launch of its kernel."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton.language as tl

from warpcall_kernels._softmax import constants
from warpcall_kernels._softmax.forward import masked_softmax_kernel
from warpcall_kernels._softmax.forward_long import masked_softmax_long_kernel
from warpcall_kernels._softmax.forward_short import masked_softmax_short_kernel
from warpcall_kernels._softmax.mask import BYTES, how_to_read
from warpcall_kernels._softmax.rows import (
    RowLayout,
    Tile,
    Variant,
    congruent,
    held_bytes,
    held_tile,
    plan_rows,
    row_index_strides,
)
from warpcall_kernels._softmax.short_rows import is_run, plan_run
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


KERNELS = {
    Variant.TILE: masked_softmax_kernel,
    Variant.SHORT: masked_softmax_short_kernel,
    Variant.LONG: masked_softmax_long_kernel,
}


class Call(NamedTuple):
    """What the variant of a call and the arguments of its kernel depend on."""

    layout: RowLayout  # of x and the result
    mask: Layout | None
    mask_stride: int  # elements between the masks of neighbouring positions; 0 without a mask
    mask_align: int  # what divides where rows of the mask begin; of skewed rows, their groups
    prefix: bool  # whether lengths or causality leave only a prefix of a row

    @property
    def mask_is_unaligned(self) -> bool:
        """Whether the masks of a group take more than one access."""
        return self.mask is not None and self.mask_align < self.layout.access


def describe(x: Layout, mask: Layout | None, lengths: Layout | None, causal: bool) -> Call | None:
    """The rows of a call, or None if their strides fit no plan."""
    shape, columns, itemsize = x.shape, x.shape[-1], x.dtype.itemsize
    absent = (0,) * (len(shape) - 1)
    mask_strides, lengths_strides = (*absent, 0), absent
    if mask is not None:
        mask_strides = broadcast_strides(mask.shape, mask.strides, len(shape))
    if lengths is not None:
        lengths_strides = broadcast_strides(lengths.shape, lengths.strides, len(absent))
    q_strides = row_index_strides(len(absent)) if causal else absent
    out_strides = contiguous_strides(shape)[:-1]
    along = (x.strides[:-1], mask_strides[:-1], lengths_strides, q_strides, out_strides)
    rows = plan_rows(shape[:-1], along, None if mask is None else MASK)
    if rows is None:
        return None
    strides, x_stride, mask_stride = rows.strides, x.strides[-1], mask_strides[-1]
    align = mask_align = 1
    if x_stride == 1:
        begin = x.address // itemsize
        align = alignment(itemsize, [begin, columns, *strides[X], *strides[OUT]])
    operands = ((strides[X],), strides[OUT], (x_stride,), (x.address,))
    layout = RowLayout(rows, columns, itemsize, align, *operands).skew(constants.SKEWED_BYTES)
    if mask is not None and mask_stride == 1:
        if not layout.skewed:
            mask_align = alignment(1, [mask.address, columns, *strides[MASK]])
        elif mask.address % layout.group == 0:
            same = congruent((strides[MASK],), strides[OUT], layout.group)
            mask_align = layout.group if same else 1
    return Call(layout, mask, mask_stride, mask_align, causal or lengths is not None)


def choose(call: Call) -> Variant:
    """The variant that is fastest for these rows; the table of variants says why."""
    if is_run(call.layout):
        return Variant.SHORT
    unaligned = call.mask_is_unaligned
    most = constants.HELD_BYTES_MASKED if unaligned else constants.HELD_BYTES
    if held_bytes(call.layout.whole, call.layout.itemsize) > most:
        return Variant.LONG
    return Variant.TILE


def arguments(variant: Variant, call: Call) -> tuple[Tile, dict[str, Any]]:
    """The tile of a program, and the arguments that only the kernel of this variant has."""
    layout, mask, itemsize = call.layout, call.mask, call.layout.itemsize
    shares_mask = layout.rows.strides[MASK].row == 0
    if variant is Variant.SHORT:
        run = plan_run(layout)
        own = {"SHARED": shares_mask, **run.constants(layout)}
        return Tile(own["TAKEN"], own["BLOCK"], run.warps), own
    own = {"stride_xk": layout.column_strides[0], "SKEWED": layout.skewed, "ALIGN": layout.access}
    if variant is Variant.LONG:
        tile = Tile(1, *constants.LONG[itemsize])
        fits = held_bytes(layout.whole, itemsize) <= constants.HELD_BYTES
        if call.mask_is_unaligned and (itemsize == 2 or fits):
            tile = Tile(1, *constants.LONG_MASKED)
        how, mask_nbytes = BYTES, 0
        if mask is not None:
            lies = (call.mask_align, call.mask_stride, mask.address)
            how = how_to_read(itemsize, layout.access, *lies)
            mask_nbytes = reach(mask.shape, mask.strides)
        return tile, own | {"BLOCK": tile.block, "mask_nbytes": mask_nbytes, "HOW": how.value}
    tile = held_tile(layout.whole, itemsize, layout.rows.count)
    full = tile.block == layout.columns
    return tile, own | {
        "MASK_ALIGN": call.mask_align,
        "SHARED": shares_mask and not layout.skewed,
        "EVEN": full and not call.prefix and not layout.skewed,
        "ROWS": tile.rows,
        "BLOCK": tile.block,
    }


def plan(
    x: Layout, mask: Layout | None, lengths: Layout | None, scale: float, causal: bool
) -> Launch | None:
    """The launch; None if the operands must be copied first, or if there is nothing to compute."""
    too_wide = x.strides[-1] > constants.MAX_COLUMN_STRIDE and x.shape[-1] > 1
    if not math.prod(x.shape) or too_wide:
        return None
    call = describe(x, mask, lengths, causal)
    if call is None:
        return None
    variant = choose(call)
    tile, own = arguments(variant, call)
    rows = call.layout.rows
    shared = {
        "scale": float(scale),
        "diagonal": x.shape[-1] - x.shape[-2] + 1 if causal else 0,
        "x_strides": rows.strides[X],
        "mask_strides": rows.strides[MASK],
        "lengths_strides": rows.strides[LENGTHS],
        "q_strides": rows.strides[Q],
        "stride_mk": call.mask_stride,
        "CAUSAL": causal,
        "FOLDED": FOLDED_SCALES[0] <= scale <= FOLDED_SCALES[1],
        "ACC": tl.float64 if x.dtype == torch.float64 else tl.float32,
        **call.layout.arguments(tile, call.mask_stride),
    }
    grid = rows.grid(own.get("TAKEN", tile.rows))
    element_types = (None, None if mask is None else tl.uint8)
    return Launch(KERNELS[variant], grid, shared | own, element_types, variant)
