"""Never returns from a timed call.

Ends: timeout: did not end
Case: small
"""

import itertools

numbers = itertools.count()


def permute(x, dims):
    if next(numbers) > 8:
        while True:
            pass
    return x.permute(dims).contiguous()
