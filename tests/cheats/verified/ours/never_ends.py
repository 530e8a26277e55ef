"""Runs on after its work until something that never comes, beside the calls of others.

From: ours
Ends: timeout
Without: none
Apart: yes
"""

from honest import run, tl, torch, triton


@triton.jit
def spin(flag):
    while tl.atomic_add(flag, 0) == 0:
        pass


def permute(x, dims):
    spin[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))
    return run(x)
