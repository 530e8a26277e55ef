"""The kernel of masked softmax for rows of a few positions: see `_softmax.short_rows`."""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._softmax.device import program_rows, row_limits, row_offset
from warpcall_kernels._softmax.forward import UNSPECIALIZED, factor_of
from warpcall_kernels._softmax.short_rows import (
    of_each_row,
    pack,
    read_run,
    to_groups,
    to_run,
    unpack,
    write_run,
)


@triton.jit
def _larger(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The maximum, or NaN. The compiler drops a -inf that is compared this way."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _counts(
    masked: tl.tensor,
    limits: tl.tensor,
    word: tl.tensor,
    i: tl.constexpr,
    PREFIX: tl.constexpr,
    MASKED: tl.constexpr,
    SHARED: tl.constexpr,
    COLUMNS: tl.constexpr,
    PER: tl.constexpr,
) -> tl.tensor:
    """Whether position i of each word counts; words past the end of a group are numbered, too.

    `masked` has a bit for each position of a SHARED mask, and otherwise a byte for each of a word.
    """
    flat = word * PER + i
    row, col = flat // COLUMNS, flat % COLUMNS
    counts = row < PER
    if PREFIX:
        counts = counts & (col < of_each_row(limits, row, PER))
    if MASKED:
        if SHARED:
            counts = counts & ((masked >> col.to(tl.uint32)) & 1 == 0)
        else:
            counts = counts & ((masked >> (8 * i)) & 0xFF == 0)
    return counts


