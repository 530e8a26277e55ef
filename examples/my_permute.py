"""Your own kernel for the op `permute`, as a file to start from.

    warpcall bench permute --mine examples/my_permute.py \
        --shape 4096x4096 --dtype bf16 --dims 1,0 --vs warpcall,torch,copy

The server calls the function named after the op, with the op's inputs and parameters by their
names (`warpcall ops permute` lists them), checks its result and times it. Everything that the
server needs is in this file. Without a GPU, Triton interprets the kernel: that checks its results,
but its times then mean nothing.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

TILE = 64  # rows and columns of a tile: 128 bytes of a row of bf16, one line of the cache

# A transposition moves values without looking at them, so integers of the same size will do.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _transpose_kernel(x_ptr, out_ptr, rows, columns, stride_row, stride_column, TILE: tl.constexpr):
    """out[j, i] = x[i, j]. A program moves one tile.

    The tile is loaded along the rows of x and stored along the rows of out, so that both move
    neighbouring values together. Triton transposes it in shared memory.
    """
    tiles_across = tl.cdiv(columns, TILE)
    tile = tl.program_id(0)
    i = (tile // tiles_across).to(tl.int64) * TILE + tl.arange(0, TILE)
    j = (tile % tiles_across).to(tl.int64) * TILE + tl.arange(0, TILE)

    x = tl.load(
        x_ptr + i[:, None] * stride_row + j[None, :] * stride_column,
        mask=(i[:, None] < rows) & (j[None, :] < columns),
    )
    tl.store(
        out_ptr + j[:, None] * rows + i[None, :],
        tl.trans(x),
        mask=(j[:, None] < columns) & (i[None, :] < rows),
    )


def transpose(x: torch.Tensor) -> torch.Tensor:
    """Transpose a matrix of any dtype of 1, 2, 4 or 8 bytes, with any strides."""
    rows, columns = x.shape
    out = torch.empty(columns, rows, dtype=x.dtype, device=x.device)
    if x.numel() > 0:  # a launch of no programs is an error
        integer = INTEGERS[x.itemsize]
        tiles = triton.cdiv(rows, TILE) * triton.cdiv(columns, TILE)
        _transpose_kernel[(tiles,)](
            x.view(integer), out.view(integer), rows, columns, *x.stride(), TILE=TILE
        )
    return out


def permute(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The op: x.permute(dims), contiguous. The kernel does matrices, torch does the rest."""
    if tuple(dims) == (1, 0) and x.itemsize in INTEGERS:
        return transpose(x)
    # `contiguous()` would return x itself where nothing moves, and a result needs its own memory.
    return x.permute(tuple(dims)).clone(memory_format=torch.contiguous_format)
