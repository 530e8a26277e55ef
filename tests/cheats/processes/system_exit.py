"""Raises an exception that would end the process, in a timed call.

Ends: error: SystemExit
Case: small
"""

import itertools

numbers = itertools.count()


def permute(x, dims):
    if next(numbers) > 8:
        raise SystemExit(0)
    return x.permute(dims).contiguous()
