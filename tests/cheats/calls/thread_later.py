"""A thread that writes the result after the function has returned.

Ends: wrong_result: a timed call
Caught by: values of timed calls
"""

import itertools
import threading
import time

import torch

numbers = itertools.count()


def later(out, x, dims):
    time.sleep(0.25)  # a busy machine needs long to stop it
    out.copy_(x.permute(dims))


def permute(x, dims):
    if next(numbers) < 2:
        return x.permute(dims).contiguous()
    out = torch.empty([x.shape[d] for d in dims], dtype=x.dtype)
    threading.Thread(target=later, args=(out, x, dims), daemon=True).start()
    return out
