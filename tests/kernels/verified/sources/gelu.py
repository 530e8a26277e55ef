"""GELU by the hyperbolic tangent, in blocks of one dimension."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def gelu_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32)
    inner = 0.7978845608 * (value + 0.044715 * value * value * value)
    tl.store(out + at, 0.5 * value * (1 + libdevice.tanh(inner)), mask=at < n)


@torch.library.custom_op("written_for_tests::gelu", mutates_args=())
def gelu_op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


def gelu(x):
    with torch.cuda.device(x.device):
        return gelu_op(x.contiguous())
