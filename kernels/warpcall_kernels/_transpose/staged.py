"""The staged variant of a permutation: a tile of any sizes, gathered from shared memory.

The sides of the other variants' tiles are powers of two, so that dims such as 7 and 37 leave many
lanes idle. Here a program loads the rows of a tile, as they lie in x, into shared memory. It then
gathers the elements from there along runs of the output. A row is a part of the tile that is
contiguous in x, and a run is a part that is contiguous in the output.

Rows are loaded by aligned accesses of up to 16 bytes, so that a row begins anywhere inside of its
first access. Two neighbours in a run are stored together, where the output is aligned to both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._transpose.kernels import linear_to_offset
from warpcall_kernels._transpose.strides import offset

# Arguments that Triton does not compile variants for.
UNSPECIALIZED = (
    *("skew", "end", "span", "accesses", "runs", "length", "last"),
    *("parts", "extents", "lasts", "x_moves", "out_moves"),
    *("x_sizes", "x_factors", "x_shifts", "x_steps"),
    *("along_sizes", "along_factors", "along_shifts", "along_steps", "along_row_steps"),
    *("run_sizes", "run_factors", "run_shifts", "run_steps", "run_x_steps", "run_out_steps"),
)


@triton.jit
def _elements(units: tl.tensor, COUNT: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """The elements of units, of which each has one or two, one after another."""
    if units.dtype.primitive_bitwidth == BITS:
        return tl.reshape(units, (COUNT,))
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        TYPE: tl.constexpr = tl.uint8 if BITS == 8 else tl.uint16 if BITS == 16 else tl.uint32
        return tl.reshape(tl.join(units.to(TYPE), (units >> BITS).to(TYPE)), (COUNT,))


@triton.jit
def _places(
    position: tl.tensor,
    length: tl.tensor,
    begin: tl.tensor,
    sizes: tl.tensor,
    factors: tl.tensor,
    shifts: tl.tensor,
    steps: tl.tensor,
    row_steps: tl.tensor,
    NDIM: tl.constexpr,
    ACCESS: tl.constexpr,
) -> tl.tensor:
    """Where positions of a run lie in shared memory, if the first run begins at `begin` in x.

    A row of x begins in shared memory with the access that holds its first element.
    """
    # Positions outside of the run are those of lanes that store nothing.
    position = tl.minimum(tl.maximum(position, 0), length - 1)
    place = linear_to_offset(position, sizes, factors, shifts, steps, NDIM, 1, False)
    if ACCESS > 1:
        row = linear_to_offset(position, sizes, factors, shifts, row_steps, NDIM, 1, False)
        place += (begin + row).to(tl.int32) & (ACCESS - 1)
    return place


@triton.jit(do_not_specialize=UNSPECIALIZED)
def staged_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    skew: tl.tensor,
    end: tl.tensor,
    span: tl.tensor,
    accesses: tl.tensor,
    runs: tl.tensor,
    length: tl.tensor,
    last: tl.tensor,
    parts: tl.tensor,
    extents: tl.tensor,
    lasts: tl.tensor,
    x_moves: tl.tensor,
    out_moves: tl.tensor,
    x_sizes: tl.tensor,
    x_factors: tl.tensor,
    x_shifts: tl.tensor,
    x_steps: tl.tensor,
    along_sizes: tl.tensor,
    along_factors: tl.tensor,
    along_shifts: tl.tensor,
    along_steps: tl.tensor,
    along_row_steps: tl.tensor,
    run_sizes: tl.tensor,
    run_factors: tl.tensor,
    run_shifts: tl.tensor,
    run_steps: tl.tensor,
    run_x_steps: tl.tensor,
    run_out_steps: tl.tensor,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM_X: tl.constexpr,
    NDIM_ALONG: tl.constexpr,
    NDIM_RUN: tl.constexpr,
    NDIM: tl.constexpr,
    WIDE: tl.constexpr,
    SKEWED: tl.constexpr,
    PER: tl.constexpr,
    UNITS: tl.constexpr,
    HELD: tl.constexpr,
    RUNS: tl.constexpr,
    LENGTH: tl.constexpr,
) -> None:
    """Move a tile, which is `runs` runs of `length` elements in the output.

    A unit is PER elements (1 or 2) that a thread stores at once, and an access is UNITS units that
    a thread loads at once. Both are aligned in memory.

    Args:
        skew: elements from the start of an access to x; `end`: from there to the end of x.
        span: elements of x from the first of a tile to the end of its last access.
        accesses: of a tile.
        last: elements of x from the first of a run to its last.
        parts: tiles along each of the two dims that may be cut.
        extents: elements of a tile along them; the last tile overlaps the one before.
        lasts: where the last tile along them begins.
        x_moves, out_moves: the strides of these dims.
        x_*: of the accesses of a tile, in the order of x.
        along_*: of the positions in a run, and their places in shared memory; `along_row_steps`:
            where their rows begin in x.
        run_*: of the runs, and their places in shared memory; `run_x_steps`: in x;
            `run_out_steps`: in the output.
        sizes: of the dims that are not in the tile.
        SKEWED: whether `skew` is not 0.
        HELD, RUNS, LENGTH: accesses of a tile, runs, and units of a run, as powers of two.
    """
    BITS: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth
    ACCESS: tl.constexpr = PER * UNITS
    SIZE: tl.constexpr = BITS * PER
    SHORT: tl.constexpr = tl.uint8 if SIZE == 8 else tl.uint16
    UNIT: tl.constexpr = SHORT if SIZE <= 16 else tl.uint32 if SIZE == 32 else tl.uint64
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    first = tl.minimum(pid % parts[0] * extents[0], lasts[0])
    pid = pid // parts[0]
    second = tl.minimum(pid % parts[1] * extents[1], lasts[1])
    rest = pid // parts[1]
    begin = skew + offset(rest, sizes, x_strides, NDIM, 1)
    begin += first * x_moves[0] + second * x_moves[1]
    to_tile = offset(rest, sizes, out_strides, NDIM, 1)
    to_tile += first * out_moves[0] + second * out_moves[1]

    n = tl.arange(0, HELD)
    at = linear_to_offset(n, x_sizes, x_factors, x_shifts, x_steps, NDIM_X, 1, False)
    at = (begin + at) // ACCESS
    needed = (n < accesses)[:, None]
    from_x = tl.multiple_of(at * UNITS, UNITS)[:, None] + tl.arange(0, UNITS)[None, :]
    if SKEWED:
        x_ptr -= skew
    # The first and the last access of x may have elements that do not exist.
    if (begin - begin % ACCESS < skew) | (begin + span > end):
        units = tl.full((HELD, UNITS), 0, UNIT)
        for e in tl.static_range(PER):
            element = from_x * PER + e
            exists = needed & (element >= skew) & (element < end)
            one = tl.load(x_ptr + element, mask=exists, other=0)
            if PER == 1:
                units = one.to(UNIT, bitcast=True)
            else:
                units |= (one.to(UNIT) & ((1 << BITS) - 1)) << (e * BITS)
    else:
        units = tl.load(x_ptr.to(tl.pointer_type(UNIT)) + from_x, mask=needed, other=0)
    held = _elements(units, HELD * ACCESS, BITS)

    run, unit = tl.arange(0, RUNS), tl.arange(0, LENGTH)
    from_run = linear_to_offset(
        run, run_sizes, run_factors, run_shifts, run_steps, NDIM_RUN, 1, False
    )[:, None]
    to_run = to_tile + linear_to_offset(
        run, run_sizes, run_factors, run_shifts, run_out_steps, NDIM_RUN, 1, False
    )
    odd = (to_run & (PER - 1)).to(tl.int32)  # elements from the start of a unit to the run
    # Places of lanes past the last run or position are taken modulo the size of shared memory.
    first_place = _places(
        *(unit * PER, length, begin, along_sizes, along_factors, along_shifts, along_steps),
        *(along_row_steps, NDIM_ALONG, ACCESS),
    )[None, :]
    if PER == 1:
        place = first_place + from_run
        inside = (run < runs)[:, None] & (unit < length)[None, :]
    else:
        before = _places(
            *(unit * 2 - 1, length, begin, along_sizes, along_factors, along_shifts, along_steps),
            *(along_row_steps, NDIM_ALONG, ACCESS),
        )[None, :]
        after = _places(
            *(unit * 2 + 1, length, begin, along_sizes, along_factors, along_shifts, along_steps),
            *(along_row_steps, NDIM_ALONG, ACCESS),
        )[None, :]
        shifted = (odd > 0)[:, None]
        one = tl.where(shifted, before, first_place) + from_run
        two = tl.where(shifted, first_place, after) + from_run
        place = tl.join(one, two)
        inside = (run < runs)[:, None] & (unit[None, :] * 2 + 2 <= (length + odd)[:, None])
        inside = inside & (unit[None, :] * 2 >= odd[:, None])
    place = tl.reshape(place & (HELD * ACCESS - 1), (RUNS * LENGTH * PER,))
    moved = tl.gather(held, place, 0)
    if PER == 1:
        moved = tl.reshape(moved, (RUNS, LENGTH))
    else:
        one, two = tl.split(tl.reshape(moved, (RUNS, LENGTH, 2)))
        moved = one.to(UNIT) | (two.to(UNIT) << BITS)
    to_unit = ((to_run - odd) // PER)[:, None] + unit[None, :]
    tl.store(out_ptr.to(tl.pointer_type(UNIT)) + to_unit, moved, mask=inside)
    if PER == 2:
        # The first element of a run that begins inside a unit, and the last of one that ends there.
        run_ptr = x_ptr + begin
        run_ptr += linear_to_offset(
            run, run_sizes, run_factors, run_shifts, run_x_steps, NDIM_RUN, 1, False
        )
        head = (run < runs) & (odd > 0)
        tl.store(out_ptr + to_run, tl.load(run_ptr, mask=head), mask=head)
        tail = (run < runs) & ((length + odd) % 2 > 0)
        value = tl.load(run_ptr + last, mask=tail)
        tl.store(out_ptr + to_run + (length - 1), value, mask=tail)
