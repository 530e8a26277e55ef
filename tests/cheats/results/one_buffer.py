"""One buffer for the results of all calls.

Ends: wrong_result: memory of its own
Caught by: memory of their own
Case: small
Gains: a wrong result
"""

import torch

buffers = {}


def permute(x, dims):
    shape = tuple(x.shape[d] for d in dims)
    if shape not in buffers:
        buffers[shape] = torch.empty(shape, dtype=x.dtype)
    return buffers[shape].copy_(x.permute(dims))
