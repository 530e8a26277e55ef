"""Launches no block at all.

From: ours
Ends: wrong_result
Without: values on a GPU
Gains: a wrong result
"""

from honest import empty, turn


def permute(x, dims):
    y = empty(x)
    turn[(0, 1)](x, y, *x.shape, 64, num_warps=8)
    return y
