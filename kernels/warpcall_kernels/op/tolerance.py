"""How far a result may be from the reference: in units of the rounding errors that it must have.

A result is computed in an accumulator and rounded once to its dtype. The accumulator is fp32 for
dtypes of one or two bytes, otherwise the dtype itself. With `u` for the unit roundoff of a dtype, a
sum of `terms` terms has an error of about `u * sqrt(terms)` of its size. That is what rounding to
nearest gives a sum in sequence. Blocked and pairwise sums have less. Together

    error <= u_output * |result| + u_accumulator * (sqrt(terms) + amplification) * scale + least

where `scale` is the larger of |result| and the size of its terms, and `least` is half the distance
of the smallest numbers of the dtype. No other term is absolute, so that a result of zeros is wrong
however small the right one is.

`op/compare.py` compares by that bound in two ways. The norm of the differences of all elements
must be within the norm of the bounds. One rounding of each element to the dtype has 0.4 times that
norm; one to the next shorter dtype has 6 times as much or more. Each single element may be
`HEADROOM` times as far, since approximations in hardware, such as 2 ulp of the exponential of
NVIDIA GPUs, and unlucky orders of a sum exceed the bound in a few elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

HEADROOM = 4.0  # of a single element over the bound of rounding errors
EXPONENTIAL = 4.0  # units of error of the exponential itself: 2 ulp, and its rounded argument
MOST_OF_EXPONENTIAL = 65536.0  # units, 0.4 % in fp32; more would let any result pass

# What an author's number for a single element is above the one for the norm of all differences.
ROW_HEADROOM = 2.0


@dataclass(frozen=True)
class Sums:
    """How the elements of one output come about.

    Args:
        terms: the number of terms of the sum that is an element.
        size: the root of the sum of the squares of an element's terms, broadcastable to the output.
            A sum of terms of random signs has this size, and its rounding errors grow with it if
            the terms cancel. None means that nothing cancels, so that errors are relative to the
            results.
        amplification: units of the accumulator's roundoff that come on top, broadcastable to the
            output. An exponential has as many as its argument is large.
    """

    terms: int
    size: Tensor | None = None
    amplification: Tensor | float = 0.0


@dataclass(frozen=True, eq=False)
class SumTolerance:
    """The tolerance of an op whose results are sums of known terms.

    Args:
        sums: returns the `Sums` of each output by name. It takes the inputs, as a call gets them,
            and the parameters, all by name.
    """

    sums: Callable[..., Mapping[str, Sums]]


@dataclass(frozen=True)
class RowTolerance:
    """The tolerance of an op of which only the reference is known.

    The terms of its sums are unknown, so that the scale of an element is the larger of its own
    size and the root mean square of its row. A row is the last dim, with as many dims before it as
    make it `MIN_ROW` elements long.

    Args:
        by_dtype: by dtype of the output, the error of an element relative to its scale. The norm of
            the differences may have a part of it, 1 / `ROW_HEADROOM`.
    """

    by_dtype: Mapping[torch.dtype, float]


Tolerance = SumTolerance | RowTolerance

MIN_ROW = 16  # elements; the root mean square of fewer is small by chance


def squared(t: Tensor) -> Tensor:
    """The squares of values in fp64, with memory for one such tensor."""
    return t.square() if t.dtype == torch.float64 else t.double().square_()


def unit_roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of rounding to a floating-point or complex dtype."""
    return float(torch.finfo(dtype).eps) / 2


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums for results of a dtype."""
    double = dtype in (torch.float64, torch.complex128)
    return torch.float64 if double else torch.float32


def least_error(dtype: torch.dtype) -> float:
    """The error that a result may have however small it is.

    For fp16 and fp8 that is half the distance of subnormal numbers. Subnormal numbers of longer
    dtypes become 0 on GPUs, so that there it is the smallest normal number of the accumulator.
    """
    info = torch.finfo(dtype)
    half_a_step = float(info.smallest_normal) * float(info.eps) / 2
    return max(half_a_step, float(torch.finfo(accumulator(dtype)).smallest_normal))


def exponential_amplification(largest: Tensor) -> Tensor:
    """Units of roundoff of softmax, from the largest size of the scores of a row.

    The argument of an exponential is a difference of rounded scores. Its error is the relative
    error of the result, and grows with the scores.
    """
    return EXPONENTIAL + (2 * largest.double()).clamp(max=MOST_OF_EXPONENTIAL)


def error_of_sums(dtype: torch.dtype, sums: Sums) -> Tensor | float:
    """The error in the accumulator relative to the scale, for results of a dtype."""
    units = math.sqrt(max(1, sums.terms)) + sums.amplification
    return unit_roundoff(accumulator(dtype)) * units
