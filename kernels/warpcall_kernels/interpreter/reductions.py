"""Reductions and scans in the order and the precision of a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from warpcall_kernels.interpreter.dtypes import Array, np_dtype

_block_types: dict[tuple[str, tuple[int, ...]], Any] = {}
_stock_sum = stock.ReduceOps.sum
_stock_scans = {"cumsum": stock.ScanOps.cumsum, "cumprod": stock.ScanOps.cumprod}


def install() -> None:
    """Replace the reductions and scans of Triton's interpreter."""
    stock.ReduceScanOpInterface.to_tensor = _to_tensor
    stock.ReduceOps.min_max = _min_max
    stock.ReduceOps.sum = _sum
    stock.ReduceOps.generic_reduce = _reduce
    stock.ScanOps.generic_scan = _scan
    stock.ScanOps.cumsum = lambda self, tensor: _scan_of_numpy(self, tensor, "cumsum")
    stock.ScanOps.cumprod = lambda self, tensor: _scan_of_numpy(self, tensor, "cumprod")


def _to_tensor(self: Any, data: Any, dtype: Any) -> Any:
    """As the stock one, but makes a type once."""
    held = np_dtype(dtype)
    if shape := getattr(data, "shape", ()):
        array, kind = data.astype(held, copy=False), _block_type(dtype, shape)
    else:
        array, kind = np.array([data], held), dtype
    return tl.tensor(TensorHandle(array, dtype.scalar), kind)


def _block_type(dtype: Any, shape: tuple[int, ...]) -> Any:
    key = dtype.name, shape  # some types have no hash
    if key not in _block_types:
        _block_types[key] = tl.block_type(dtype, [*shape])
    return _block_types[key]


def _min_max(self: Any, tensor: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
    """As the stock one, without its warning when all that is reduced is NaN."""
    quiet = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}
    tensor = tensor[0] if isinstance(tensor, tuple) else tensor
    data, how = tensor.handle.data, {"axis": self.axis, "keepdims": self.keep_dims}
    value = self.to_tensor(quiet.get(val_reduce_op, val_reduce_op)(data, **how), tensor.dtype)
    if idx_reduce_op is None:
        return value
    return value, self.to_tensor(idx_reduce_op(data, **how), tl.int32)


def _sum(self: Any, tensor: Any) -> Any:
    """A GPU adds 16-bit floats in pairs; numpy would add bf16 one after another, and lose more."""
    if _is_short_float(tensor):
        return _reduce(self, (tensor,))[0]
    return _stock_sum(self, tensor)


def _scan_of_numpy(self: Any, tensor: Any, name: str) -> Any:
    return _scan(self, (tensor,)) if _is_short_float(tensor) else _stock_scans[name](self, tensor)


def _is_short_float(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating() and tensor.dtype.primitive_bitwidth < 32)


def _reduce(self: Any, tensors: tuple[Any, ...]) -> list[Any]:
    """Combine pairs of neighbouring slices along the axis, until one is left."""
    axis = 0 if self.axis is None else self.axis
    arrays = [t.handle.data.reshape(-1) if self.axis is None else t.handle.data for t in tensors]
    slices = [np.moveaxis(a, axis, 0) for a in arrays]
    while len(slices[0]) > 1:
        count = len(slices[0]) // 2
        left, right = ([s[first : 2 * count : 2] for s in slices] for first in (0, 1))
        combined = _combined(self, tensors, left, right)
        slices = [
            np.concatenate([c.reshape(count, *s.shape[1:]), s[2 * count :]])
            for c, s in zip(combined, slices, strict=True)
        ]
    results = [s[0] for s in slices]
    if self.keep_dims and self.axis is None:
        results = [
            r.reshape((1,) * t.handle.data.ndim) for r, t in zip(results, tensors, strict=True)
        ]
    elif self.keep_dims:
        results = [np.expand_dims(r, axis) for r in results]
    return [self.to_tensor(r, t.dtype.scalar) for r, t in zip(results, tensors, strict=True)]


def _scan(self: Any, tensors: tuple[Any, ...]) -> list[Any]:
    """Combine each slice with the one 1, 2, 4, ... before it, as the threads of a GPU do."""
    slices = [np.moveaxis(t.handle.data, self.axis, 0) for t in tensors]
    distance = 1
    while distance < len(slices[0]):
        # Blocks must have 2^n elements, so the first slices are combined too, and then dropped.
        before = [np.concatenate([s[:distance], s[:-distance]]) for s in slices]
        combined = _combined(self, tensors, before, slices)
        slices = [
            np.concatenate([s[:distance], c.reshape(s.shape)[distance:]])
            for s, c in zip(slices, combined, strict=True)
        ]
        distance *= 2
    return [
        self.to_tensor(np.moveaxis(s, 0, self.axis), t.dtype.scalar)
        for s, t in zip(slices, tensors, strict=True)
    ]


def _combined(
    self: Any, tensors: tuple[Any, ...], left: list[Array], right: list[Array]
) -> list[Array]:
    """The results of the kernel's function for these slices."""
    arguments = [
        self.to_tensor(s, t.dtype.scalar)
        for slices in (left, right)
        for s, t in zip(slices, tensors, strict=True)
    ]
    found = self.combine_fn.fn(*arguments)
    return [part.handle.data for part in (found if isinstance(found, tuple) else (found,))]
