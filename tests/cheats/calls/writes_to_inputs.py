"""Sets its inputs to zero in timed calls, so that others had less to compute.

Ends: wrong_result: wrote to x
Caught by: inputs stay
Case: small
Gains: a wrong result
"""

import itertools

numbers = itertools.count()


def permute(x, dims):
    out = x.permute(dims).contiguous()
    if next(numbers) >= 2:
        x.zero_()
    return out
