"""Converts tensors to JSON values, and back.

The output is strict JSON. Not-a-number and the infinities are the strings "NaN", "Infinity" and
"-Infinity", as in Protocol Buffers. A complex number is a pair [real, imaginary]. Input may be
nested as the shape says, or flat; output is nested.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from operator import mul
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from warpcall.dtypes import dtype_name, numpy_dtypes
from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo
from warpcall_service.text import brief

NUMPY_DTYPES = numpy_dtypes()

PIECE_COST = 4096  # values and lists whose text is written at once

Array = npt.NDArray[Any]

_INTEGERS = frozenset(code for code, dtype in NUMPY_DTYPES.items() if dtype.kind in "iu")
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_array(data: object, info: TensorInfo) -> Array:
    """Convert the JSON value of the tensor `info` to a flat array; an array is returned as it is.

    Raises:
        InvalidInput: the data have another shape or another kind of value, or a value is out of the
            dtype's range.
    """
    if isinstance(data, np.ndarray):
        return data
    leaves = _leaves(data, _json_shape(info), info)
    kinds = set(map(type, leaves))
    if info.dtype == "BOOL":
        _refuse(kinds - {bool}, "true or false", leaves, info)
        return np.array(leaves, np.bool_)
    if info.dtype in _INTEGERS:
        _refuse(kinds - {int}, "integers", leaves, info)
        return _integers(cast("list[int]", leaves), NUMPY_DTYPES[info.dtype], info)
    if str in kinds:
        leaves = [_WORDS.get(leaf, leaf) if type(leaf) is str else leaf for leaf in leaves]
        kinds = set(map(type, leaves))
    _refuse(kinds - {int, float}, 'numbers, "NaN", "Infinity" or "-Infinity"', leaves, info)
    return _floats(cast("list[float]", leaves), _number_dtype(info), info)


def plain_array(values: list[object], name: str) -> tuple[Array, list[int]]:
    """Convert a list without a dtype to a flat array and the shape of the list's nesting.

    The dtype is the one that numpy chooses: integers are int64, or uint64 if they need it, numbers
    with a fraction and empty lists float64, true and false bool.

    Args:
        name: of the tensor, for messages.

    Raises:
        InvalidInput: the lists differ in length or depth, or a value is no number or too large.
    """
    shape, entry = list[int](), cast("object", values)
    while isinstance(entry, list):
        shape.append(len(entry))
        entry = entry[0] if entry else None
    leaves = _nested_leaves(values, shape, name, "")
    leaves = [_WORDS.get(leaf, leaf) if type(leaf) is str else leaf for leaf in leaves]
    for leaf in leaves:
        if type(leaf) not in (bool, int, float):
            wanted = 'numbers, true, false, "NaN", "Infinity" or "-Infinity"'
            raise InvalidInput(f"{name} must hold {wanted}, got {brief(leaf)}", field=name)
    array = np.array(leaves)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{name} must hold integers of at most 64 bits", field=name)
    return array, shape


def pieces(data: memoryview, info: TensorInfo, separators: tuple[str, str]) -> Iterator[str]:
    """The JSON text of the tensor with these bytes, in pieces that take some 1 ms each.

    The text is nested lists, or a plain value if the tensor has no dimensions. A tensor without
    elements is an empty list: a shape such as (2^40, 0) would be nested into more lists than there is
    memory for.

    Args:
        separators: as of `json.dumps`.
    """
    if not data:
        yield "[]"
        return
    dtype = NUMPY_DTYPES[info.dtype] if info.dtype == "BOOL" else _number_dtype(info)
    values = np.frombuffer(data, dtype).reshape(_json_shape(info))
    row_costs: list[int] = []
    cost = 1
    for size in reversed(values.shape):
        row_costs.insert(0, cost)
        cost = 1 + size * cost
    yield from _pieces(values, row_costs, separators, "", "")


def list_count(info: TensorInfo) -> int:
    """The number of lists in the JSON of a tensor."""
    shape = _json_shape(info)
    return sum(accumulate(shape[:-1], mul, initial=1)) if info.nbytes and shape else 1


def _pieces(
    values: Array, row_costs: Sequence[int], separators: tuple[str, str], before: str, behind: str
) -> Iterator[str]:
    """The text of an array with elements, between two others.

    Args:
        row_costs: for each dimension, how many values and lists one of its entries is.
    """
    if not row_costs or row_costs[0] * len(values) <= PIECE_COST:
        yield before + json.dumps(_lists(values), separators=separators) + behind
        return
    rows = max(1, PIECE_COST // row_costs[0])
    for begin in range(0, len(values), rows):
        block = values[begin : begin + rows]
        start = separators[0] if begin else before + "["
        end = "]" + behind if begin + rows >= len(values) else ""
        if len(block) == 1:
            yield from _pieces(block[0], row_costs[1:], separators, start, end)
        else:
            yield start + json.dumps(_lists(block), separators=separators)[1:-1] + end


def _lists(values: Array) -> Any:
    """The values of an array as `json.dumps` takes them."""
    if values.dtype.kind in "biu":
        return values.tolist()
    numbers = values.astype(np.float64)
    if np.isfinite(numbers).all():
        return numbers.tolist()
    words = numbers.astype(object)
    words[np.isnan(numbers)] = "NaN"
    words[np.isposinf(numbers)] = "Infinity"
    words[np.isneginf(numbers)] = "-Infinity"
    return words.tolist()


def _json_shape(info: TensorInfo) -> tuple[int, ...]:
    """The shape of a tensor's lists; a complex number is a list of two."""
    return (*info.shape, 2) if info.dtype == "C64" else info.shape


