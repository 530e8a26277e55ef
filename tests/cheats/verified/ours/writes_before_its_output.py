"""Writes before its output, where it could look for it in its next call.

From: ours
Ends: wrong_result: before
Without: guard bands on a GPU
Gains: a wrong result
"""

from honest import run, tl, triton


@triton.jit
def mark(y):
    at = tl.arange(0, 16)
    tl.store(y - 16 + at, tl.zeros((16,), tl.float32))


def permute(x, dims):
    y = run(x)
    mark[(1,)](y)
    return y
