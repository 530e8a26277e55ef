"""Triton's interpreter, made trustworthy: `install()` mends the installed one in place.

The stock interpreter (Triton 3.7) holds bf16 as uint16 and so computes nonsense with it, truncates
where a GPU rounds, ignores `device_assert`, treats NaN in comparisons, minima and maxima as numpy
does, and lets a kernel read and write wherever it likes. Here:

- bf16 and fp8 are ml_dtypes arrays, which round to nearest, ties to even;
- every access is checked: a lane that is not masked off and leaves the tensors given to the kernel
  raises IndexError (a GPU would hide most of these);
- `tl.dot` of fp32 rounds its operands to tf32 unless asked otherwise, as a GPU does;
- `device_assert` asserts, libdevice functions are numpy's, and there is an active driver;
- an error in a kernel reaches the caller as it was raised;
- the front end runs once for each kind of operation: see replay.py;
- a reduction by a function of ours combines neighbouring slices, not one number after another;
- Triton 3.6 bounds loops by tensors with numpy from 2.4 on too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.language.extra import libdevice as generic_libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter as stock
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import TensorHandle

from tests.kernels.interpreter import replay

Array = NDArray[Any]

NARROW: Mapping[Any, np.dtype[Any]] = {
    tl.bfloat16: np.dtype(ml_dtypes.bfloat16),
    tl.float8e4nv: np.dtype(ml_dtypes.float8_e4m3fn),
    tl.float8e5: np.dtype(ml_dtypes.float8_e5m2),
}
LIBDEVICE: Mapping[str, Callable[..., Array]] = {
    name: getattr(np, name)
    for name in (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "pow"),
        *("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc", "rint"),
        *("isnan", "fmin", "fmax", "fmod", "hypot", "copysign"),
    )
} | {"rsqrt": lambda x: 1 / np.sqrt(x), "isinf": np.isinf, "isinfd": np.isinf}

_stock_np_dtype = stock._get_np_dtype
_stock_patch_lang = stock._patch_lang
_np_dtypes: dict[str, np.dtype[Any]] = {}  # by the name of Triton's type


def install() -> None:
    """Replace the parts of `triton.runtime.interpreter` that are wrong; for this whole process."""
    stock._get_np_dtype = _np_dtype
    stock._patch_lang = _patch_lang
    stock._patch_attr = _patch_attr
    stock.GridExecutor = CheckedExecutor
    stock.ReduceOps.min_max = _min_max
    stock.ReduceOps.generic_reduce = _reduce
    stock.interpreter_builder.__class__ = CheckedBuilder
    stock.interpreter_builder.options = stock.InterpreterOptions(
        debug=True, sanitize_overflow=False
    )
    triton.runtime.driver.set_active(CpuDriver())


def _np_dtype(dtype: Any) -> np.dtype[Any]:
    known = _np_dtypes.get(dtype.name)
    if known is None:
        scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        narrow = None if isinstance(scalar, tl.pointer_type) else NARROW.get(scalar)
        known = _np_dtypes[dtype.name] = narrow or _stock_np_dtype(dtype)
    return known


def _bits(data: Array) -> Array:
    """The bits of a narrow float, for the parts of the interpreter that know plain numpy only."""
    return data.view(f"u{data.itemsize}") if data.dtype in NARROW.values() else data


class Memory:
    """The bytes that a kernel may touch: the extents of the tensors given to it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.begins = self.ends = np.empty(0, np.int64)

    def allow(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Allow the bytes of these tensors, from first to last element, and no others."""
        spans = sorted((t.data_ptr(), t.data_ptr() + _span(t), name) for name, t in named)
        self.names = [name for _, _, name in spans]
        self.begins = np.array([begin for begin, _, _ in spans], np.int64)
        ends = np.array([end for _, end, _ in spans], np.int64)
        self.ends = np.maximum.accumulate(ends) if len(ends) else ends

    def check(self, what: str, pointers: TensorHandle, mask: Array | None) -> None:
        """Raise IndexError if an active lane leaves the allowed bytes."""
        addresses = pointers.data.astype(np.int64)
        if mask is not None:
            addresses = addresses[np.broadcast_to(mask.astype(bool), addresses.shape)]
        addresses = addresses.reshape(-1)
        if not addresses.size:
            return
        nbytes = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        lowest = np.searchsorted(self.begins, addresses.min(), "right") - 1
        if lowest >= 0 and addresses.max() + nbytes <= self.ends[lowest]:
            return  # all are in one tensor, as nearly always
        at = np.searchsorted(self.begins, addresses, "right") - 1
        wrong = at < 0
        if len(self.ends):
            wrong |= addresses + nbytes > self.ends[at]
        if wrong.any():
            worst = int(addresses[wrong][0])
            place = f"address {worst}"
            if self.names:
                nearest = max(0, int(at[wrong][0]))
                place = (
                    f"byte {worst - self.begins[nearest]} of {self.names[nearest]}, "
                    f"which has {self.ends[nearest] - self.begins[nearest]}"
                )
            program = stock.interpreter_builder.grid_idx
            raise IndexError(
                f"{what} of {nbytes} bytes at {place}: out of bounds "
                f"in {np.count_nonzero(wrong)} lanes of program {program}"
            )


def _span(t: torch.Tensor) -> int:
    if t.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()


def _tensors(name: str, argument: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(argument, tuple):
        for i, part in enumerate(argument):
            yield from _tensors(f"{name}[{i}]", part)
    elif hasattr(argument, "data_ptr") or hasattr(argument, "base"):
        base = getattr(argument, "base", argument)  # of a TensorWrapper or a TensorDescriptor
        yield name, base if isinstance(base, torch.Tensor) else argument


_memory = Memory()


class CheckedExecutor(stock.GridExecutor):  # type: ignore[misc]  # triton has no types
    """Runs a grid; knows the tensors that it was given."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0")
                super().__call__(*args, **kwargs)
        except InterpreterError as error:
            cause: BaseException = error
            while isinstance(cause, InterpreterError) and cause.__cause__ is not None:
                cause = cause.__cause__
            raise cause from None

    def _init_args_hst(self, args: Any, kwargs: Any) -> Any:
        host_args, host_kwargs = super()._init_args_hst(args, kwargs)
        named = [*zip(self.arg_names, host_args, strict=False), *host_kwargs.items()]
        _memory.allow([pair for name, value in named for pair in _tensors(name, value)])
        return host_args, host_kwargs


