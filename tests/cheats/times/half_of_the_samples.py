"""Invents the times of nearly all calls with one of its two sets of inputs.

Ends: ok or invalid
Caught by: our clock
Rounds: 30
"""

import itertools

from warpcall_kernels.execution.clock import CpuClock

sample_us = CpuClock.sample_us
numbers = itertools.count()


def invented(clock, timed, which, place):
    found = sample_us(clock, timed, which, place)
    if which % len(timed.sets) or next(numbers) % 12 == 11:
        return found
    return found / 40


CpuClock.sample_us = invented


def permute(x, dims):
    return x.permute(dims).contiguous()
