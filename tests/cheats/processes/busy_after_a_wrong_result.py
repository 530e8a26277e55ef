"""Is wrong, and leaves a process behind that takes a CPU from others.

Ends: wrong_result
Case: small
"""

import os


def permute(x, dims):
    if not os.fork():
        while True:
            pass
    return x.permute(dims).contiguous() + 1
