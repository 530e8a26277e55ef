"""An honest transposition, with which the sources in these folders begin."""

import torch
import triton
import triton.language as tl


@triton.jit
def turn(x, y, rows, columns, SIDE: tl.constexpr):
    i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)[:, None]
    j = tl.program_id(1) * SIDE + tl.arange(0, SIDE)[None, :]
    inside = (i < rows) & (j < columns)
    tl.store(y + j * rows + i, tl.load(x + i * columns + j, mask=inside), mask=inside)


def empty(x):
    return torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device)


def tiles(x):
    return triton.cdiv(x.shape[0], 64), triton.cdiv(x.shape[1], 64)


def run(x):
    y = empty(x)
    turn[tiles(x)](x, y, *x.shape, 64, num_warps=8)
    return y


def permute(x, dims):
    return run(x)
