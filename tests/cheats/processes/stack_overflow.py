"""Calls itself until the stack is full.

Ends: crashed or timeout
Case: small
"""

import sys


def permute(x, dims):
    sys.setrecursionlimit(1 << 30)
    nested = []
    for _ in range(1 << 20):
        nested = [nested]
    return repr(nested)
