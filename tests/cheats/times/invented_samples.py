"""Replaces the function that takes a sample, and says that it took a third of its time.

Ends: invalid or ok
Caught by: our clock
"""

from warpcall_kernels.execution.clock import CpuClock

sample_us = CpuClock.sample_us
CpuClock.sample_us = lambda *given: sample_us(*given) / 3


def permute(x, dims):
    return x.permute(dims).contiguous()
