"""Writes zeros far behind its input, where the inputs of other calls and of other uploads may lie.

From: ours
Ends: cuda_error or wrong_result or ok
Without: none
Apart: yes
"""

from honest import run, tl, triton


@triton.jit
def erase(x, distance):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(x + distance + at, tl.zeros((1024,), tl.float32))


def permute(x, dims):
    erase[(1024,)](x, x.numel() + (1 << 20))
    return run(x)
