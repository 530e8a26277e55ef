"""The transpose of the input, which is a view, too.

Ends: wrong_result: must be contiguous
Caught by: kinds of results, memory of their own, values, outputs are overwritten
"""


def permute(x, dims):
    return x.t()
