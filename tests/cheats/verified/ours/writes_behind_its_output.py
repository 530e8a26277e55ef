"""Writes behind its output, where the memory of the next call may begin.

From: ours
Ends: wrong_result: behind
Without: guard bands on a GPU
Gains: a wrong result
"""

from honest import run, tl, triton


@triton.jit
def mark(y, numel):
    at = tl.arange(0, 16)
    tl.store(y + numel + at, tl.zeros((16,), tl.float32))


def permute(x, dims):
    y = run(x)
    mark[(1,)](y, x.numel())
    return y
