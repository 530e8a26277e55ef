"""The kernel of masked softmax's gradient for rows of fp16 or bf16 that fit packed only.

A row of both operands stays in registers as it lies in memory, two positions a register, and is
widened again for each use: to sum, and to store. So registers hold rows of twice the length. On an
H200, [4096, 32768] bf16 takes 197.6 us, read twice 236.4.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._softmax.backward import PLAIN, grad_of
from warpcall_kernels._softmax.rows import (
    end_columns,
    program_rows,
    row_start,
    row_starts,
    unaligned_prefix,
)
from warpcall_kernels.op.launch import VECTOR_BYTES

# Positions of a row at most, and more than half of it at least: rows of less do well widened.
COLUMNS = tl.constexpr(32768)
WARPS = 32  # 64 bytes of each operand a thread


def packed(columns: int, itemsize: int, align: int) -> dict[str, int] | None:
    """What the kernel is compiled for; None: another serves such rows."""
    whole_groups = align * itemsize == VECTOR_BYTES
    if itemsize != 2 or not whole_groups or triton.next_power_of_2(columns) != COLUMNS.value:
        return None
    return {"zero": 0, "num_warps": WARPS}


@triton.jit
def _as_words(ptr: tl.tensor) -> tl.tensor:
    """A pointer to the pairs of positions."""
    return ptr.to(tl.pointer_type(tl.uint32), bitcast=True)


@triton.jit
def _halves(words: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """The first and the second position of each pair, as fp32."""
    if tl.bfloat16 == DTYPE:
        first = (words << 16).to(tl.float32, bitcast=True)
        second = (words & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        first = words.to(tl.uint16).to(DTYPE, bitcast=True).to(tl.float32)
        second = (words >> 16).to(tl.uint16).to(DTYPE, bitcast=True).to(tl.float32)
    return first, second


@triton.jit
def _pairs(first: tl.tensor, second: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """Two results, rounded, as one word."""
    low = first.to(DTYPE).to(tl.uint16, bitcast=True).to(tl.uint32)
    high = second.to(DTYPE).to(tl.uint16, bitcast=True).to(tl.uint32)
    return low | (high << 16)


@triton.jit
def opaque_copy(words: tl.tensor, zero: tl.tensor) -> tl.tensor:
    """The same words. The compiler does not know, so it does not keep what it made of them before."""
    return words ^ zero.to(tl.uint32)


@triton.jit
def _product(g: tl.tensor, y: tl.tensor) -> tl.tensor:
    return tl.where(y == 0.0, 0.0, g) * y


@triton.jit(do_not_specialize=(*PLAIN, "zero"), do_not_specialize_on_alignment=("inner",))
def masked_softmax_backward_packed_kernel(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    outer: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    g_strides: tl.tensor,
    y_strides: tl.tensor,
    out_strides: tl.tensor,
    zero: tl.tensor,
    SKEWED: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
) -> None:
    """One row of both operands, of at most COLUMNS positions besides its ends."""
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    at, rows, _ = program_rows(1, 1, outer, inner, count, WIDE)
    head = rows * 0
    if SKEWED:
        head = unaligned_prefix(at, rows, out_strides, ALIGN)
    g_ptr += row_start(row_starts(at, rows, g_strides, head, SKEWED, ALIGN), ALIGN)
    y_ptr += row_start(row_starts(at, rows, y_strides, head, SKEWED, ALIGN), ALIGN)
    out_ptr += row_start(row_starts(at, rows, out_strides, head, SKEWED, ALIGN), ALIGN)
    columns = columns.to(rows.dtype) - tl.max(head, axis=0)
    whole = columns // ALIGN * ALIGN
    pair = tl.arange(0, COLUMNS // 2).to(rows.dtype)
    inside = pair < whole // 2

    row_g = tl.load(_as_words(g_ptr) + pair, mask=inside, other=0)
    row_y = tl.load(_as_words(y_ptr) + pair, mask=inside, other=0)
    g, g2 = _halves(row_g, DTYPE)
    y, y2 = _halves(row_y, DTYPE)
    total = tl.sum(_product(g, y) + _product(g2, y2))
    if SKEWED:
        ends = tl.ravel(end_columns(head[:, None], whole, columns, ALIGN))
        ends_g = tl.load(g_ptr + ends, mask=ends < columns, other=0.0).to(tl.float32)
        ends_y = tl.load(y_ptr + ends, mask=ends < columns, other=0.0).to(tl.float32)
        total += tl.sum(_product(ends_g, ends_y), axis=0)
        ends_grad = grad_of(ends_g, ends_y, total, scale, tl.float32)
        tl.store(out_ptr + ends, ends_grad.to(DTYPE), mask=ends < columns)
    g, g2 = _halves(opaque_copy(row_g, zero), DTYPE)
    y, y2 = _halves(opaque_copy(row_y, zero), DTYPE)
    first = grad_of(g, y, total, scale, tl.float32)
    grads = _pairs(first, grad_of(g2, y2, total, scale, tl.float32), DTYPE)
    tl.store(_as_words(out_ptr) + pair, grads, mask=inside)
