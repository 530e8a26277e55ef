"""Compares the outputs of an op with those of its reference, within the op's tolerance.

`op/tolerance.py` says what the tolerance is. Tensors are compared in chunks, so that a comparison
takes little memory besides the sizes of the terms that the op declares.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.op.declaration import Op
from warpcall_kernels.op.tolerance import (
    HEADROOM,
    MIN_ROW,
    ROW_HEADROOM,
    RowTolerance,
    Sums,
    error_of_sums,
    least_error,
    unit_roundoff,
)

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by the bytes of an element
CHUNK = 1 << 22  # elements compared at a time, in some 250 MB


def difference(
    op: Op,
    name: str,
    ours: Tensor,
    theirs: Tensor,
    inputs: Mapping[str, Tensor],
    params: Mapping[str, Any],
) -> str | None:
    """Say how an output differs from the reference, or None if it is right.

    Args:
        op: the op with its tolerance.
        name: the name of the output.
        ours: the output, of its declared shape and dtype.
        theirs: that of the reference: for an op with a tolerance, from widened inputs.
        inputs: the inputs as the call got them, by name.
        params: the checked parameters.
    """
    return Comparison(op, inputs, params).difference(name, ours, theirs)


class Comparison:
    """Compares outputs of calls with the same inputs. The op's `sums` are computed once."""

    def __init__(self, op: Op, inputs: Mapping[str, Tensor], params: Mapping[str, Any]) -> None:
        self._op = op
        self._inputs = inputs
        self._params = params

    def difference(self, name: str, ours: Tensor, theirs: Tensor) -> str | None:
        """Say how the output `name` differs from the reference, as the function does."""
        ours, theirs = ours.detach().contiguous(), theirs.detach().contiguous()
        if ours.shape != theirs.shape or ours.device != theirs.device:
            raise ValueError(
                f"{name} must have the shape and device of the reference, {tuple(theirs.shape)} on "
                f"{theirs.device}, got {tuple(ours.shape)} on {ours.device}"
            )
        if not ours.numel():
            return None
        allowed = self._allowed(name, ours, theirs)
        if allowed is None:
            return _difference_of_bits(name, ours, theirs)
        return _difference_of_values(name, ours, theirs, allowed)

    def _allowed(self, name: str, ours: Tensor, theirs: Tensor) -> _Allowed | None:
        """The bounds of an output; None if it must be equal to the reference."""
        tolerance, dtype = self._op.tolerance, ours.dtype
        if tolerance is None:
            return None
        is_float = dtype.is_floating_point or dtype.is_complex
        least = least_error(dtype) if is_float else 0.0
        if isinstance(tolerance, RowTolerance):
            error = tolerance.by_dtype[dtype]
            if not is_float and error == 0:
                return None
            rows = _rows(theirs.shape)
            means = _root_mean_squares(theirs.view(rows), dtype)
            return _Allowed(rows, error / ROW_HEADROOM, ROW_HEADROOM, means, least)
        sums = self._sums[name]
        shape = theirs.shape
        rows = (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)
        size = None if sums.size is None else _as_rows(sums.size, shape)
        relative = error_of_sums(dtype, sums)
        if isinstance(relative, Tensor):
            relative = _as_rows(relative, shape)
        return _Allowed(rows, relative, HEADROOM, size, least, unit_roundoff(dtype))

    @functools.cached_property
    def _sums(self) -> Mapping[str, Sums]:
        assert self._op.tolerance is not None
        assert not isinstance(self._op.tolerance, RowTolerance)
        with torch.no_grad():
            return self._op.tolerance.sums(**self._inputs, **self._params)


@dataclass(frozen=True)
class _Allowed:
    """The bounds of an output whose elements are seen as a matrix of rows.

    Args:
        rows: the number of rows, and their length.
        relative: the error relative to the scale, for all elements or by row.
        headroom: how many times as far a single element may be.
        size: the least scale of elements, for each element or by row.
        least: the error that an element may have however small it is.
        rounding: a further error, relative to the element itself.
    """

    rows: tuple[int, int]
    relative: Tensor | float
    headroom: float
    size: Tensor | None
    least: float
    rounding: float = 0.0


def widened(t: Tensor) -> Tensor:
    """The same values in the widest dtype of their kind."""
    if t.is_complex():
        return t.to(torch.complex128)
    return t.double() if t.is_floating_point() else t


def shown(got: object, wanted: object) -> tuple[str, str]:
    """Two different values as text, floats with as few digits as tell them apart."""
    if isinstance(got, float) and isinstance(wanted, float):
        for digits in (4, 8):
            texts = f"{got:.{digits}g}", f"{wanted:.{digits}g}"
            if texts[0] != texts[1]:
                return texts
    return str(got), str(wanted)


def same_bits(ours: Tensor, theirs: Tensor) -> Tensor:
    """Equal bit for bit, except that every NaN equals every other: which one results is not
    defined.
    """
    # Whole words take a tenth of the time of bytes of which all must be equal.
    word = WORDS.get(ours.dtype.itemsize, torch.int64)
    same = ours.view(word) == theirs.view(word)
    if ours.dtype.itemsize > word.itemsize:
        same = same.view(ours.numel(), -1).all(1)
    if ours.is_floating_point() or ours.is_complex():
        wide = (ours, theirs) if ours.dtype.itemsize > 1 else (ours.float(), theirs.float())
        same |= wide[0].isnan() & wide[1].isnan()
    return same


