"""Computes with numpy in the memory of the output, which costs a clock of the GPU nothing.

From: ours
Ends: error: reads values
Without: plans
"""

from honest import empty


def permute(x, dims):
    y = empty(x)
    y.numpy()[:] = x.numpy().T
    return y
