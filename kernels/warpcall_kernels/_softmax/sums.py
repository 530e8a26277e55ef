"""Which positions of masked softmax count, and what rounding errors its results have."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from warpcall_kernels._softmax import checks
from warpcall_kernels.op.tolerance import Sums, exponential_amplification


def masked_positions(
    x: Tensor, mask: Tensor | None, lengths: Tensor | None, causal: bool, bias: Tensor | None
) -> Tensor | None:
    """Where positions do not count, broadcastable to x; None if all of them count."""
    parts = [checks.beyond_prefix(x.shape, lengths, causal, x.device)]
    parts += [None if mask is None else mask != 0, None if bias is None else bias == -math.inf]
    given = [part for part in parts if part is not None]
    return functools.reduce(torch.logical_or, given) if given else None


def sums(
    x: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
) -> dict[str, Sums]:
    """Errors are relative to each result, however small: all terms of the sum are positive.

    The sum of a row has K terms, which are exponentials of the scores that count. A score is a sum
    itself, and rounded as its terms are.
    """
    masked = masked_positions(x, mask, lengths, causal, bias)
    sizes = x.abs().masked_fill_(~x.isfinite(), 0)
    if bias is not None or slopes is not None:
        sizes = _sizes_of_sums(x, masked, scale, bias, slopes)
        scale = 1.0
    if masked is not None:
        sizes.masked_fill_(masked, 0)
    largest = sizes.amax(-1, keepdim=True) if x.shape[-1] else sizes.new_zeros(())
    amplification = exponential_amplification(abs(scale) * largest.double())
    return {"out": Sums(x.shape[-1], amplification=amplification)}


def _sizes_of_sums(
    x: Tensor, masked: Tensor | None, scale: float, bias: Tensor | None, slopes: Tensor | None
) -> Tensor:
    """The sizes of the terms of each score; 0 where it is so low that its exponential is 0."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    scores = x.to(dtype) * scale
    sizes = scores.abs()
    terms = [] if bias is None else [bias.to(dtype)]
    if slopes is not None:
        terms += [slopes.to(dtype)[:, None, None] * checks.distances(x.shape, x.device)]
    for term in terms:
        scores += term
        sizes += term.abs()
    if masked is not None:
        scores.masked_fill_(masked, -math.inf)
    if x.shape[-1]:
        low = scores.amax(-1, keepdim=True) + math.log(torch.finfo(dtype).tiny) - 20
        sizes.masked_fill_(scores < low, 0)
    return sizes.masked_fill_(~sizes.isfinite(), 0)
