"""Ends its process in a timed call.

Ends: crashed: exited with status 3
Case: small
"""

import itertools
import os

numbers = itertools.count()


def permute(x, dims):
    if next(numbers) > 8:
        os._exit(3)
    return x.permute(dims).contiguous()