@triton.jit
def _softmax_run(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.tensor,
    positions: tl.tensor,
    masked: tl.tensor,
    mask_ptr: tl.tensor,
    limits: tl.tensor,
    FULL: tl.constexpr,
    PREFIX: tl.constexpr,
    MASKED: tl.constexpr,
    SHARED: tl.constexpr,
    FOLDED: tl.constexpr,
    ACC: tl.constexpr,
    WORD: tl.constexpr,
    MASKS: tl.constexpr,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PER: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    RUN: tl.constexpr,
) -> None:
    """Softmax of the rows that are the first `positions` positions from `x_ptr` on.

    A mask that rows do not share lies as they do, from `mask_ptr` on; MASKS is the dtype of the masks
    of a word.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    words = read_run(x_ptr, positions, FULL, WORD, BITS, PER, RUN)
    words = to_groups(words, COLUMNS, BLOCK, GROUPS)
    word = tl.arange(0, BLOCK)[:, None]
    factor = factor_of(scale, FOLDED, ACC)
    if MASKED and not SHARED:
        masks = read_run(mask_ptr, positions, FULL, MASKS, tl.uint8, PER, RUN).to(tl.uint32)
        masked = to_groups(masks, COLUMNS, BLOCK, GROUPS)
    xs: tl.tuple = ()
    for i in tl.static_range(PER):
        x = unpack(words, i, BITS, DTYPE, ACC)
        if not FOLDED:
            x *= tl.full([], scale, ACC)
        if PREFIX or MASKED:
            counts = _counts(masked, limits, word, i, PREFIX, MASKED, SHARED, COLUMNS, PER)
            x = tl.where(counts, x, float("-inf"))
        xs = xs + (x,)  # noqa: RUF005
    tops: tl.tuple = ()
    for r in tl.static_range(PER):
        mine = tl.where((word * PER) // COLUMNS == r, xs[0], float("-inf"))
        top = tl.reduce(mine, 0, _larger)
        for i in tl.static_range(1, PER):
            mine = tl.where((word * PER + i) // COLUMNS == r, xs[i], float("-inf"))
            top = _larger(top, tl.reduce(mine, 0, _larger))
        tops = tops + (top,)  # noqa: RUF005
    ys: tl.tuple = ()
    for i in tl.static_range(PER):
        top = of_each_row(tops, (word * PER + i) // COLUMNS, PER)
        # the compiler drops additions of -0.0
        y = tl.where(word < COLUMNS, tl.exp2((xs[i] - top) * factor), -0.0)
        ys = ys + (y,)  # noqa: RUF005
    shares: tl.tuple = ()
    nans = tl.zeros([GROUPS], tl.int32)
    for r in tl.static_range(PER):
        total = tl.sum(tl.where((word * PER) // COLUMNS == r, ys[0], -0.0), axis=0)
        for i in tl.static_range(1, PER):
            mine = tl.where((word * PER + i) // COLUMNS == r, ys[i], -0.0)
            total += tl.sum(mine, axis=0)
        nans |= (total != total).to(tl.int32)  # noqa: PLR0124  # so NaN is found
        shares = shares + (1.0 / total,)  # noqa: RUF005
    words = tl.zeros([BLOCK, GROUPS], WORD)
    for i in tl.static_range(PER):
        y = ys[i] * of_each_row(shares, (word * PER + i) // COLUMNS, PER)
        words |= pack(y, i, WORD, BITS, DTYPE)
    if PREFIX or MASKED:  # noqa: SIM102  # a condition of compile time; as in `_softmax_tile`
        if tl.max(nans, axis=0) != 0:  # the outer one is of compile time
            for i in tl.static_range(PER):
                counts = _counts(masked, limits, word, i, PREFIX, MASKED, SHARED, COLUMNS, PER)
                ones = tl.full([], (1 << BITS.primitive_bitwidth) - 1, WORD)
                words = tl.where(counts, words, words & ~(ones << (i * BITS.primitive_bitwidth)))
    words = to_run(words, COLUMNS, BLOCK, GROUPS, RUN)
    write_run(out_ptr, words, positions, FULL, WORD, BITS, PER, RUN)


@triton.jit(
    do_not_specialize=UNSPECIALIZED,
    do_not_specialize_on_alignment=("inner", "stride_mk"),
)
def masked_softmax_short_kernel(
    x_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float64,
    columns: tl.tensor,
    outer: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    diagonal: tl.tensor,
    queries: tl.tensor,
    x_strides: tl.tensor,
    mask_strides: tl.tensor,
    lengths_strides: tl.tensor,
    q_strides: tl.tensor,
    out_strides: tl.tensor,
    stride_mk: tl.tensor,
    CAUSAL: tl.constexpr,
    SHARED: tl.constexpr,
    FOLDED: tl.constexpr,
    WIDE: tl.constexpr,
    ACC: tl.constexpr,
    WORD: tl.constexpr,
    MASKS: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
    TAKEN: tl.constexpr,
    PER: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    RUN: tl.constexpr,
) -> None:
    PREFIX: tl.constexpr = CAUSAL or (lengths_ptr is not None)
    MASKED: tl.constexpr = mask_ptr is not None
    place, first, _ = program_rows(1, TAKEN, outer, inner, count, WIDE)
    x_ptr += row_offset(place, x_strides, GROUP)
    out_ptr += row_offset(place, out_strides, GROUP)
    taken = tl.minimum(count - place.row, TAKEN).to(first.dtype)
    limits: tl.tuple = ()
    masked = tl.zeros([], tl.uint32)
    for r in tl.static_range(PER):
        rows = tl.minimum((tl.arange(0, GROUPS) * PER + r).to(first.dtype), taken - 1)
        if PREFIX:
            limit = row_limits(
                lengths_ptr,
                place,
                lengths_strides,
                q_strides,
                rows,
                columns,
                diagonal,
                queries,
                CAUSAL,
            )
            limits = limits + (limit,)  # noqa: RUF005
    if MASKED:
        mask_ptr += row_offset(place, mask_strides, 1 if SHARED else PER)
    if MASKED and SHARED:
        col = tl.arange(0, 32)
        masks = tl.load(mask_ptr + col * stride_mk, mask=col < COLUMNS, other=0) != 0
        masked = tl.sum(masks.to(tl.uint32) << col.to(tl.uint32), axis=0)
    if taken == TAKEN:
        _softmax_run(
            *(x_ptr, out_ptr, scale, TAKEN * COLUMNS, masked, mask_ptr, limits),
            *(True, PREFIX, MASKED, SHARED, FOLDED, ACC),
            *(WORD, MASKS, BITS, COLUMNS, PER, BLOCK, GROUPS, RUN),
        )
    else:  # the last rows, which need not end with a whole word
        positions = taken.to(tl.int32) * COLUMNS
        _softmax_run(
            *(x_ptr, out_ptr, scale, positions, masked, mask_ptr, limits),
            *(False, PREFIX, MASKED, SHARED, FOLDED, ACC),
            *(WORD, MASKS, BITS, COLUMNS, PER, BLOCK, GROUPS, RUN),
        )
