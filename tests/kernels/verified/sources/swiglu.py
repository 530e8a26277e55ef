"""SwiGLU of two halves of one tensor."""

import torch
import triton
import triton.language as tl


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def swiglu_kernel(left, right, out, stride, out_stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    a = tl.load(left + row * stride + at, mask=at < n, other=0).to(tl.float32)
    b = tl.load(right + row * stride + at, mask=at < n, other=0)
    tl.store(out + row * out_stride + at, silu(a).cast(b.dtype) * b, mask=at < n)


def swiglu(x):
    left, right = x.chunk(2, dim=-1)
    n = left.shape[-1]
    out = torch.empty(*x.shape[:-1], n, dtype=x.dtype, device=x.device)
    rows = left.numel() // n
    swiglu_kernel[(rows,)](
        left, right, out, left.stride(-2), out.stride(-2), n, BLOCK=triton.next_power_of_2(n)
    )
    return out
