"""The kernels of masked softmax and of its gradient for rows of fp16 or bf16 that fit packed only.

A row stays in registers as it lies in memory, two positions a register, and is widened again for
each use: to find its maximum, to sum, and to store. So registers hold rows of twice the length, or
two rows a multiprocessor, of which one is read while the other is stored. On an H200, [4096, 32768] bf16: 135.7 us,
widened 164.0, read twice 175.9; its gradient 197.6, read twice 236.4. Of 65,536 it is 99.0, read twice 87.8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels import _softmax
from warpcall_kernels._softmax import (
    edge_columns,
    heads,
    place,
    round_up,
    row_limits,
    row_start,
    row_starts,
)
from warpcall_kernels._softmax_forward import factor_of
from warpcall_kernels._softmax_gradient import PLAIN
from warpcall_kernels._torch import VECTOR_BYTES

# Positions of a row at most, and more than half of it at least: rows of less do well widened.
COLUMNS = tl.constexpr(32768)
WARPS = 16  # for each operand held: 128 bytes a thread
MASKED_REGISTERS = 64  # at most, so that two blocks fit a multiprocessor; without a mask it takes no more by itself
STEP = tl.constexpr(2048)  # pairs, 16 bytes a thread
PAIR_MASKED = tl.constexpr(0x0101)


def packed(columns: int, itemsize: int, align: int, held: int) -> dict[str, int] | None:
    """What a kernel that holds so many operands of a row is compiled for; None: another serves it."""
    whole_groups = align * itemsize == VECTOR_BYTES
    if itemsize != 2 or not whole_groups or triton.next_power_of_2(columns) != COLUMNS.value:
        return None
    return {"zero": 0, "num_warps": WARPS * held}


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
def _again(words: tl.tensor, zero: tl.tensor) -> tl.tensor:
    """The same words. The compiler does not know, so it does not keep what it made of them before."""
    return words ^ zero.to(tl.uint32)


@triton.jit
def _counts(
    mask_ptr: tl.tensor,
    pair: tl.tensor,
    limit: tl.tensor,
    ALIGN: tl.constexpr,
    PREFIX: tl.constexpr,
) -> tl.tensor:
    """Whether the first and the second position of each pair count, up to `limit`."""
    first = 2 * pair < limit
    second = first  # of whole groups, but
    if PREFIX:
        second = 2 * pair + 1 < limit
    if mask_ptr is not None:
        ptr = tl.multiple_of(mask_ptr.to(tl.pointer_type(tl.uint16), bitcast=True), ALIGN)
        inside = pair < round_up(limit, ALIGN) // 2
        masked = tl.load(ptr + pair, mask=inside, other=PAIR_MASKED)
        first = first & ((masked & 0xFF) == 0)
        second = second & ((masked & 0xFF00) == 0)
    return first, second


@triton.jit
def _store_odd(
    out_words: tl.tensor,
    mask_ptr: tl.tensor,
    total: tl.tensor,
    whole: tl.tensor,
    limit: tl.tensor,
    ALIGN: tl.constexpr,
    PREFIX: tl.constexpr,
    DTYPE: tl.constexpr,
) -> None:
    """A row with a NaN sum once more: a NaN or inf counts, or nothing does. What counts is NaN, if anything.

    A few pairs at a time: it is rare, and should cost no registers.
    """
    tl.debug_barrier()  # so that what is stored now stays, whichever threads stored before
    for begin in range(0, whole // 2, STEP):
        pair = begin + tl.arange(0, STEP).to(limit.dtype)
        first, second = _counts(mask_ptr, pair, limit, ALIGN, PREFIX)
        y, y2 = tl.where(first, total, 0.0), tl.where(second, total, 0.0)
        tl.store(out_words + pair, _pairs(y, y2, DTYPE), mask=pair < whole // 2)


@triton.jit(
    do_not_specialize=(*_softmax.PLAIN, "zero"),
    do_not_specialize_on_alignment=_softmax.UNALIGNED,
)
def masked_softmax_packed_kernel(
    x_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    places: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    diagonal: tl.tensor,
    x_strides: tl.tensor,
    mask_strides: tl.tensor,
    lengths_strides: tl.tensor,
    q_strides: tl.tensor,
    out_strides: tl.tensor,
    stride_mk: tl.tensor,
    zero: tl.tensor,
    CAUSAL: tl.constexpr,
    EDGES: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
) -> None:
    """One row, of at most COLUMNS positions besides its edges."""
    PREFIX: tl.constexpr = CAUSAL or (lengths_ptr is not None)
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    # -inf and -inf
    NOTHING: tl.constexpr = 0xFF80FF80 if tl.bfloat16 == DTYPE else 0xFC00FC00
    at, rows, _ = place(1, 1, places, inner, count, WIDE)
    columns = columns.to(rows.dtype)
    limit = rows * 0 + columns
    if PREFIX:
        limit = row_limits(
            lengths_ptr, at, lengths_strides, q_strides, rows, columns, diagonal, CAUSAL
        )
    limit = tl.max(limit, axis=0)
    heads_of_rows = rows * 0
    if EDGES:
        heads_of_rows = heads(at, rows, out_strides, ALIGN)
    head = tl.max(heads_of_rows, axis=0)
    columns -= head  # from here on positions are counted from the first whole group
    limit -= head
    whole = columns // ALIGN * ALIGN
    most = tl.minimum(limit, whole)
    x_ptr += row_start(row_starts(at, rows, x_strides, heads_of_rows, EDGES, ALIGN), ALIGN)
    out_ptr += row_start(row_starts(at, rows, out_strides, heads_of_rows, EDGES, ALIGN), ALIGN)
    if mask_ptr is not None:  # its groups begin at multiples of their size, too
        mask_ptr += _softmax.start(at, mask_strides, 1) + head * stride_mk
    factor = factor_of(scale, True, tl.float32)
    pair = tl.arange(0, COLUMNS // 2).to(rows.dtype)

    row = tl.load(_as_words(x_ptr) + pair, mask=pair < round_up(most, ALIGN) // 2, other=NOTHING)
    if PREFIX or mask_ptr is not None:
        first, second = _counts(mask_ptr, pair, most, ALIGN, PREFIX)
        row = tl.where(first, row, (row & 0xFFFF0000) | (NOTHING & 0xFFFF))
        row = tl.where(second, row, (row & 0xFFFF) | (NOTHING & 0xFFFF0000))
    x, x2 = _halves(row, DTYPE)
    top = tl.max(tl.maximum(x, x2))
    if EDGES:
        edge = tl.ravel(edge_columns(heads_of_rows[:, None], whole, columns, ALIGN))
        edge_counts = edge < limit
        x_edge = tl.load(x_ptr + edge, mask=edge_counts, other=float("-inf")).to(tl.float32)
        if mask_ptr is not None:
            masked = tl.load(mask_ptr + edge * stride_mk, mask=edge_counts, other=1)
            edge_counts = edge_counts & (masked == 0)
            x_edge = tl.where(edge_counts, x_edge, float("-inf"))
        top = tl.maximum(top, tl.max(x_edge, axis=0))
    x, x2 = _halves(_again(row, zero), DTYPE)
    total = tl.sum(tl.exp2((x - top) * factor) + tl.exp2((x2 - top) * factor))
    if EDGES:
        y_edge = tl.exp2((x_edge - top) * factor)
        total += tl.sum(y_edge, axis=0)
        y_edge = tl.where(edge_counts, y_edge * (1.0 / total), 0.0)
        tl.store(out_ptr + edge, y_edge.to(DTYPE), mask=edge < columns)
    share = 1.0 / total
    x, x2 = _halves(_again(row, zero * 2), DTYPE)
    y, y2 = tl.exp2((x - top) * factor) * share, tl.exp2((x2 - top) * factor) * share
    out_words = _as_words(out_ptr)
    tl.store(out_words + pair, _pairs(y, y2, DTYPE), mask=pair < whole // 2)
    if PREFIX or mask_ptr is not None:
        odd = (total != total).to(tl.int32)  # noqa: PLR0124  # so NaN is found
        if odd != 0:
            _store_odd(out_words, mask_ptr, total, whole, most, ALIGN, PREFIX, DTYPE)


@triton.jit
def _product(g: tl.tensor, y: tl.tensor) -> tl.tensor:
    return tl.where(y == 0.0, 0.0, g) * y


@triton.jit
def _grad(g: tl.tensor, y: tl.tensor, total: tl.tensor, scale: tl.tensor) -> tl.tensor:
    return tl.where(y == 0.0, 0.0, y * (g - total) * tl.full([], scale, tl.float32))


@triton.jit(do_not_specialize=(*PLAIN, "zero"), do_not_specialize_on_alignment=("inner",))
def masked_softmax_backward_packed_kernel(
    g_ptr: tl.tensor,
    y_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    places: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    g_strides: tl.tensor,
    y_strides: tl.tensor,
    out_strides: tl.tensor,
    zero: tl.tensor,
    EDGES: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
) -> None:
    """One row of both operands, of at most COLUMNS positions besides its edges."""
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    at, rows, _ = place(1, 1, places, inner, count, WIDE)
    head = rows * 0
    if EDGES:
        head = heads(at, rows, out_strides, ALIGN)
    g_ptr += row_start(row_starts(at, rows, g_strides, head, EDGES, ALIGN), ALIGN)
    y_ptr += row_start(row_starts(at, rows, y_strides, head, EDGES, ALIGN), ALIGN)
    out_ptr += row_start(row_starts(at, rows, out_strides, head, EDGES, ALIGN), ALIGN)
    columns = columns.to(rows.dtype) - tl.max(head, axis=0)
    whole = columns // ALIGN * ALIGN
    pair = tl.arange(0, COLUMNS // 2).to(rows.dtype)
    inside = pair < whole // 2

    row_g = tl.load(_as_words(g_ptr) + pair, mask=inside, other=0)
    row_y = tl.load(_as_words(y_ptr) + pair, mask=inside, other=0)
    g, g2 = _halves(row_g, DTYPE)
    y, y2 = _halves(row_y, DTYPE)
    total = tl.sum(_product(g, y) + _product(g2, y2))
    if EDGES:
        edge = tl.ravel(edge_columns(head[:, None], whole, columns, ALIGN))
        edge_g = tl.load(g_ptr + edge, mask=edge < columns, other=0.0).to(tl.float32)
        edge_y = tl.load(y_ptr + edge, mask=edge < columns, other=0.0).to(tl.float32)
        total += tl.sum(_product(edge_g, edge_y), axis=0)
        edge_grad = _grad(edge_g, edge_y, total, scale)
        tl.store(out_ptr + edge, edge_grad.to(DTYPE), mask=edge < columns)
    g, g2 = _halves(_again(row_g, zero), DTYPE)
    y, y2 = _halves(_again(row_y, zero), DTYPE)
    grads = _pairs(_grad(g, y, total, scale), _grad(g2, y2, total, scale), DTYPE)
    tl.store(_as_words(out_ptr) + pair, grads, mask=inside)
