"""Filters in plain torch, as they are applied, and the rounding errors of products with them."""

from __future__ import annotations

from torch import Tensor

from warpcall_kernels._conv.filters import NARROW
from warpcall_kernels.op.tolerance import accumulator, exponential_amplification

TRUNCATIONS = 16  # roundings of fp32: each of two products of 16 terms loses half of one a term
TWO_PARTS = 64  # roundings of fp32 in 2^-18, the root mean square of the error of two parts of bf16


def effective_weight(weight: Tensor, softmax_weight: bool) -> Tensor:
    """The filters as they are applied, as wide as sums are computed: fp32, or fp64 for fp64."""
    wide = weight.to(accumulator(weight.dtype))
    return wide.softmax(-1) if softmax_weight else wide


def expand_weight(weight: Tensor, channels: int) -> Tensor:
    """[H, K] as the [C, 1, K] that a depthwise F.conv1d takes."""
    return weight.repeat_interleave(channels // weight.shape[0], 0)[:, None]


def amplification_of(weight: Tensor, softmax_weight: bool) -> Tensor | float:
    """Units of roundoff of products with filters, [H, 1] or one for all.

    Those of a softmax are as of masked softmax. Of dtypes of two bytes its weights are multiplied in
    two parts, and all products on tensor cores, which truncate sums instead of rounding them.
    """
    is_narrow = weight.dtype in NARROW
    units = float(TRUNCATIONS if is_narrow else 0)
    if not softmax_weight:
        return units
    parts = TWO_PARTS if is_narrow else 0
    return units + parts + exponential_amplification(weight.abs().amax(1, keepdim=True))


def by_channel(amplification: Tensor | float, channels: int) -> Tensor | float:
    """What is [H, 1] as [C, 1]."""
    if not isinstance(amplification, Tensor):
        return amplification
    return amplification.repeat_interleave(channels // amplification.shape[0], 0)