class _Everything:
    """Stands for a kernel that sees all of the language, so that one patch serves its callees."""

    __globals__: ClassVar[dict[str, Any]] = {"tl": tl, "core": tl.core}


class _Nested:
    """The scope of a device function: the kernel that calls it has patched the language already."""

    def restore(self) -> None: ...


_patched = False


class _Outermost:
    def __init__(self) -> None:
        global _patched
        self.scope = _stock_patch_lang(_Everything)
        self.scope.set_attr(tl.tensor, "__index__", lambda self: self.handle.data.item())
        for name in ("__bool__", "__index__"):
            self.scope.set_attr(tl.tensor, name, _noted(getattr(tl.tensor, name)))
        stock._patch_builtin(cuda_libdevice, stock.interpreter_builder, self.scope)
        for name in dir(generic_libdevice):
            if hasattr(cuda_libdevice, name) and not name.startswith("_"):
                self.scope.set_attr(generic_libdevice, name, getattr(cuda_libdevice, name))
        _patched = True

    def restore(self) -> None:
        global _patched
        self.scope.restore()
        _patched = False


def _patch_lang(fn: Any) -> _Nested | _Outermost:
    """Once a launch; the stock interpreter patches (and leaks) again for each device function."""
    return _Nested() if _patched else _Outermost()


