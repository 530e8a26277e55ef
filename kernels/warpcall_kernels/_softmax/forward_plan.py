"""Which kernel of masked softmax takes the rows of a call, and what it is launched with."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl

from warpcall_kernels._softmax import forward_long
from warpcall_kernels._softmax import rows as _softmax
from warpcall_kernels._softmax.forward import masked_softmax_kernel
from warpcall_kernels._softmax.forward_long import LONG, masked_softmax_long_kernel
from warpcall_kernels._softmax.mask import BYTES, how_to_read
from warpcall_kernels._softmax.short_rows import Run, masked_softmax_short_kernel
from warpcall_kernels._transpose import strides as _dims
from warpcall_kernels.op.launch import VECTOR_BYTES, Launch, LayoutKey

# Bytes of a row that begins anywhere from which on its edges are taken apart. On an H200: 65 bf16 77.8 us, with
# ends apart 54.8; 33 fp32 44.5 and 36.3; but 63 fp16 52.3 and 53.9, 33 bf16 97 and 103.
SKEWED_BYTES = 128
FOLDED_SCALES = (2.0**-64, 2.0**64)  # within these, products with fp32 factors are sane


def plan(
    x: LayoutKey, mask: LayoutKey | None, lengths: LayoutKey | None, scale: float, causal: bool
) -> Launch | None:
    """The launch, or None where it takes copies of operands, or there is nothing to compute."""
    shape, x_strides, dtype, address = x
    if not math.prod(shape) or (x_strides[-1] > _softmax.MAX_COLUMN_STRIDE and shape[-1] > 1):
        return None
    absent = (0,) * (len(shape) - 1)
    along_mask = None if mask is None else _dims.broadcast_strides(*mask[:2], len(shape))
    along = (
        x_strides[:-1],
        absent if along_mask is None else along_mask[:-1],
        absent if lengths is None else _dims.broadcast_strides(*lengths[:2], len(absent)),
        _softmax.row_index_strides(len(absent)) if causal else absent,
        _dims.contiguous_strides(shape)[:-1],
    )
    rows = _softmax.plan_rows(shape[:-1], along, None if mask is None else 1)
    if rows is None:
        return None

    columns, itemsize = shape[-1], dtype.itemsize
    strides = rows.strides
    stride_xk, stride_mk = x_strides[-1], 0 if along_mask is None else along_mask[-1]
    align = mask_align = 1
    if stride_xk == 1:
        align = _dims.alignment(itemsize, [address // itemsize, columns, *strides[0], *strides[4]])
    if mask is not None and stride_mk == 1:
        mask_align = _dims.alignment(1, [mask[3], columns, *strides[1]])
    operands = (strides[0],), strides[4], (stride_xk,), (address,)
    run = Run.of(columns, itemsize, align, *operands)
    skewed = _softmax.has_skewed_rows(columns, itemsize, align, SKEWED_BYTES, *operands)
    if skewed:
        align = VECTOR_BYTES // itemsize
        own = mask is not None and stride_mk == 1 and mask[3] % align == 0
        same = own and _softmax.congruent((strides[1],), strides[4], align)
        mask_align = align if same else 1
    whole = columns // align * align
    tile = _softmax.Tile.of(whole, itemsize, rows.count, LONG[itemsize])
    if mask is not None and mask_align < align and (itemsize == 2 or not tile.long):
        masked = forward_long.LONG_MASKED, forward_long.MASKED_BYTES
        tile = _softmax.Tile.of(whole, itemsize, rows.count, *masked)
    widest = _softmax.reach(rows, tile, columns, (stride_xk, stride_mk))
    low, high = FOLDED_SCALES
    arguments: dict[str, Any] = {
        "scale": float(scale),
        "columns": columns,
        "outer": rows.outer,
        "inner": rows.inner,
        "count": rows.count,
        "diagonal": columns - shape[-2] + 1 if causal else 0,
        "x_strides": strides[0],
        "mask_strides": strides[1],
        "lengths_strides": strides[2],
        "q_strides": strides[3],
        "out_strides": strides[4],
        "stride_mk": stride_mk,
        "CAUSAL": causal,
        "FOLDED": low <= scale <= high,
        "WIDE": widest >= 2**31,
        "ACC": tl.float64 if dtype == torch.float64 else tl.float32,
    }
    words = (None, None if mask is None else tl.uint8)
    if run is not None:
        arguments |= {"SHARED": strides[1][2] == 0, **run.constants(columns, itemsize)}
        return Launch(masked_softmax_short_kernel, rows.grid(run.taken), arguments, words)
    arguments |= {"stride_xk": stride_xk, "SKEWED": skewed, "ALIGN": align}
    arguments |= {"BLOCK": tile.block, "num_warps": tile.warps}
    if tile.long:
        arguments |= {"mask_nbytes": 0, "HOW": BYTES.value}
        if mask is not None:
            how = how_to_read(itemsize, align, mask_align, stride_mk, mask[3])
            arguments |= {"mask_nbytes": _dims.reach(*mask[:2]), "HOW": how.value}
        return Launch(masked_softmax_long_kernel, rows.grid(1), arguments, words)
    arguments |= {
        "MASK_ALIGN": mask_align,
        "SHARED": strides[1][2] == 0 and not skewed,
        "EVEN": tile.block == columns and lengths is None and not causal and not skewed,
        "ROWS": tile.rows,
    }
    return Launch(masked_softmax_kernel, rows.grid(tile.rows), arguments, words)
