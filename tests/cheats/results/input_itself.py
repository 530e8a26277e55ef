"""The input, with the shape of the result.

Ends: wrong_result: memory of its own
Caught by: memory of their own, values, outputs are overwritten
"""


def permute(x, dims):
    return x.view(tuple(x.shape[d] for d in dims))
