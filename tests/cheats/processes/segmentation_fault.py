"""Reads memory that is not there, in a timed call.

Ends: crashed: SIGSEGV
Case: small
"""

import ctypes
import itertools

numbers = itertools.count()


def permute(x, dims):
    if next(numbers) > 8:
        ctypes.string_at(1)
    return x.permute(dims).contiguous()