def _difference_of_bits(name: str, ours: Tensor, theirs: Tensor) -> str | None:
    wrong = first = 0
    a, b = ours.view(-1), theirs.to(ours.dtype).view(-1)
    for begin in range(0, a.numel(), CHUNK):
        bad = ~same_bits(a[begin : begin + CHUNK], b[begin : begin + CHUNK])
        found = int(bad.sum())
        if found and not wrong:
            first = begin + int(bad.nonzero()[0])
        wrong += found
    return _sentence(name, wrong, first, ours, theirs) if wrong else None


def _difference_of_values(name: str, ours: Tensor, theirs: Tensor, allowed: _Allowed) -> str | None:
    wrong = first = 0
    worst = 0.0
    # Sums of squares: of the differences, of what they may be, and of the results.
    squares = torch.zeros(3, dtype=torch.float64, device=ours.device)
    a, b = ours.view(allowed.rows), theirs.view(allowed.rows)
    for at in _chunks(*allowed.rows):
        got, expected = a[at], _rounded_to_infinity(b[at], ours.dtype)
        got = got.to(torch.complex128 if got.is_complex() else torch.float64)
        finite = expected.isfinite()
        off, scale = (got - expected).abs().double(), expected.abs().double()
        bound = scale
        if allowed.size is not None:
            bound = torch.maximum(scale, _finite(_part(allowed.size, at), torch.float64))
        relative = allowed.relative
        if isinstance(relative, Tensor):
            relative = _part(relative, at)
        bound = bound * relative + scale * allowed.rounding
        # A comparison with NaN is False, so that NaN is wrong wherever a number is expected.
        near = off <= allowed.headroom * bound + 2 * allowed.least
        bound = bound + allowed.least
        right = torch.where(finite, near, (got == expected) | (got.isnan() & expected.isnan()))
        if found := int((~right).sum()):
            if not wrong:
                first = _index(at, allowed.rows[1], (~right).nonzero()[0])
            wrong += found
            times = torch.where(finite & ~right, off / bound, 0.0)
            worst = max(worst, float(times.nan_to_num(0, 0, 0).max()))
        if not wrong:
            for i, values in enumerate((off, bound, scale)):
                squares[i] += torch.where(finite, values, 0.0).square().sum()
    if wrong:
        text = _sentence(name, wrong, first, ours, theirs)
        far = f"; the farthest is off by {worst:.2g} times the expected error"
        return text + far if worst else text
    norm, most, results = squares.sqrt().tolist()
    if norm <= most:
        return None
    return (
        f"{name} differs from the reference as a whole: the norm of the difference is "
        f"{norm / results if results else math.inf:.2g} of that of the results, at most "
        f"{most / results if results else math.inf:.2g} is allowed"
    )


def _sentence(name: str, wrong: int, first: int, ours: Tensor, theirs: Tensor) -> str:
    got, wanted = shown(*(t.view(-1)[first].item() for t in (ours, theirs)))
    return (
        f"{name} differs from the reference in {wrong} of {ours.numel()} elements, first at {first} "
        f"(in C order): {got} instead of {wanted}"
    )


def _rounded_to_infinity(theirs: Tensor, dtype: torch.dtype) -> Tensor:
    """The wide reference, with values beyond the range of the output's dtype infinite."""
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return theirs.double()
    wide = widened(theirs)
    if not (dtype.is_floating_point or dtype.is_complex):
        return wide
    rounded = wide.to(dtype).to(wide.dtype)
    return torch.where(rounded.isfinite(), wide, rounded)


def _finite(t: Tensor, dtype: torch.dtype) -> Tensor:
    """The sizes of values, in fp64, with 0 for those that are not finite in the output's dtype."""
    sizes = t.abs() if t.is_complex() else t.double().abs()  # torch has no abs of unsigned integers
    most = torch.finfo(dtype).max if dtype.is_floating_point or dtype.is_complex else math.inf
    return sizes.masked_fill_(~(sizes <= most), 0.0)


def _rows(shape: torch.Size) -> tuple[int, int]:
    """The number and length of the rows of a tensor: trailing dims of MIN_ROW elements together."""
    length, dims = 1, list(shape)
    while dims and length < MIN_ROW:
        length *= dims.pop()
    return math.prod(dims), length


def _root_mean_squares(theirs: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, 1]: the root mean square of each row of a matrix."""
    rows, length = theirs.shape
    squares = torch.zeros(rows, 1, dtype=torch.float64, device=theirs.device)
    for at in _chunks(rows, length):
        squares[at[0]] += _finite(widened(theirs[at]), dtype).square().sum(1, keepdim=True)
    return (squares / length).sqrt()


def _as_rows(t: Tensor, shape: torch.Size) -> Tensor:
    """A tensor that is broadcastable to `shape` as rows, of length 1 if all their values are one."""
    if not shape:
        return t.reshape(1, 1)
    by_row = t.dim() == 0 or t.shape[-1] == 1
    whole = t.expand(*shape[:-1], 1) if by_row else t.expand(shape)
    return whole.reshape(-1, 1 if by_row else shape[-1])


def _chunks(rows: int, length: int) -> Iterator[tuple[slice, slice]]:
    """Parts of a matrix of at most CHUNK elements, in C order: whole rows, or parts of one."""
    if length > CHUNK:
        for row in range(rows):
            for begin in range(0, length, CHUNK):
                yield slice(row, row + 1), slice(begin, begin + CHUNK)
        return
    step = max(1, CHUNK // max(1, length))
    for row in range(0, rows, step):
        yield slice(row, row + step), slice(0, length)


def _part(t: Tensor, at: tuple[slice, slice]) -> Tensor:
    return t[at[0]] if t.shape[1] == 1 else t[at]


def _index(at: tuple[slice, slice], length: int, place: Tensor) -> int:
    row, column = place.tolist()
    return int((at[0].start + row) * length + at[1].start + column)
