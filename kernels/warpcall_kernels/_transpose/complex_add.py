"""The complex variant of transpose-add: tiles of pairs of a real and an imaginary part."""

from __future__ import annotations

import triton
import triton.language as tl

from warpcall_kernels._transpose.kernels import UNSPECIALIZED_ADD, size_of
from warpcall_kernels._transpose.strides import divide, offset


@triton.jit
def _load_parts(
    x_ptr: tl.tensor,
    rows: tl.tensor,
    columns_begin: tl.tensor,
    size_rows: tl.tensor,
    size_columns: tl.tensor,
    stride_rows: tl.tensor,
    stride_columns: tl.tensor,
    COMPLEX: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Load a tile, [ROWS, COLUMNS, 2] if x is complex and [ROWS, COLUMNS] if it is real.

    Args:
        x_ptr: a pointer to the parts of complex numbers, or to real numbers.
        stride_rows, stride_columns: in elements of x.
        EVEN: whether stride_columns is 1.
        ALIGN: divides the size and all strides of rows.
    """
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    at = tl.arange(0, COLUMNS * PARTS)
    exist = columns_begin * PARTS + at < size_columns * PARTS
    if EVEN:
        across = columns_begin * PARTS + at
    else:
        across = (columns_begin + at // PARTS) * stride_columns * PARTS + at % PARTS
    along = tl.multiple_of(rows * stride_rows * PARTS, ALIGN * PARTS)
    inside = (rows < size_rows)[:, None] & exist[None, :]
    x = tl.load(x_ptr + along[:, None] + across[None, :], mask=inside)
    return tl.reshape(x, (ROWS, COLUMNS, 2)) if COMPLEX else x


@triton.jit
def _split(x: tl.tensor, TYPE: tl.constexpr, COMPLEX: tl.constexpr) -> tl.tensor:
    """The real and the imaginary parts in TYPE; those of real numbers are x and 0."""
    if COMPLEX:
        real, imaginary = tl.split(x)
        return real.to(TYPE), imaginary.to(TYPE)
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        real = x.to(TYPE)
        return real, tl.zeros_like(real)


@triton.jit(do_not_specialize=UNSPECIALIZED_ADD)
def complex_add_kernel(
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
    COMPLEX_A: tl.constexpr,
    COMPLEX_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
) -> None:
    """Transpose h, the rows of a, with w, its columns, tile by tile, and add b.

    Sizes and strides are in elements; the pointers of complex operands are to their parts.
    """
    TYPE: tl.constexpr = out_ptr.dtype.element_ty
    number, tile_h = divide(tl.program_id(0), tiles_h, tiles_h_reciprocal)
    batch, tile_w = divide(number, tiles_w, tiles_w_reciprocal)
    if WIDE:
        tile_h, tile_w, batch = tile_h.to(tl.int64), tile_w.to(tl.int64), batch.to(tl.int64)
    first_h, first_w = tile_h * BLOCK_H, tile_w * BLOCK_W
    h, w = first_h + tl.arange(0, BLOCK_H), first_w + tl.arange(0, BLOCK_W)
    size_h, size_w = size_of(units_h, ALIGN_H, WIDE), size_of(units_w, ALIGN_W, WIDE)
    a_ptr += offset(batch, sizes, a_strides, NDIM, ALIGN_W) * (2 if COMPLEX_A else 1)
    b_ptr += offset(batch, sizes, b_strides, NDIM, ALIGN_H) * (2 if COMPLEX_B else 1)
    out_ptr += offset(batch, sizes, out_strides, NDIM, ALIGN_H) * 2

    a = _load_parts(
        *(a_ptr, h, first_w, size_h, size_w, stride_ah, stride_aw),
        *(COMPLEX_A, EVEN_A, ALIGN_W, BLOCK_H, BLOCK_W),
    )
    b = _load_parts(
        *(b_ptr, w, first_h, size_w, size_h, stride_bw, stride_bh),
        *(COMPLEX_B, EVEN_B, ALIGN_H, BLOCK_W, BLOCK_H),
    )
    a_real, a_imaginary = _split(
        tl.permute(a, (1, 0, 2)) if COMPLEX_A else tl.trans(a), TYPE, COMPLEX_A
    )
    b_real, b_imaginary = _split(b, TYPE, COMPLEX_B)
    # Torch multiplies b by 1 + 0i before it adds, which makes NaN of the other part of a number
    # with an infinite part.
    real = a_real + (b_real - b_imaginary * 0.0)
    imaginary = a_imaginary + (b_real * 0.0 + b_imaginary)
    total = tl.reshape(tl.join(real, imaginary), (BLOCK_W, BLOCK_H * 2))
    at = first_h * 2 + tl.arange(0, BLOCK_H * 2)
    inside = (w < size_w)[:, None] & (at < size_h * 2)[None, :]
    along = tl.multiple_of(w * size_h * 2, ALIGN_H * 2)
    tl.store(out_ptr + along[:, None] + at[None, :], total, mask=inside)
