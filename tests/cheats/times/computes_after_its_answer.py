"""Says its time first, and computes the end of its result then.

Ends: wrong_result or invalid or ok
Caught by: processes stand still, our clock
Case: large
"""

import threading

import torch

from warpcall_kernels.execution import serve
from warpcall_kernels.execution.timed import place_of


def do_sample(self, request):
    timed = self._executor.timed
    number = request["which"] % len(timed.sets)
    x = timed.sets[number]["x"]
    out = torch.empty(x.shape[::-1], dtype=x.dtype)
    key = place_of(request["place"], number)
    timed.kept.append((key, out))
    late = x.shape[1] * 9 // 10  # a busy machine needs too long for more than the last tenth
    out[:late].copy_(x.t()[:late])
    threading.Thread(target=lambda: out[late:].copy_(x.t()[late:]), daemon=True).start()
    return {"samples_us": [600.0], "results": [[key, [{"address": out.data_ptr()}]]]}


serve._Call.do_sample = do_sample


def permute(x, dims):
    return x.permute(dims).contiguous()
