"""The kernels of permute and transpose-add; `_transpose/plan.py` says when each is taken."""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._transpose.strides import divide, offset

# Arguments that Triton does not compile variants for. What divides them is said by ALIGN, ALIGN_W,
# ...
UNSPECIALIZED_ROWS = ("rows", "col_tiles", "col_tiles_reciprocal", "units", "stride_xc")
UNSPECIALIZED_TILES = (
    *("units_i", "units_j", "tiles_i", "tiles_i_reciprocal", "tiles_j", "tiles_j_reciprocal"),
    *("near", "near_reciprocal", "stride_xi"),
    *("i_sizes", "i_factors", "i_shifts", "i_steps"),
    *("j_sizes", "j_factors", "j_shifts", "j_steps"),
)
UNSPECIALIZED_ADD = (
    *("units_h", "units_w", "tiles_h", "tiles_h_reciprocal", "tiles_w", "tiles_w_reciprocal"),
    *("stride_ah", "stride_aw", "stride_bw", "stride_bh"),
)


@triton.jit
def size_of(units: tl.tensor, ALIGN: tl.constexpr, WIDE: tl.constexpr) -> tl.tensor:
    """units * ALIGN: a size of which the compiler knows that ALIGN divides it.

    Units of a size that takes 64 bits may take 32.
    """
    if WIDE:
        units = units.to(tl.int64)
    return units * ALIGN


@triton.jit
def linear_to_offset(
    index: tl.tensor,
    sizes: tl.tensor,
    factors: tl.tensor,
    shifts: tl.tensor,
    steps: tl.tensor,
    NDIM: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
) -> tl.tensor:
    """The offsets of linear indices over `sizes`, in elements, with 3 instructions for each dim.

    The other arguments are those of `division_arguments`. It computes what `offset` computes.
    """
    total = index * steps[NDIM - 1]
    for d in tl.static_range(NDIM - 1, 0, -1):
        if WIDE:
            index = index // sizes[d]
        else:
            factor = factors[d].to(tl.uint32, bitcast=True)
            index = (tl.umulhi(index.to(tl.uint32), factor) >> shifts[d]).to(tl.int32)
        total += index * steps[d - 1]
    return tl.multiple_of(total, ALIGN)


@triton.jit(do_not_specialize=UNSPECIALIZED_ROWS)
def rows_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.int64,
    col_tiles: tl.tensor,
    col_tiles_reciprocal: tl.tensor,
    units: tl.tensor,
    stride_xc: tl.int64,
    sizes: tl.tensor,
    factors: tl.tensor,
    shifts: tl.tensor,
    steps: tl.tensor,
    NDIM: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    """Gather rows that are contiguous in the output, where row r begins at r * columns."""
    row_tile, col_tile = divide(tl.program_id(0), col_tiles, col_tiles_reciprocal)
    if WIDE:
        row_tile, col_tile = row_tile.to(tl.int64), col_tile.to(tl.int64)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    col = col_tile * COLS + tl.arange(0, COLS)
    columns = size_of(units, ALIGN, WIDE)
    inside = (row < rows)[:, None] & (col < columns)[None, :]
    begin = linear_to_offset(row, sizes, factors, shifts, steps, NDIM, ALIGN, WIDE)
    across = col if EVEN else col * stride_xc
    words = tl.load(x_ptr + begin[:, None] + across[None, :], mask=inside)
    tl.store(out_ptr + tl.multiple_of(row * columns, ALIGN)[:, None] + col[None, :], words, inside)


@triton.jit(do_not_specialize=UNSPECIALIZED_TILES)
def tiles_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    units_i: tl.tensor,
    units_j: tl.tensor,
    tiles_i: tl.tensor,
    tiles_i_reciprocal: tl.tensor,
    tiles_j: tl.tensor,
    tiles_j_reciprocal: tl.tensor,
    near: tl.tensor,
    near_reciprocal: tl.tensor,
    stride_xi: tl.tensor,
    i_sizes: tl.tensor,
    i_factors: tl.tensor,
    i_shifts: tl.tensor,
    i_steps: tl.tensor,
    j_sizes: tl.tensor,
    j_factors: tl.tensor,
    j_shifts: tl.tensor,
    j_steps: tl.tensor,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM_I: tl.constexpr,
    NDIM_J: tl.constexpr,
    NDIM: tl.constexpr,
    EVEN: tl.constexpr,
    KEPT: tl.constexpr,
    ALIGN_X: tl.constexpr,
    ALIGN_OUT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
) -> None:
    """Transpose i, the inner dims of x, with j, the inner dims of the output, tile by tile.

    Programs walk the tiles in the order of the output: along j, then along the last `near` elements
    of the other dims, along i, and along what remains of the other dims.
    """
    number, tile_j = divide(tl.program_id(0), tiles_j, tiles_j_reciprocal)
    number, beside = divide(number, near, near_reciprocal)
    number, tile_i = divide(number, tiles_i, tiles_i_reciprocal)
    rest = number * near + beside
    if WIDE:
        tile_i, tile_j, rest = tile_i.to(tl.int64), tile_j.to(tl.int64), rest.to(tl.int64)
    i = tile_i * BLOCK_I + tl.arange(0, BLOCK_I)
    j = tile_j * BLOCK_J + tl.arange(0, BLOCK_J)
    x_ptr += offset(rest, sizes, x_strides, NDIM, ALIGN_X)
    out_ptr += offset(rest, sizes, out_strides, NDIM, ALIGN_OUT)
    exist_i = i < size_of(units_i, ALIGN_X, WIDE)
    exist_j = j < size_of(units_j, ALIGN_OUT, WIDE)

    across = i if EVEN else i * stride_xi
    along = linear_to_offset(j, j_sizes, j_factors, j_shifts, j_steps, NDIM_J, ALIGN_X, WIDE)
    inside = exist_j[:, None] & exist_i[None, :]
    policy: tl.constexpr = "evict_last" if KEPT else ""
    words = tl.load(x_ptr + (along[:, None] + across[None, :]), inside, eviction_policy=policy)
    along = linear_to_offset(i, i_sizes, i_factors, i_shifts, i_steps, NDIM_I, ALIGN_OUT, WIDE)
    inside = exist_i[:, None] & exist_j[None, :]
    tl.store(out_ptr + (along[:, None] + j[None, :]), tl.trans(words), mask=inside)


