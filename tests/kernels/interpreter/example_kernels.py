"""Small kernels, some of them wrong on purpose, that the tests of the interpreter run."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def copy_kernel(
    x_ptr: Any, out_ptr: Any, n: Any, MASKED: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if MASKED:
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        tl.store(out_ptr + offsets, x, mask=offsets < n)
    else:
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n))


@triton.jit
def count_kernel(x_ptr: Any, counts_ptr: Any, n: Any, BLOCK: tl.constexpr) -> None:
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.atomic_add(counts_ptr + x, 1, mask=offsets < n)


@triton.jit
def swap_kernel(lock_ptr: Any, at: Any) -> None:
    tl.atomic_cas(lock_ptr + at, 0, 1)


@triton.jit
def multiply_add_kernel(a_ptr: Any, b_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr) -> None:
    offsets = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)
    tl.store(out_ptr + offsets, a * b + a)


@triton.jit
def cast_kernel(x_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr) -> None:
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets).to(out_ptr.dtype.element_ty))


@triton.jit
def _double(x: Any) -> Any:
    return x + x


@triton.jit
def row_sum_kernel(x_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr) -> None:
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr, tl.sum(_double(x)))


@triton.jit
def maximum_kernel(x_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr) -> None:
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.maximum(x, 0.0))
    tl.store(out_ptr + BLOCK, tl.max(x))


@triton.jit
def _append(a: Any, a_digits: Any, b: Any, b_digits: Any) -> Any:
    """Write b behind a. The order matters, and so does how often each is taken."""
    return a * b_digits + b, a_digits * b_digits


@triton.jit
def digits_kernel(
    x_ptr: Any, out_ptr: Any, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr
) -> None:
    """Write the digits of each row (or column) side by side, as one number."""
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + at)
    number, _digits = tl.reduce((x, tl.full([ROWS, COLUMNS], 10, tl.int64)), AXIS, _append)
    tl.store(out_ptr + tl.arange(0, number.shape[0]), number)


@triton.jit
def dot_kernel(a_ptr: Any, b_ptr: Any, out_ptr: Any, PRECISION: tl.constexpr) -> None:
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    out = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision=PRECISION)
    tl.store(out_ptr + at, out)


@triton.jit
def assert_kernel(x_ptr: Any, BLOCK: tl.constexpr) -> None:
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.device_assert(x >= 0, "x must not be negative")


@triton.jit
def tanh_kernel(x_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr) -> None:
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, libdevice.tanh(tl.load(x_ptr + offsets)))


@triton.jit
def square_then_product_kernel(a_ptr: Any, b_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr) -> None:
    offsets = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)
    tl.store(out_ptr + offsets, a * a)
    tl.store(out_ptr + BLOCK + offsets, a * b)


@triton.jit
def plus_kernel(x_ptr: Any, out_ptr: Any, ADDEND: tl.constexpr) -> None:
    tl.store(out_ptr, (tl.load(x_ptr) != 0) + ADDEND)


@triton.jit
def load_or_kernel(x_ptr: Any, out_ptr: Any, there: Any, other: Any) -> None:
    tl.store(out_ptr, tl.load(x_ptr, mask=there != 0, other=other))


@triton.jit
def twice_kernel(x_ptr: Any, out_ptr: Any) -> None:
    tl.store(out_ptr, tl.twice(tl.load(x_ptr)))  # which a test adds to the language
