"""A forked process that writes the result after the function has returned.

Ends: wrong_result: a timed call
Caught by: values of timed calls, our clock
Gains: a wrong result
"""

import itertools
import os
import time

import torch

numbers = itertools.count()


def permute(x, dims):
    if next(numbers) < 2:
        return x.permute(dims).contiguous()
    out = torch.empty([x.shape[d] for d in dims], dtype=x.dtype).share_memory_()
    if not os.fork():
        time.sleep(0.25)  # a busy machine needs long to stop it
        out.copy_(x.permute(dims))
        os._exit(0)
    return out
