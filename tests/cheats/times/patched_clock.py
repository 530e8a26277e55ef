"""Slows its clock down, so that its calls seem to take a tenth of their time.

Ends: invalid or ok
Caught by: our clock
"""

import time

real = time.perf_counter_ns
time.perf_counter_ns = lambda: real() // 10
time.perf_counter = lambda: real() / 1e10


def permute(x, dims):
    return x.permute(dims).contiguous()