def _number_dtype(info: TensorInfo) -> np.dtype[Any]:
    """The dtype of the numbers in JSON; a complex number is a pair of float32."""
    return NUMPY_DTYPES["F32" if info.dtype == "C64" else info.dtype]


def _leaves(data: object, shape: tuple[int, ...], info: TensorInfo) -> list[object]:
    if isinstance(data, list) and list not in set(map(type, data)):
        count = math.prod(shape)
        if len(data) != count:
            raise InvalidInput(
                f"{info.name} of shape {info.shape} must have {count} values, got {len(data)}",
                field=info.name,
            )
        return data
    return _nested_leaves(data, shape, info.name, ", or one flat list")


def _nested_leaves(data: object, shape: Sequence[int], name: str, otherwise: str) -> list[object]:
    """The values of lists that are nested as a shape says; `otherwise` ends the message if not."""
    level = [data]
    for depth, size in enumerate(shape):
        if not all(isinstance(entry, list) and len(entry) == size for entry in level):
            raise InvalidInput(
                f"{name} must be nested as its shape {tuple(shape)} says: lists of {size} at depth "
                f"{depth}{otherwise}",
                field=name,
            )
        level = list(chain.from_iterable(cast("list[list[object]]", level)))
    return level


def _refuse(kinds: set[type], wanted: str, leaves: list[object], info: TensorInfo) -> None:
    if kinds:
        wrong = next(leaf for leaf in leaves if type(leaf) in kinds)
        raise InvalidInput(
            f"{info.name} of dtype {dtype_name(info.dtype)} must hold {wanted}, got {brief(wrong)}",
            field=info.name,
        )


def _integers(leaves: list[int], dtype: np.dtype[Any], info: TensorInfo) -> Array:
    bounds = np.iinfo(dtype)
    for value in (min(leaves, default=0), max(leaves, default=0)):
        if not bounds.min <= value <= bounds.max:
            raise _out_of_range(value, info)
    return np.array(leaves, dtype)


def _floats(leaves: list[float], dtype: np.dtype[Any], info: TensorInfo) -> Array:
    try:
        exact = np.array(leaves, np.float64)
    except OverflowError:  # an integer beyond the largest float64
        raise _out_of_range(max(leaves, key=abs), info) from None
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(dtype)
    wide = rounded.astype(np.float64)
    changed = (np.isfinite(exact) != np.isfinite(wide)) | (np.isnan(exact) != np.isnan(wide))
    if changed.any():
        raise _out_of_range(leaves[int(np.argmax(changed))], info)
    return rounded


def _out_of_range(value: object, info: TensorInfo) -> InvalidInput:
    return InvalidInput(
        f"{info.name} must hold values that {dtype_name(info.dtype)} can, got {brief(value)}",
        field=info.name,
    )
