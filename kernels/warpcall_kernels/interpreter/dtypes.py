"""The dtypes of numpy that hold Triton's types."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from warpcall_kernels.interpreter.errors import CannotInterpret

Array = NDArray[Any]

NARROW: Mapping[Any, np.dtype[Any]] = {
    tl.bfloat16: np.dtype(ml_dtypes.bfloat16),
    tl.float8e4nv: np.dtype(ml_dtypes.float8_e4m3fn),
    tl.float8e5: np.dtype(ml_dtypes.float8_e5m2),
}
_BITS = {held: np.dtype(f"u{held.itemsize}") for held in NARROW.values()}
OF_OTHER_GPUS = (tl.float8e4b8, tl.float8e4b15, tl.float8e5b16)
# A GPU rounds what is larger than these to them. ml_dtypes would make it infinite or NaN.
LARGEST: Mapping[np.dtype[Any], float] = {
    NARROW[tl.float8e4nv]: 448.0,
    NARROW[tl.float8e5]: 57_344.0,
}

stock_np_dtype = stock._get_np_dtype
_np_dtypes: dict[str, np.dtype[Any]] = {}  # by the name of Triton's type
_most_nbytes: dict[str, int] = {}  # likewise


def np_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype of the arrays that hold a type of Triton."""
    known = _np_dtypes.get(dtype.name)
    if known is None:
        scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        is_pointer = isinstance(scalar, tl.pointer_type)
        if not is_pointer and scalar in OF_OTHER_GPUS:
            raise CannotInterpret(f"the type {scalar}, which NVIDIA's GPUs do not have")
        narrow = None if is_pointer else NARROW.get(scalar)
        known = _np_dtypes[dtype.name] = narrow or stock_np_dtype(dtype)
    return known


def most_nbytes(dtype: Any) -> int:
    """The most bytes that an element of an array may have which holds this type of Triton.

    Numpy makes some results wider than their operands. An array of comparisons has bool, although
    the interpreter calls them by the type of what was compared. Pointers are not limited.
    """
    known = _most_nbytes.get(dtype.name)
    if known is None:
        is_pointer = isinstance(dtype, tl.pointer_type)
        known = sys.maxsize if is_pointer else max(8, dtype.primitive_bitwidth) // 8
        _most_nbytes[dtype.name] = known
    return known


def set_handle(self: TensorHandle, data: Array, dtype: Any, attr: Any = None) -> None:
    """As the `__init__` of Triton's TensorHandle, in a third of its time.

    Raises:
        ValueError: elements of the array are too wide for the type.
    """
    self.data = data
    self.dtype = dtype
    self.attr = {} if attr is None else attr
    if data.itemsize > (_most_nbytes.get(dtype.name) or most_nbytes(dtype)):
        raise ValueError(f"an array of {data.dtype} is too wide for Triton's type {dtype}")


def bits(data: Array) -> Array:
    """The bits of a narrow float, for the parts of the interpreter that know plain numpy only."""
    return data.view(bits_dtype(data.dtype))


def bits_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of an array's bits, if it holds narrow floats; otherwise its own."""
    return _BITS.get(dtype, dtype)
