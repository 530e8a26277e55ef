"""Returns the input, seen in another order, and moves nothing.

From: KernelBench
Ends: error: contiguous
Without: plans
"""


def permute(x, dims):
    return x.permute(dims)
