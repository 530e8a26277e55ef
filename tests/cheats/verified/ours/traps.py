"""Ends its kernel by a trap, which makes the GPU fail for its process.

From: ours
Ends: cuda_error
Without: none
Apart: yes
"""

from honest import run, tl, torch, triton


@triton.jit
def trap(flag):
    at = tl.arange(0, 32)
    value = tl.inline_asm_elementwise(
        "trap; mov.b32 $0, $1;", "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.store(flag + at, value)


def permute(x, dims):
    trap[(1,)](torch.empty(32, dtype=torch.int32, device=x.device))
    return run(x)
