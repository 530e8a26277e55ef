"""What Triton's front end asks of a builder, computed at once: `CheckedBuilder`."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from warpcall_kernels.interpreter import libdevice
from warpcall_kernels.interpreter.dtypes import (
    LARGEST,
    NARROW,
    Array,
    bits,
    bits_dtype,
    most_nbytes,
    np_dtype,
)
from warpcall_kernels.interpreter.errors import CannotInterpret
from warpcall_kernels.interpreter.memory import active, memory, update

DEPENDENT_LAUNCH = (
    "griddepcontrol."  # begins assembly that does nothing where launches don't overlap
)


class Options(stock.InterpreterOptions):  # type: ignore[misc]  # triton has no types
    """The options of a target: those that only a compiler has cannot be asked for."""

    def __init__(self) -> None:
        precisions = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
        super().__init__(
            debug=True,  # so that `device_assert` asserts
            sanitize_overflow=False,
            allowed_dot_input_precisions=precisions,
        )

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name, f"the option {name} of a compiler")


class CheckedBuilder(stock.InterpreterBuilder):  # type: ignore[misc]  # triton has no types
    """Builds values instead of code, with the arithmetic of a GPU, and checks each access."""

    def __getattr__(self, name: str) -> NoReturn:
        what = name.removeprefix("create_").replace("_", " ")
        _refuse(name, f"Triton's interpreter has no operation {what}")

    def get_bf16(self, value: float) -> TensorHandle:
        return TensorHandle(np.array([value], NARROW[tl.bfloat16]), tl.bfloat16)

    def get_all_ones_value(self, dtype: Any) -> TensorHandle:
        return TensorHandle(np.array([-1]).astype(np_dtype(dtype)), dtype.scalar)

    # memory

    def create_masked_load(
        self,
        ptrs: Any,
        mask: Any,
        other: Any,
        cache_modifier: Any,
        eviction_policy: Any,
        is_volatile: Any,
    ) -> TensorHandle:
        on = active(mask)
        memory.check("load", ptrs, on)
        dtype = ptrs.get_element_ty()
        held = np_dtype(dtype)
        fill = np.zeros(ptrs.data.shape, bits_dtype(held)) if other is None else bits(other.data)
        loaded = stock._interpreter.load(ptrs.data, on, fill, fill.dtype)
        return TensorHandle(loaded.view(held), dtype)

    def create_masked_store(
        self, ptrs: Any, value: Any, mask: Any, cache: Any, eviction: Any
    ) -> Any:
        on = active(mask)
        memory.check("store", ptrs, on)
        return stock._interpreter.store(ptrs.data, bits(value.data), on)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        memory.check("atomic", ptr, None)
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    def create_atomic_rmw(
        self, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        memory.check("atomic", ptr, mask.data)
        if val.data.dtype not in NARROW.values():
            return super().create_atomic_rmw(op, ptr, val, mask, sem, scope)
        if op != ir.ATOMIC_OP.FADD:
            raise CannotInterpret(f"the atomic operation {op} on {val.dtype}")
        return TensorHandle(update(ptr, val.data, mask.data, np.add), val.dtype.scalar)

    def create_int_to_ptr(self, src: Any, dst_type: Any) -> TensorHandle:
        memory.has_made_pointers = True
        return self.create_bitcast(src, dst_type)

    # shapes: what numpy's own functions do, which take longer than the rest of an operation

    def create_splat(self, ret_ty: Any, arg: Any) -> TensorHandle:
        data, held = arg.data, np_dtype(arg.dtype)
        if data.size > 1:  # a block of equal elements
            data = data.reshape(-1)[:1]
        data = data.astype(held, copy=False).repeat(ret_ty.numel)
        if len(ret_ty.shape) > 1:
            data = data.reshape(tuple(ret_ty.shape))
        return TensorHandle(data, arg.dtype.scalar)

    def create_expand_dims(self, arg: Any, axis: int) -> TensorHandle:
        shape = list(arg.data.shape)
        shape.insert(axis, 1)
        return TensorHandle(arg.data.reshape(shape), arg.dtype.scalar)

    # arithmetic

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> TensorHandle:
        data, dtype = op(lhs.data, rhs.data), lhs.dtype.scalar
        if data.itemsize > most_nbytes(dtype):
            data = data.astype(np_dtype(dtype))
        return TensorHandle(data, dtype)

    def cast_impl(self, src: Any, dst_type: Any) -> TensorHandle:
        held = np_dtype(dst_type)
        data = src.data
        if held in LARGEST and src.dtype.scalar.is_floating():
            data = np.clip(data.astype(np.float32), -LARGEST[held], LARGEST[held])
        return TensorHandle(data.astype(held), dst_type.scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding: Any) -> TensorHandle:
        if rounding != ir.ROUNDING_MODE.RTZ:
            return self.cast_impl(src, dst_type)
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            raise CannotInterpret(f"rounding {src.dtype} to {dst_type} towards zero")
        upper = (src.data.view(np.uint32) >> 16).astype(np.uint16)
        return TensorHandle(upper.view(NARROW[tl.bfloat16]), tl.bfloat16)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
        if propagate_nan == ir.PROPAGATE_NAN.ALL:
            return self.ternary_op(arg, low, high, _clip)
        return self.ternary_op(arg, low, high, lambda x, a, b: np.fmin(np.fmax(x, a), b))

    def create_fcmpONE(self, lhs: Any, rhs: Any) -> Any:  # noqa: N802  # the builder's own name
        return self.binary_op(lhs, rhs, lambda a, b: (a < b) | (a > b))

    def create_fma(self, x: Any, y: Any, z: Any) -> TensorHandle:
        found = libdevice.fma(x.data, y.data, z.data)
        return TensorHandle(found.astype(z.data.dtype), z.dtype.scalar)

    def create_umulhi(self, lhs: Any, rhs: Any) -> Any:
        left, right = (
            TensorHandle(np.ascontiguousarray(x.data).view(f"u{x.data.itemsize}"), x.dtype)
            for x in (lhs, rhs)
        )
        found = super().create_umulhi(left, right)
        return TensorHandle(found.data.view(lhs.data.dtype), lhs.dtype.scalar)

    def create_dot(self, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> TensorHandle:
        tf32 = precision == ir.INPUT_PRECISION.TF32
        left, right = (_operand(x.data, d.data.dtype, tf32) for x in (a, b))
        return TensorHandle(np.matmul(left, right) + d.data, d.dtype.scalar)

    # code for GPUs

    def create_extern_elementwise(
        self, library: str, path: str, symbol: str, args: Any, returns: Any, pure: bool
    ) -> TensorHandle:
        found = libdevice.apply(symbol, [a.data for a in args], np_dtype(returns))
        return TensorHandle(found, returns.scalar)

    def create_inline_asm(
        self, text: str, constraints: str, values: Any, types: Any, pure: bool, pack: int
    ) -> Any:
        if not text.startswith(DEPENDENT_LAUNCH):
            raise CannotInterpret(f"inline assembly: {' '.join(text.split())[:60]}")
        result = TensorHandle(np.zeros(1, np.int32), tl.int32)
        return type("Assembly", (), {"get_result": lambda self, at: result})()


def _refuse(name: str, what: str) -> NoReturn:
    if name.startswith("__"):  # Python looks for these, and can do without
        raise AttributeError(name)
    raise CannotInterpret(what)


def _clip(x: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _operand(data: Array, dtype: np.dtype[Any], tf32: bool) -> Array:
    if tf32 and data.dtype == np.float32:  # 10 bits of mantissa, ties away from zero
        data = ((data.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return data.astype(dtype)
