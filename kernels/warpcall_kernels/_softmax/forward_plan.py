"""The choice of a variant for the rows of a forward call, and the launch of its kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from warpcall_kernels._softmax import constants
from warpcall_kernels._softmax.forward import masked_softmax_kernel
from warpcall_kernels._softmax.forward_long import masked_softmax_long_kernel
from warpcall_kernels._softmax.forward_rows import softmax_split_kernel
from warpcall_kernels._softmax.forward_short import masked_softmax_short_kernel
from warpcall_kernels._softmax.forward_split import masked_softmax_split_kernel
from warpcall_kernels._softmax.long_rows import LONG_ROWS, long_launch, parts_of_long
from warpcall_kernels._softmax.mask import BYTES, how_to_read
from warpcall_kernels._softmax.rows import (
    RowLayout,
    Rows,
    Strides,
    Tile,
    Variant,
    beside_tile,
    congruent,
    held_bytes,
    held_tile,
    plan_rows,
    row_index_strides,
)
from warpcall_kernels._softmax.short_rows import BITS, is_run, plan_run
from warpcall_kernels._transpose.strides import (
    alignment,
    broadcast_strides,
    contiguous_strides,
    reach,
)
from warpcall_kernels.op.launch import VECTOR_BYTES, Launch, Layout

# Scales that are folded into the factor of the exponential: the products are finite in fp32.
FOLDED_SCALES = (2.0**-64, 2.0**64)
MOST_QUERIES = 1 << 30  # whose numbers fit into 32 bits, with those of a tile
NEVER = 1 << 62  # bytes of a row that no row has
X, MASK, LENGTHS, Q, OUT, BIAS, SLOPES = range(7)  # the operands, as `Rows.strides` has them


KERNELS = {
    Variant.TILE: masked_softmax_kernel,
    Variant.SHORT: masked_softmax_short_kernel,
    Variant.LONG: masked_softmax_long_kernel,
    Variant.SPLIT: masked_softmax_split_kernel,
}


class BiasLayout(NamedTuple):
    """How what is added to the scores lies in memory."""

    itemsize: int  # of the bias; 0 without one
    stride: int  # elements between the biases of neighbouring positions
    align: int  # what divides where rows of the bias begin; of skewed rows, their groups


class Call(NamedTuple):
    """What the variant of a call and the arguments of its kernel depend on."""

    layout: RowLayout  # of x and the result
    mask: Layout | None
    mask_stride: int  # elements between the masks of neighbouring positions; 0 without a mask
    mask_align: int  # what divides where rows of the mask begin; of skewed rows, their groups
    prefix: bool  # whether lengths or causality leave only a prefix of a row
    queries: int | None  # Q if the rows of several causal matrices are one dim
    beside: Tile | None  # the tile of rows that lie side by side, with their positions far apart
    scale: float
    bias: BiasLayout | None  # None without bias and slopes

    @property
    def folded(self) -> bool:
        """Whether the scale is folded into the factor of the exponential."""
        return self.bias is None and FOLDED_SCALES[0] <= self.scale <= FOLDED_SCALES[1]

    @property
    def negative(self) -> bool:
        """Whether the scale could be folded if positions had the other sign."""
        return FOLDED_SCALES[0] <= -self.scale <= FOLDED_SCALES[1]

    @property
    def is_whole(self) -> bool:
        """Whether all positions of the rows count and lie in whole accesses."""
        plain = self.mask is None and not self.prefix and self.bias is None
        return plain and not self.layout.skewed

    @property
    def mask_is_unaligned(self) -> bool:
        """Whether the masks of a group take more than one access."""
        return self.mask is not None and self.mask_align < self.layout.access

    @property
    def bias_is_unaligned(self) -> bool:
        """Whether the biases of a group take more accesses than their bytes do."""
        if self.bias is None or not self.bias.itemsize:
            return False
        return self.bias.align < min(self.layout.access, VECTOR_BYTES // self.bias.itemsize)


def describe(
    x: Layout,
    mask: Layout | None,
    lengths: Layout | None,
    scale: float,
    causal: bool,
    bias: Layout | None = None,
    slopes: Layout | None = None,
) -> Call | None:
    """The rows of a call, or None if their strides fit no plan."""
    shape, columns, itemsize = x.shape, x.shape[-1], x.dtype.itemsize
    absent = (0,) * (len(shape) - 1)
    mask_strides, lengths_strides = (*absent, 0), absent
    if mask is not None:
        mask_strides = broadcast_strides(mask.shape, mask.strides, len(shape))
    if lengths is not None:
        lengths_strides = broadcast_strides(lengths.shape, lengths.strides, len(absent))
    bias_strides, slope_strides = (*absent, 0), absent
    if bias is not None:
        bias_strides = broadcast_strides(bias.shape, bias.strides, len(shape))
    if slopes is not None:
        slope_strides = broadcast_strides((*slopes.shape, 1), (*slopes.strides, 0), len(absent))
    takes_q = causal or slopes is not None
    q_strides = row_index_strides(len(absent)) if takes_q else absent
    out_strides = contiguous_strides(shape)[:-1]
    along = (
        *(x.strides[:-1], mask_strides[:-1], lengths_strides, q_strides, out_strides),
        *(bias_strides[:-1], slope_strides),
    )
    shared = None if mask is None else MASK
    if bias is not None:
        shared = BIAS
    queries = None
    far = x.strides[-1] > constants.MAX_COLUMN_STRIDE and columns > 1
    if far and (bias is not None or slopes is not None):
        return None
    least_shared = None if bias is None else constants.MIN_SHARED_BIAS
    beside_x = (X,) if far else ()
    rows = plan_rows(shape[:-1], along, shared, columns * itemsize, beside_x, least_shared)
    if causal and slopes is None and not far and math.prod(shape[:-2]) > 1:
        rows, queries = _as_one_dim(shape, along, shared, columns * itemsize) or (rows, None)
    if rows is None:
        return None
    beside = beside_tile(columns, itemsize, rows) if far else None
    if far and beside is None:
        return None
    strides, x_stride, mask_stride = rows.strides, x.strides[-1], mask_strides[-1]
    align = mask_align = 1
    if x_stride == 1:
        begin = x.address // itemsize
        align = alignment(itemsize, [begin, columns, *strides[X], *strides[OUT]])
    operands = ((strides[X],), strides[OUT], (x_stride,), (x.address,))
    layout = RowLayout(rows, columns, itemsize, align, *operands)
    splits = constants.SPLIT_BYTES_FORWARD if bias is None and slopes is None else {}
    layout = layout.skew(constants.SKEWED_BYTES, splits.get(itemsize, NEVER))
    if mask is not None and mask_stride == 1:
        if not layout.skewed:
            mask_align = alignment(1, [mask.address, columns, *strides[MASK]])
        elif mask.address % layout.group == 0:
            same = congruent((strides[MASK],), strides[OUT], layout.group)
            mask_align = layout.group if same else 1
    prefix = causal or lengths is not None
    added = None
    if bias is not None or slopes is not None:
        added = _bias_layout(layout, bias, bias_strides[-1])
    return Call(layout, mask, mask_stride, mask_align, prefix, queries, beside, scale, added)


def _bias_layout(layout: RowLayout, bias: Layout | None, stride: int) -> BiasLayout:
    if bias is None:
        return BiasLayout(0, 0, 1)
    itemsize, align, strides = bias.dtype.itemsize, 1, layout.rows.strides
    if stride == 1 and not layout.skewed:
        align = alignment(itemsize, [bias.address // itemsize, layout.columns, *strides[BIAS]])
    elif stride == 1 and bias.address == 0:
        same = congruent((strides[BIAS],), strides[OUT], layout.group)
        align = layout.group if same else 1
    return BiasLayout(itemsize, stride, align)


def _as_one_dim(
    shape: Sequence[int], along: Sequence[Sequence[int]], shared: int | None, row_bytes: int
) -> tuple[Rows, int] | None:
    """The rows of all matrices as one dim, and Q; None if the strides of other operands forbid it.

    Of several matrices of a few rows, a tile would otherwise have rows that lie apart, each of another
    matrix. [256, 1527, 2, 70] fp16 took 284 us so, where a copy takes 55.
    """
    strides = [*along]
    strides[Q] = (0,) * len(strides[Q])
    rows = plan_rows(shape[:-1], strides, shared, row_bytes)
    if rows is None or rows.outer > 1 or shape[-2] > MOST_QUERIES:
        return None
    found = [*rows.strides]
    found[Q] = Strides(0, 0, 1)
    return replace(rows, strides=tuple(found)), shape[-2]


def takes_rows(call: Call) -> bool:
    """Whether programs take the same part of several whole rows, of which there are enough."""
    layout = call.layout
    if not call.is_whole or layout.columns > constants.SPLIT_MOST:
        return False
    block = rows_constants(layout)[0]
    parts = layout.rows.total * layout.columns // block
    enough = parts >= constants.SPLIT_PROGRAMS[layout.itemsize] * constants.SPLIT_TAKE
    return enough and layout.columns % block == 0


def rows_constants(layout: RowLayout) -> tuple[int, int, int | None]:
    """The positions, warps and registers of such programs."""
    longer = layout.columns > constants.SPLIT_LONGER
    return (constants.SPLIT_ROWS_LONGER if longer else constants.SPLIT_ROWS)[layout.itemsize]


def split_constants(call: Call) -> tuple[int, int, int | None]:
    """The positions, warps and registers of programs that share rows."""
    if takes_rows(call):
        return rows_constants(call.layout)
    block, warps, registers = constants.SPLIT_FORWARD[call.layout.itemsize]
    by_bytes = reading_of_mask(call)["HOW"] == BYTES.value
    spills = call.mask is not None and (call.prefix or by_bytes)  # with so few registers
    return block, warps, None if spills else registers


def parts_of(call: Call) -> int:
    """How many programs share a row of the variant "split"."""
    return max(1, -(-call.layout.whole // split_constants(call)[0]))


def fits_split(call: Call) -> bool:
    """Whether rows are read by accesses of 16 bytes, and programs can share them.

    Rows that are not taken several at a time have at most as many parts as a program has threads, so
    that each thread reads one word. Many rows with a mask and a limit are not shared: the kernel
    takes more registers, and so fewer programs run at once.
    """
    layout = call.layout
    if call.bias is not None:
        return False
    if layout.itemsize not in constants.SPLIT_FORWARD or layout.column_strides != (1,):
        return False
    if not (call.folded or call.negative) or layout.access != layout.group:
        return False
    if call.mask is not None and call.prefix and layout.rows.total > constants.FEW_ROWS:
        return False
    return takes_rows(call) or parts_of(call) <= 32 * split_constants(call)[1]


def fits_short(call: Call) -> bool:
    """Whether rows are read as runs: many short ones, whose masks are shared or lie as they do."""
    layout = call.layout
    if not is_run(layout) or layout.rows.total < constants.SHORT_ROWS or call.bias is not None:
        return False
    if call.mask is None:
        return True
    if layout.columns > constants.SHORT_MASKED_COLUMNS[layout.itemsize] and not call.prefix:
        return False
    strides = layout.rows.strides[MASK]
    if strides.row == 0:
        return True
    groups = all(n % layout.group == 0 for n in (strides.outer, strides.inner, call.mask.address))
    return strides.row == layout.columns and call.mask_stride == 1 and groups


def tries() -> int:
    """How often a program looks for the words of other parts before it makes them itself.

    In the interpreter programs run one after another, so that waiting is in vain.
    """
    return 0 if triton.knobs.runtime.interpret else constants.SPLIT_TRIES


def choose(call: Call) -> Variant:
    """The variant that is fastest for these rows; the table of variants says why."""
    if call.beside is not None:
        return Variant.TILE
    if fits_short(call):
        return Variant.SHORT
    unaligned = call.mask_is_unaligned or call.bias_is_unaligned
    held = constants.HELD_BYTES if call.bias is None else constants.HELD_BYTES_ADDED
    most = min(held, constants.HELD_BYTES_MASKED) if unaligned else held
    splits = fits_split(call)
    if splits:
        most = min(most, constants.SPLIT_BYTES_FORWARD[call.layout.itemsize])
    if held_bytes(call.layout.whole, call.layout.itemsize) <= most:
        return Variant.TILE
    return Variant.SPLIT if splits else Variant.LONG


def reading_of_mask(call: Call) -> dict[str, Any]:
    """How the kernels of long rows read a mask, and its bytes."""
    layout, mask = call.layout, call.mask
    if mask is None:
        return {"HOW": BYTES.value, "mask_nbytes": 0}
    lies = (call.mask_align, call.mask_stride, mask.address)
    how = how_to_read(layout.itemsize, layout.access, *lies)
    return {"HOW": how.value, "mask_nbytes": reach(mask.shape, mask.strides)}


def split_arguments(call: Call) -> tuple[Tile, dict[str, Any]]:
    """The part of a row that a program has, and the arguments of the kernels that share rows."""
    layout, parts = call.layout, parts_of(call)
    block, warps, registers = split_constants(call)
    own = {
        "ALIGN": layout.access,
        "BLOCK": block,
        "THREADS": 32 * warps,
        "LANES": triton.next_power_of_2(parts),
        "parts": parts,
        "tries": tries(),
        "zero": 0,
        "NEGATIVE": call.negative,
        "maxnreg": registers,
    }
    if takes_rows(call):
        own |= {"take": constants.SPLIT_TAKE}
    else:
        own |= {"SKEWED": layout.skewed, **reading_of_mask(call)}
    return Tile(1, block, warps), own


def fewer_registers(call: Call, tile: Tile) -> bool:
    """Whether a tile takes fewer registers than the compiler would choose."""
    layout = call.layout
    nbytes = tile.block * layout.itemsize
    held = nbytes <= constants.TILE_BYTES * constants.MAX_WARPS  # not twice as much by each warp
    prefix = call.prefix and call.mask is None
    return layout.skewed and layout.itemsize == 2 and prefix and held


def arguments(variant: Variant, call: Call) -> tuple[Tile, dict[str, Any]]:
    """The tile of a program, and the arguments that only the kernel of this variant has."""
    layout, itemsize = call.layout, call.layout.itemsize
    shares_mask = layout.rows.strides[MASK].row == 0
    shares_bias = call.bias is not None and layout.rows.strides[BIAS].row == 0
    if variant is Variant.SHORT:
        run = plan_run(layout)
        own = {"SHARED": shares_mask, "MASKS": BITS[run.per], **run.constants(layout)}
        return Tile(own["TAKEN"], own["BLOCK"], run.warps), own
    if variant is Variant.SPLIT:
        return split_arguments(call)
    own = {"stride_xk": layout.column_strides[0], "SKEWED": layout.skewed, "ALIGN": layout.access}
    if variant is Variant.LONG:
        parts = parts_of_long(layout)
        tile = Tile(1, *constants.LONG[itemsize]) if parts is None else parts.tile
        own |= {} if parts is None else parts.arguments
        return tile, LONG_ROWS | own | {"BLOCK": tile.block} | reading_of_mask(call)
    tile = call.beside or held_tile(layout.whole, itemsize, layout.rows)
    full = tile.block == layout.columns and call.beside is None
    own_registers = {}
    if fewer_registers(call, tile):
        own_registers = {"maxnreg": constants.SKEWED_PREFIX_REGISTERS}
    return tile, own | own_registers | {
        "MASK_ALIGN": call.mask_align,
        "SHARED": shares_mask and not layout.skewed,
        "BIAS_SHARED": shares_bias and not layout.skewed,
        "EVEN": full and not call.prefix and not layout.skewed,
        "BESIDE": call.beside is not None,
        "ROWS": tile.rows,
        "BLOCK": tile.block,
    }


def plan(
    x: Layout,
    mask: Layout | None,
    lengths: Layout | None,
    scale: float,
    causal: bool,
    bias: Layout | None = None,
    slopes: Layout | None = None,
) -> Launch | None:
    """The launch; None if the operands must be copied first, or if there is nothing to compute."""
    if not math.prod(x.shape):
        return None
    call = describe(x, mask, lengths, scale, causal, bias, slopes)
    if call is None:
        return None
    variant = choose(call)
    tile, own = arguments(variant, call)
    rows = call.layout.rows
    sign = -1 if variant is Variant.SPLIT and call.negative else 1  # see `negative_words`
    shared = {"scale": sign * float(scale), "x_strides": rows.strides[X]}
    shared |= call.layout.arguments(
        tile, call.mask_stride, 0 if call.bias is None else call.bias.stride
    )
    taken = own.get("take", own.get("TAKEN", tile.rows))
    grid = rows.grid(taken)
    words = 0
    if variant is Variant.SPLIT:
        words = rows.outer * rows.count * own["parts"]
        grid = (grid[0] * own["parts"], *grid[1:])
        if takes_rows(call):
            own_types = (None, None, tl.uint64)
            return Launch(softmax_split_kernel, grid, shared | own, own_types, variant, words)
    shared |= {
        "diagonal": x.shape[-1] - x.shape[-2] + 1 if causal or slopes is not None else 0,
        "queries": call.queries,
        "mask_strides": rows.strides[MASK],
        "lengths_strides": rows.strides[LENGTHS],
        "q_strides": rows.strides[Q],
        "stride_mk": call.mask_stride,
        "CAUSAL": causal,
    }
    acc = tl.float64 if x.dtype == torch.float64 else tl.float32
    types: tuple[Any, ...] = (None, None if mask is None else tl.uint8, None, None)
    if variant is Variant.SPLIT:
        return Launch(KERNELS[variant], grid, shared | own, (*types, tl.uint64), variant, words)
    shared |= {"FOLDED": call.folded, "ACC": acc} | own
    if variant is Variant.SHORT:
        return Launch(KERNELS[variant], grid, shared, types, variant)
    types = (*types, None, None)
    shared |= {
        "bias_strides": None if bias is None else rows.strides[BIAS],
        "slope_strides": None if slopes is None else rows.strides[SLOPES],
        "stride_bk": 0 if call.bias is None else call.bias.stride,
        "BIAS_ALIGN": 1 if call.bias is None else call.bias.align,
    }
    if variant is Variant.LONG:
        return long_launch(KERNELS[variant], rows, shared, (*types, acc), words_of_part=2)
    return Launch(KERNELS[variant], grid, shared, types, variant)
