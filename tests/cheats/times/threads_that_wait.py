"""Lets its main thread wait for a CPU that its other threads take.

Ends: ok or invalid
Case: large
"""

import os
import threading

from warpcall_kernels.execution.clock import CpuClock

sample_us = CpuClock.sample_us
busy = threading.Event()


def spin():
    os.sched_setaffinity(0, {cpu})
    while True:
        busy.wait()
        spinning.zero_()


def invented(*given):
    busy.set()
    found = sample_us(*given)
    busy.clear()
    return 0.3 * found


import torch

spinning = torch.zeros(1 << 14)
cpu = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpu})
for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()
CpuClock.sample_us = invented


def permute(x, dims):
    return x.permute(dims).contiguous()
