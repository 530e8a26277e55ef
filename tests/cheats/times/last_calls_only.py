"""Computes only the last of the 64 short calls in a sample.

Ends: wrong_result: a timed call
Caught by: all results
Case: short
Gains: a wrong result
"""

import itertools

import torch

numbers = itertools.count(-12)  # so many calls come before the first sample of 64


def permute(x, dims):
    number = next(numbers)
    if number < 0 or number % 64 >= 60:
        return x.permute(dims).contiguous()
    return torch.empty([x.shape[d] for d in dims], dtype=x.dtype)
