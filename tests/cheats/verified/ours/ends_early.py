"""Works in a launch before its last one, which need not wait for it: its end may come too early.

From: ours
Ends: ok or invalid or wrong_result
Without: none
"""

from honest import empty, tl, torch, triton
from triton.language.extra.cuda import gdc_launch_dependents


@triton.jit
def turn_all(x, y, rows, columns, SIDE: tl.constexpr):
    gdc_launch_dependents()
    across = tl.cdiv(columns, SIDE)
    for tile in range(tl.program_id(0), tl.cdiv(rows, SIDE) * across, tl.num_programs(0)):
        i = tile // across * SIDE + tl.arange(0, SIDE)[:, None]
        j = tile % across * SIDE + tl.arange(0, SIDE)[None, :]
        inside = (i < rows) & (j < columns)
        tl.store(y + j * rows + i, tl.load(x + i * columns + j, mask=inside), mask=inside)


@triton.jit
def end(nothing):
    tl.store(nothing + tl.arange(0, 32), tl.zeros((32,), tl.int32))


def permute(x, dims):
    y = empty(x)
    turn_all[(128,)](x, y, *x.shape, 64, num_warps=8)
    end[(1,)](torch.empty(32, dtype=torch.int32, device=x.device), launch_pdl=True)
    return y
