"""Right in 60 calls, then only half of the rows.

Ends: wrong_result: a timed call
Caught by: values of timed calls
Case: small
Rounds: 100
Gains: a wrong result
"""

import itertools

import torch

numbers = itertools.count()


def permute(x, dims):
    if next(numbers) < 60:
        return x.permute(dims).contiguous()
    out = torch.empty([x.shape[d] for d in dims], dtype=x.dtype)
    half = len(out) // 2
    out[:half] = x.permute(dims)[:half]
    return out