@triton.jit
def as_term(x: tl.tensor, out_ptr: tl.tensor, ACC: tl.constexpr, FLOAT: tl.constexpr) -> tl.tensor:
    """Convert `x` as torch does before it adds: first to the type of the output, then to ACC.

    Torch rounds an integer to fp32 first and to the type of the output then. Without the addition
    of 0.0 the compiler would fuse both conversions into one, which rounds once. The addition is
    left out for floats, because it would turn -0.0 into 0.0; they only widen.
    """
    if FLOAT and x.dtype.is_int():
        x = (x.to(ACC) + 0.0).to(out_ptr.dtype.element_ty)
    return x.to(ACC)


@triton.jit(do_not_specialize=UNSPECIALIZED_ADD)
def transpose_add_kernel(
    a_ptr: tl.tensor,
    out_ptr: tl.tensor,
    b_ptr: tl.tensor,
    units_h: tl.tensor,
    units_w: tl.tensor,
    tiles_h: tl.tensor,
    tiles_h_reciprocal: tl.tensor,
    tiles_w: tl.tensor,
    tiles_w_reciprocal: tl.tensor,
    stride_ah: tl.tensor,
    stride_aw: tl.tensor,
    stride_bw: tl.tensor,
    stride_bh: tl.tensor,
    sizes: tl.tensor,
    a_strides: tl.tensor,
    b_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM: tl.constexpr,
    EVEN_A: tl.constexpr,
    EVEN_B: tl.constexpr,
    ALIGN_W: tl.constexpr,
    ALIGN_H: tl.constexpr,
    WIDE: tl.constexpr,
    ACC: tl.constexpr,
    FLOAT: tl.constexpr,
    LOGICAL: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
) -> None:
    """Transpose h, the rows of a, with w, its columns, tile by tile, and add b."""
    number, tile_h = divide(tl.program_id(0), tiles_h, tiles_h_reciprocal)
    batch, tile_w = divide(number, tiles_w, tiles_w_reciprocal)
    if WIDE:
        tile_h, tile_w, batch = tile_h.to(tl.int64), tile_w.to(tl.int64), batch.to(tl.int64)
    h = tile_h * BLOCK_H + tl.arange(0, BLOCK_H)
    w = tile_w * BLOCK_W + tl.arange(0, BLOCK_W)
    size_h, size_w = size_of(units_h, ALIGN_H, WIDE), size_of(units_w, ALIGN_W, WIDE)
    a_ptr += offset(batch, sizes, a_strides, NDIM, ALIGN_W)
    b_ptr += offset(batch, sizes, b_strides, NDIM, ALIGN_H)
    out_ptr += offset(batch, sizes, out_strides, NDIM, ALIGN_H)

    inside = (h < size_h)[:, None] & (w < size_w)[None, :]
    along = w if EVEN_A else w * stride_aw
    a = tl.load(
        a_ptr + tl.multiple_of(h * stride_ah, ALIGN_W)[:, None] + along[None, :], mask=inside
    )
    inside = (w < size_w)[:, None] & (h < size_h)[None, :]
    along = h if EVEN_B else h * stride_bh
    b = tl.load(
        b_ptr + tl.multiple_of(w * stride_bw, ALIGN_H)[:, None] + along[None, :], mask=inside
    )
    a = as_term(tl.trans(a), out_ptr, ACC, FLOAT)
    b = as_term(b, out_ptr, ACC, FLOAT)
    total = a | b if LOGICAL else a + b
    at = tl.multiple_of(w * size_h, ALIGN_H)[:, None] + h[None, :]
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)
