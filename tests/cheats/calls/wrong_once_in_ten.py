"""Wrong once in ten calls.

Ends: wrong_result: a timed call
Caught by: values of timed calls
Case: small
Rounds: 500
Gains: a wrong result
"""

import itertools

numbers = itertools.count(1)


def permute(x, dims):
    out = x.permute(dims).contiguous()
    if next(numbers) % 10 == 0:
        out[0, 0] += 1
    return out
