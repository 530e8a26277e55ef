"""The kernels of masked softmax and of its gradient for rows of fp16 or bf16 that fit packed only.

A row stays in registers as it lies in memory, two positions a register, and is widened again for
each use: to find its maximum, to sum, and to store. So registers hold rows of twice the length, or
two rows a multiprocessor, of which one is read while the other is stored.
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
from warpcall_kernels._softmax_mask import mask_of_row, masked_pairs
from warpcall_kernels._torch import VECTOR_BYTES

# Bytes of a row, of all operands, that a block holds: 32 registers a thread of 1,024.
MOST_BYTES = 131072
PACKED_BYTES = 65536  # rows of less do well widened
THREAD_BYTES = 128  # a thread holds, of all operands
PART_BYTES = 16  # of a part, a thread takes: what is in registers beside the row is for one part


def packed(
    columns: int, itemsize: int, align: int, held: int, registers: int
) -> dict[str, int] | None:
    """What a kernel is compiled for that holds so many operands of a row, or None: another serves it.

    The warps that hold the row, in which parts they take it, and the most registers a thread, or 0.
    """
    group = VECTOR_BYTES // itemsize
    nbytes = triton.next_power_of_2(max(columns // group, 1)) * VECTOR_BYTES * held
    if itemsize != 2 or align != group or not PACKED_BYTES <= nbytes <= MOST_BYTES:
        return None
    warps = min(32, nbytes // (32 * THREAD_BYTES))
    part = 32 * warps * PART_BYTES // itemsize
    taken = {"zero": 0, "PARTS": triton.cdiv(columns, part), "PART": part, "num_warps": warps}
    return taken | ({"maxnreg": registers} if registers else {})


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
    mask: tl.tensor,
    group: tl.tensor,
    pair: tl.tensor,
    limit: tl.tensor,
    stride_mk: tl.tensor,
    PREFIX: tl.constexpr,
    MASKED: tl.constexpr,
    HOW: tl.constexpr,
) -> tl.tensor:
    """Whether the first and the second position of each pair count."""
    first = 2 * pair < limit
    second = first
    if PREFIX:
        second = 2 * pair + 1 < limit
    if MASKED:
        masked_first, masked_second = masked_pairs(mask, group, pair, limit, stride_mk, HOW)
        first = first & (masked_first == 0)
        second = second & (masked_second == 0)
    return first, second


@triton.jit(
    do_not_specialize=(*_softmax.PLAIN, "zero", "mask_nbytes"),
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
    mask_nbytes: tl.tensor,
    zero: tl.tensor,
    CAUSAL: tl.constexpr,
    EDGES: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    HOW: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    """One row, of at most PARTS times PART positions besides its edges."""
    PREFIX: tl.constexpr = CAUSAL or (lengths_ptr is not None)
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    PAIRS: tl.constexpr = ALIGN // 2  # in a group
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
    MASKED: tl.constexpr = mask_ptr is not None
    mask = None
    mask_from = 0
    if MASKED:
        mask_from = _softmax.start(at, mask_strides, 1) + head * stride_mk
        mask = mask_of_row(mask_ptr, mask_from, mask_nbytes, HOW)
    factor = factor_of(scale, True, tl.float32)
    line = tl.arange(0, PART // ALIGN)[:, None].to(rows.dtype)
    lane = tl.arange(0, PAIRS)[None, :].to(rows.dtype)
    x_words = _as_words(x_ptr)
    out_words = _as_words(out_ptr)

    row: tl.tensor = ()
    for i in tl.static_range(PARTS):
        pair = (line + i * (PART // ALIGN)) * PAIRS + lane
        inside = pair < round_up(most, ALIGN) // 2
        row += (tl.load(x_words + pair, mask=inside, other=NOTHING),)
    if MASKED:
        tl.debug_barrier()  # so that the row is in flight before any of its mask is waited for
    if PREFIX or MASKED:
        left: tl.tensor = ()
        for i in tl.static_range(PARTS):
            group = line + i * (PART // ALIGN)
            first, second = _counts(
                mask, *(group, group * PAIRS + lane, most, stride_mk, PREFIX, MASKED, HOW)
            )
            words = tl.where(first, row[i], (row[i] & 0xFFFF0000) | (NOTHING & 0xFFFF))
            words = tl.where(second, words, (words & 0xFFFF) | (NOTHING & 0xFFFF0000))
            left += (words,)
        row = left
    highest = tl.full([PART // ALIGN, PAIRS], float("-inf"), tl.float32)
    for i in tl.static_range(PARTS):
        x, x2 = _halves(row[i], DTYPE)
        highest = tl.maximum(highest, tl.maximum(x, x2))
    top = tl.max(highest)
    if EDGES:
        edge = tl.ravel(edge_columns(heads_of_rows[:, None], whole, columns, ALIGN))
        edge_counts = edge < limit
        x_edge = tl.load(x_ptr + edge, mask=edge_counts, other=float("-inf")).to(tl.float32)
        if mask_ptr is not None:
            masked = tl.load(mask_ptr + (mask_from + edge * stride_mk), mask=edge_counts, other=1)
            edge_counts = edge_counts & (masked == 0)
            x_edge = tl.where(edge_counts, x_edge, float("-inf"))
        top = tl.maximum(top, tl.max(x_edge, axis=0))
    totals = tl.zeros([PART // ALIGN, PAIRS], tl.float32)
    for i in tl.static_range(PARTS):
        x, x2 = _halves(_again(row[i], zero), DTYPE)
        totals += tl.exp2((x - top) * factor) + tl.exp2((x2 - top) * factor)
    total = tl.sum(totals)
    if EDGES:
        y_edge = tl.exp2((x_edge - top) * factor)
        total += tl.sum(y_edge, axis=0)
        y_edge = tl.where(edge_counts, y_edge * (1.0 / total), 0.0)
        tl.store(out_ptr + edge, y_edge.to(DTYPE), mask=edge < columns)
    share = 1.0 / total
    odd = 0
    if PREFIX or MASKED:
        odd = (total != total).to(tl.int32)  # noqa: PLR0124  # so NaN is found
    for i in tl.static_range(PARTS):
        pair = (line + i * (PART // ALIGN)) * PAIRS + lane
        x, x2 = _halves(_again(row[i], zero * 2), DTYPE)
        y, y2 = tl.exp2((x - top) * factor) * share, tl.exp2((x2 - top) * factor) * share
        tl.store(out_words + pair, _pairs(y, y2, DTYPE), mask=pair < whole // 2)
    if PREFIX or MASKED:  # noqa: SIM102  # one is known when it is compiled
        if odd != 0:  # a NaN or inf counts, or nothing does: what counts is NaN, if anything
            line += zero  # the compiler does not know, so it keeps no pointers for this
            for i in tl.static_range(PARTS):
                group = line + i * (PART // ALIGN)
                pair = group * PAIRS + lane
                first, second = _counts(mask, group, pair, most, stride_mk, PREFIX, MASKED, HOW)
                y, y2 = tl.where(first, total, 0.0), tl.where(second, total, 0.0)
                tl.store(out_words + pair, _pairs(y, y2, DTYPE), mask=pair < whole // 2)


@triton.jit
def _product(g: tl.tensor, y: tl.tensor) -> tl.tensor:
    return tl.where(y == 0.0, 0.0, g) * y


@triton.jit
def _grad(g: tl.tensor, y: tl.tensor, total: tl.tensor, scale: tl.tensor) -> tl.tensor:
    return tl.where(y == 0.0, 0.0, y * (g - total) * tl.full([], scale, tl.float32))


@triton.jit(
    do_not_specialize=(
        "columns",
        "places",
        "count",
        "g_strides",
        "y_strides",
        "out_strides",
        "zero",
    ),
    do_not_specialize_on_alignment=("inner",),
)
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
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    HELD: tl.constexpr,
) -> None:
    """One row; with HELD 1 only y is kept, and g read again from the L2."""
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
    line = tl.arange(0, PART // 2).to(rows.dtype)
    g_words, y_words, out_words = _as_words(g_ptr), _as_words(y_ptr), _as_words(out_ptr)

    row_g: tl.tensor = ()
    row_y: tl.tensor = ()
    for i in tl.static_range(PARTS):
        pair = line + i * (PART // 2)
        if HELD == 2:
            row_g += (tl.load(g_words + pair, mask=pair < whole // 2, other=0),)
        row_y += (tl.load(y_words + pair, mask=pair < whole // 2, other=0),)
    totals = tl.zeros([PART // 2], tl.float32)
    for i in tl.static_range(PARTS):
        pair = line + i * (PART // 2)
        if HELD == 2:
            words = row_g[i]
        else:
            inside = pair < whole // 2
            words = tl.load(g_words + pair, mask=inside, other=0, eviction_policy="evict_last")
        g, g2 = _halves(words, DTYPE)
        y, y2 = _halves(row_y[i], DTYPE)
        totals += _product(g, y) + _product(g2, y2)
    total = tl.sum(totals)
    if EDGES:
        edge = tl.ravel(edge_columns(head[:, None], whole, columns, ALIGN))
        edge_g = tl.load(g_ptr + edge, mask=edge < columns, other=0.0).to(tl.float32)
        edge_y = tl.load(y_ptr + edge, mask=edge < columns, other=0.0).to(tl.float32)
        total += tl.sum(_product(edge_g, edge_y), axis=0)
        edge_grad = _grad(edge_g, edge_y, total, scale)
        tl.store(out_ptr + edge, edge_grad.to(DTYPE), mask=edge < columns)
    for i in tl.static_range(PARTS):
        pair = line + i * (PART // 2)
        if HELD == 2:
            words = _again(row_g[i], zero)
        else:
            inside = pair < whole // 2
            words = tl.load(g_words + pair, mask=inside, other=0, eviction_policy="evict_first")
        g, g2 = _halves(words, DTYPE)
        y, y2 = _halves(_again(row_y[i], zero), DTYPE)
        grads = _pairs(_grad(g, y, total, scale), _grad(g2, y2, total, scale), DTYPE)
        tl.store(out_words + pair, grads, mask=pair < whole // 2)
