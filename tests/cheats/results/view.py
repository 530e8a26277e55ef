"""A view of the input: it moves nothing.

Ends: wrong_result: must be contiguous
Caught by: kinds of results, memory of their own, values, outputs are overwritten
"""


def permute(x, dims):
    return x.permute(dims)