def _patch_attr(package: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    scope.set_attr(package, name, replay.replayed(member))


def _noted(read: Any) -> Any:
    def reading(tensor: Any) -> Any:
        replay.note_read(tensor)
        return read(tensor)

    return reading


def _min_max(self: Any, tensor: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
    """As the stock one, without its warning when all that is reduced is NaN."""
    quiet = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}
    tensor = tensor[0] if isinstance(tensor, tuple) else tensor
    data, how = tensor.handle.data, {"axis": self.axis, "keepdims": self.keep_dims}
    value = self.to_tensor(quiet.get(val_reduce_op, val_reduce_op)(data, **how), tensor.dtype)
    if idx_reduce_op is None:
        return value
    return value, self.to_tensor(idx_reduce_op(data, **how), tl.int32)


def _reduce(self: Any, tensors: tuple[Any, ...]) -> list[Any]:
    """Combine pairs of neighbouring slices along the axis, until one is left."""
    axis = 0 if self.axis is None else self.axis
    arrays = [t.handle.data.reshape(-1) if self.axis is None else t.handle.data for t in tensors]
    slices = [np.moveaxis(a, axis, 0) for a in arrays]
    while len(slices[0]) > 1:
        count = len(slices[0]) // 2
        pairs = [
            self.to_tensor(s[first : 2 * count : 2], t.dtype.scalar)
            for first in (0, 1)
            for s, t in zip(slices, tensors, strict=True)
        ]
        combined = self.combine_fn.fn(*pairs)
        combined = combined if isinstance(combined, tuple) else (combined,)
        slices = [
            np.concatenate([c.handle.data.reshape(count, *s.shape[1:]), s[2 * count :]])
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


class CheckedBuilder(stock.InterpreterBuilder):  # type: ignore[misc]  # triton has no types
    """Builds values instead of code, with a GPU's arithmetic and a debugger's suspicion."""

    def get_bf16(self, value: float) -> TensorHandle:
        return TensorHandle(np.array([value], NARROW[tl.bfloat16]), tl.bfloat16)

    def get_all_ones_value(self, dtype: Any) -> TensorHandle:
        return TensorHandle(np.array([-1]).astype(_np_dtype(dtype)), dtype.scalar)

    # memory

    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, cache: Any, eviction: Any, volatile: Any
    ) -> TensorHandle:
        _memory.check("load", ptrs, mask.data)
        dtype = ptrs.get_element_ty()
        np_dtype = _np_dtype(dtype)
        if other is None:
            other = TensorHandle(np.zeros_like(ptrs.data, np_dtype), dtype)
        fill = _bits(other.data)
        loaded = stock._interpreter.load(ptrs.data, mask.data, fill, fill.dtype)
        return TensorHandle(loaded.view(np_dtype), dtype)

    def create_masked_store(
        self, ptrs: Any, value: Any, mask: Any, cache: Any, eviction: Any
    ) -> Any:
        _memory.check("store", ptrs, mask.data)
        return stock._interpreter.store(ptrs.data, _bits(value.data), mask.data)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        _memory.check("atomic", ptr, None)
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    def create_atomic_rmw(
        self, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        _memory.check("atomic", ptr, mask.data)
        return super().create_atomic_rmw(op, ptr, val, mask, sem, scope)

    # arithmetic

    def cast_impl(self, src: Any, dst_type: Any) -> TensorHandle:
        return TensorHandle(src.data.astype(_np_dtype(dst_type)), dst_type.scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding: Any) -> TensorHandle:
        if rounding != ir.ROUNDING_MODE.RTZ:
            return self.cast_impl(src, dst_type)
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            raise NotImplementedError(f"rounding {src.dtype} to {dst_type} towards zero")
        upper = (src.data.view(np.uint32) >> 16).astype(np.uint16)
        return TensorHandle(upper.view(NARROW[tl.bfloat16]), tl.bfloat16)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_fcmpONE(self, lhs: Any, rhs: Any) -> Any:  # noqa: N802  # the builder's own name
        return self.binary_op(lhs, rhs, lambda a, b: (a < b) | (a > b))

    def create_dot(self, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> TensorHandle:
        tf32 = precision == ir.INPUT_PRECISION.TF32
        left, right = (_operand(x.data, d.data.dtype, tf32) for x in (a, b))
        return TensorHandle(np.matmul(left, right) + d.data, d.dtype.scalar)

    def create_extern_elementwise(
        self, library: str, path: str, symbol: str, args: Any, returns: Any, pure: bool
    ) -> TensorHandle:
        name = symbol.removeprefix("__nv_")
        function = LIBDEVICE.get(name) or LIBDEVICE.get(name.removesuffix("f"))
        if function is None:
            raise NotImplementedError(f"libdevice's {symbol}: add it to LIBDEVICE")
        data = function(*(a.data for a in args))
        return TensorHandle(data.astype(_np_dtype(returns)), returns.scalar)


def _operand(data: Array, dtype: np.dtype[Any], tf32: bool) -> Array:
    if tf32 and data.dtype == np.float32:  # 10 bits of mantissa, ties away from zero
        data = ((data.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return data.astype(dtype)


class CpuDriver(DriverBase):  # type: ignore[misc]  # triton has no types
    """What a launcher may ask of the active driver when there is no GPU."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is compiled under the interpreter")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("times under the interpreter mean nothing")
