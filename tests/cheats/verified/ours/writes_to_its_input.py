"""Leaves a mark in its input, by which it knows the input again.

From: ours
Ends: wrong_result: x
Without: inputs stay on a GPU
Gains: a wrong result
"""

from honest import run, tl, triton


@triton.jit
def mark(x):
    tl.store(x + tl.arange(0, 16), tl.zeros((16,), tl.float32))


def permute(x, dims):
    y = run(x)
    mark[(1,)](x)
    return y
