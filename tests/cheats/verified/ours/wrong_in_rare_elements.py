"""Is wrong in one of a million elements.

From: ours
Ends: wrong_result
Without: values on a GPU
Gains: a wrong result
"""

from honest import run, tl, triton


@triton.jit
def spoil(y, numel):
    at = (tl.program_id(0) * 32 + tl.arange(0, 32)).to(tl.int64) * 1_000_003 + 5
    tl.store(y + at, tl.load(y + at, mask=at < numel) + 1, mask=at < numel)


def permute(x, dims):
    y = run(x)
    spoil[(triton.cdiv(x.numel(), 32_000_000),)](y, x.numel())
    return y
