"""SwiGLU of two halves of one tensor."""

import torch
import triton
import triton.language as tl


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def swiglu_kernel(gate, up, out, stride, out_stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    a = tl.load(gate + row * stride + at, mask=at < n, other=0).to(tl.float32)
    b = tl.load(up + row * stride + at, mask=at < n, other=0)
    tl.store(out + row * out_stride + at, silu(a).cast(b.dtype) * b, mask=at < n)


def swiglu(x):
    gate, up = x.chunk(2, dim=-1)
    n = gate.shape[-1]
    out = torch.empty(*x.shape[:-1], n, dtype=x.dtype, device=x.device)
    rows = gate.numel() // n
    swiglu_kernel[(rows,)](
        gate, up, out, gate.stride(-2), out.stride(-2), n, BLOCK=triton.next_power_of_2(n)
    )
    return out
