"""Leaves processes behind that take all CPUs from others.

Ends: ok or invalid
"""

import os

for _ in range(4):
    if not os.fork():
        os.setsid()
        while True:
            pass


def permute(x, dims):
    return x.permute(dims).contiguous()
