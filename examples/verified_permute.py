"""A verified kernel for the op `permute`: three dims in the opposite order, by two launches.

    warpcall verify examples/verified_permute.py permute --shape 64x256x512 --dtype bf16 --dims 2,1,0
    warpcall bench permute --mine examples/verified_permute.py --verified \
        --shape 64x256x512 --dtype bf16 --dims 2,1,0 --vs warpcall,torch,copy

With --verified the server calls `permute` once for each case, without a GPU, and notes what it
allocates, copies and launches. Its own code does the same on the GPU, and times it. So nothing has to
be declared, and the file is the same as for a job without --verified.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

TILE = 64  # rows and columns of a tile

# A transposition moves values without looking at them, so integers of the same size will do.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _transpose_kernel(x_ptr, out_ptr, rows, columns, TILE: tl.constexpr):
    """out[b, j, i] = x[b, i, j]. A program moves one tile of one matrix."""
    tiles_down, tiles_across = tl.cdiv(rows, TILE), tl.cdiv(columns, TILE)
    tile = tl.program_id(0)
    matrix = (tile // (tiles_down * tiles_across)).to(tl.int64) * rows * columns
    i = (tile // tiles_across % tiles_down).to(tl.int64) * TILE + tl.arange(0, TILE)
    j = (tile % tiles_across).to(tl.int64) * TILE + tl.arange(0, TILE)

    x = tl.load(
        x_ptr + matrix + i[:, None] * columns + j[None, :],
        mask=(i[:, None] < rows) & (j[None, :] < columns),
    )
    tl.store(
        out_ptr + matrix + j[:, None] * rows + i[None, :],
        tl.trans(x),
        mask=(j[:, None] < columns) & (i[None, :] < rows),
    )


def transpose(x: torch.Tensor, out: torch.Tensor, matrices: int, rows: int, columns: int) -> None:
    """Transpose each of several contiguous matrices."""
    tiles = matrices * triton.cdiv(rows, TILE) * triton.cdiv(columns, TILE)
    _transpose_kernel[(tiles,)](x, out, rows, columns, TILE=TILE)


def permute(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The op for dims (2, 1, 0): x[a, b, c] becomes out[c, b, a]."""
    if tuple(dims) != (2, 1, 0) or x.itemsize not in INTEGERS:
        raise ValueError(f"only dims 2,1,0 of dtypes of 1, 2, 4 or 8 bytes, got {dims}, {x.dtype}")
    a, b, c = x.shape
    out = torch.empty(c, b, a, dtype=x.dtype, device=x.device)
    if x.numel() > 0:  # a launch of no programs is an error
        between = torch.empty(c, a, b, dtype=x.dtype, device=x.device)
        integer = INTEGERS[x.itemsize]
        # An x that is not contiguous is copied first, which is a third step.
        transpose(x.contiguous().view(integer), between.view(integer), 1, a * b, c)
        transpose(between.view(integer), out.view(integer), c, a, b)
    return out
