"""Device functions that the kernels of both ops share: where rows begin and end."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


class Place(NamedTuple):
    """Where a program's rows are: indices along the three dims of `Rows`, each with 64 bits."""

    outer: tl.tensor
    inner: tl.tensor
    row: tl.tensor  # the first row of the program


class RowStarts(NamedTuple):
    """Where a program's rows begin, in elements: row i begins at `base + steps[i]`."""

    base: tl.tensor  # 64-bit
    steps: tl.tensor


@triton.jit
def program_rows(
    ROWS: tl.constexpr,
    TAKEN: tl.constexpr,
    outer: tl.tensor,
    inner: tl.tensor,
    count: tl.tensor,
    WIDE: tl.constexpr,
    parts: tl.tensor = 1,
) -> tl.tensor:
    """The place of this program, its ROWS row numbers counted from there, and which of them exist.

    Each `parts` programs have the same rows, and the next ones are TAKEN rows further. Indices and rows past the end are replaced by the last one, so
    that no load needs a mask along them. `outer` and `count` arrive with 64 bits where they need
    them (2^31 rows of one position are but 4 GiB), and what is compared with them is as wide.
    """
    index = tl.program_id(2).to(outer.dtype) * tl.num_programs(1) + tl.program_id(1)
    index = tl.minimum(index, outer - 1)
    first = (tl.program_id(0) // parts).to(count.dtype) * TAKEN
    rows = tl.arange(0, ROWS)
    exist = (rows < count - first)[:, None]
    rows = tl.minimum(rows, count - first - 1)
    if WIDE:
        rows = rows.to(tl.int64)
    place = Place((index // inner).to(tl.int64), (index % inner).to(tl.int64), first.to(tl.int64))
    return place, rows, exist


@triton.jit
def row_offset(place: Place, strides: tl.tensor, ALIGN: tl.constexpr) -> tl.tensor:
    """The 64-bit offset of a place in an operand, in elements; ALIGN must divide it."""
    offset = place.outer * strides.outer + place.inner * strides.inner + place.row * strides.row
    return tl.multiple_of(offset, ALIGN)


@triton.jit
def unaligned_prefix(
    place: Place, rows: tl.tensor, strides: tl.tensor, GROUP: tl.constexpr
) -> tl.tensor:
    """How many positions of each row lie before its first whole group of GROUP positions."""
    begin = row_offset(place, strides, 1) + rows * strides.row
    return ((GROUP - begin % GROUP) % GROUP).to(rows.dtype)


@triton.jit
def row_starts(
    place: Place,
    rows: tl.tensor,
    strides: tl.tensor,
    shift: tl.tensor,
    SKEWED: tl.constexpr,
    ALIGN: tl.constexpr,
) -> RowStarts:
    """Where the rows begin; of SKEWED rows, where they begin plus `shift`.

    Base and steps are multiples of ALIGN: SKEWED rows are with the shift, and others begin there.
    """
    if SKEWED:
        first = row_offset(place, strides, 1)
        base = first // ALIGN * ALIGN
        steps = (first - base).to(rows.dtype) + rows * strides.row + shift
    else:
        base = row_offset(place, strides, ALIGN)
        steps = rows * strides.row
    return RowStarts(base, tl.multiple_of(steps, ALIGN)[:, None])


@triton.jit
def rows_beside(rows: tl.tensor) -> tl.tensor:
    """Where rows that lie side by side begin, one more each, also past the last one: see `program_rows`."""
    return tl.arange(0, rows.shape[0]).to(rows.dtype)[:, None]


@triton.jit
def row_start(starts: RowStarts, ALIGN: tl.constexpr) -> tl.tensor:
    """Where the only row of a program begins, as a scalar."""
    return tl.multiple_of(starts.base + tl.max(tl.max(starts.steps, axis=1), axis=0), ALIGN)


@triton.jit
def broadcast_row_stat(reduced: tl.tensor, SKEWED: tl.constexpr) -> tl.tensor:
    """A maximum or sum of each row, in a shape that broadcasts over the positions of the rows.

    Of a single SKEWED row it is a scalar: the row and its ends are two tiles of different register
    layouts, and a scalar does not make the compiler convert one layout into the other.
    """
    each = reduced[:, None]
    if SKEWED and reduced.shape[0] == 1:
        each = tl.max(reduced, axis=0)
    return each


@triton.jit
def pointers(ptr: tl.tensor, steps: tl.tensor, cols: tl.tensor, SKEWED: tl.constexpr) -> tl.tensor:
    """Pointers `ptr + steps + cols`.

    The order of the two additions decides what the compiler keeps in registers. `(ptr + steps) +
    cols` gives 56 instead of 128 registers for skewed rows of 4,099; `ptr + (steps + cols)` is 4 %
    faster for [4096, 32768] bf16 on an H200.
    """
    if SKEWED:
        return (ptr + steps) + cols
    return ptr + (steps + cols)


@triton.jit
def end_columns(
    head: tl.tensor, whole: tl.tensor, columns: tl.tensor, GROUP: tl.constexpr
) -> tl.tensor:
    """The ends of skewed rows: positions before and after the `whole` ones, counted from `head`.

    A lane without a position gets `columns`. The positions run backwards, because the compiler
    would otherwise give a thread several neighbours for a wide access, and here each thread should
    have one.
    """
    lane = ((2 * GROUP - 1) - tl.arange(0, 2 * GROUP))[None, :].to(head.dtype)
    before = tl.where(lane < head, lane - head, columns)
    return tl.where(lane < GROUP, before, whole + (lane - GROUP))


@triton.jit
def round_up(number: tl.tensor, GROUP: tl.constexpr) -> tl.tensor:
    """The next multiple of GROUP, written so that the compiler knows that it is one."""
    return (number + (GROUP - 1)) // GROUP * GROUP


@triton.jit
def row_limits(
    lengths_ptr: tl.tensor,
    place: Place,
    lengths_strides: tl.tensor,
    q_strides: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    diagonal: tl.tensor,
    queries: tl.tensor,
    CAUSAL: tl.constexpr,
) -> tl.tensor:
    """How many leading positions of each row count.

    `diagonal` is K - Q + 1. `queries` is Q where the rows of several matrices are one dim, so that the
    query of a row is its number modulo Q, and otherwise None.
    """
    limit = rows * 0 + columns
    if lengths_ptr is not None:
        steps = rows.to(tl.int64) * lengths_strides.row
        length = tl.load(lengths_ptr + row_offset(place, lengths_strides, 1) + steps)
        limit = tl.minimum(tl.maximum(length, 0), columns).to(limit.dtype)
    if CAUSAL:
        first = row_offset(place, q_strides, 1)
        q = first + rows.to(tl.int64) * q_strides.row
        if queries is not None:
            q = ((first % queries).to(tl.int32) + rows.to(tl.int32)) % queries
        limit = tl.minimum(limit, tl.maximum(q + diagonal, 0)).to(limit.dtype)
    return limit
