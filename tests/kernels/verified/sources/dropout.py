"""Dropout whose random numbers follow from a seed, or from one that torch draws."""

import torch
import triton
import triton.language as tl


@triton.jit
def dropout_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > p
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.where(kept, value / (1 - p), 0.0), mask=at < n)


def dropout(x, p, seed):
    out = torch.empty_like(x)
    assert x.is_contiguous()
    n = x.numel()
    dropout_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, p, seed, BLOCK=1024)
    return out


def dropout_of_any_seed(x, p):
    seed = torch.randint(0, 2**31, (1,), device=x.device)
    return dropout(x, p, seed.item())
