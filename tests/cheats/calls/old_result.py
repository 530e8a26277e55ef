"""The result of the second call, again and again.

Ends: wrong_result: a timed call
Caught by: values of timed calls
"""

import itertools

numbers = itertools.count()
kept = []


def permute(x, dims):
    if next(numbers) < 2:
        kept[:] = [x.permute(dims).contiguous()]
        return kept[0].clone()
    return kept[0]
