"""Contiguous copies of operands, made by the kernels of permute."""

from __future__ import annotations

import functools
import math

from torch import Tensor

from warpcall_kernels._transpose.plan import plan_permute
from warpcall_kernels.op.launch import Launch, LayoutKey, empty_like, layout_key, runs_kernel

# Bytes of an operand from which on a copy saves more time than its launch takes.
COPIED_BYTES = 4 << 20


def contiguous(t: Tensor) -> Tensor:
    """The tensor itself if it is contiguous, or a contiguous copy of it.

    A copy that transposes is made as permute makes it: torch takes 5 to 15 times as long for
    [64, 512, 1024] bf16 whose last dim is not the inner one in memory (205 and 582 us, 38 by this
    way, on an H200). Others are torch's own.

    Args:
        t: any shape and strides, of 1, 2, 4, 8 or 16 bytes an element.
    """
    if t.is_contiguous() or not _is_transposed(t) or not runs_kernel(t):
        return t.contiguous()
    launch = _plan(layout_key(t))
    if launch is None:
        return t.contiguous()
    out = empty_like(t)
    launch(t, out)
    return out


def has_far_positions(place: LayoutKey, most_stride: int) -> bool:
    """Whether the last dim of an operand has a larger stride, in elements, and the operand is large
    enough that a copy of it saves time.
    """
    shape, strides, dtype, _ = place
    far = strides[-1] > most_stride and shape[-1] > 1
    return far and math.prod(shape) * dtype.itemsize >= COPIED_BYTES


def _is_transposed(t: Tensor) -> bool:
    """Whether the elements have another order in memory than in the tensor."""
    dims = zip(t.shape, t.stride(), strict=True)
    steps = [stride for size, stride in dims if size > 1 and stride]  # 0 is a repeated dim
    return 0 not in t.shape and steps != sorted(steps, reverse=True)


@functools.lru_cache(maxsize=4096)
def _plan(key: LayoutKey) -> Launch | None:
    sizes, strides, dtype, address = key
    return plan_permute(sizes, strides, range(len(sizes)), dtype.itemsize, address)
