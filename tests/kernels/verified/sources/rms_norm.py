"""RMS normalisation of rows, with weights in the dtype of the rows."""

import functools

import torch
import triton
import triton.language as tl


def contiguous_inputs(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*(a.contiguous() if isinstance(a, torch.Tensor) else a for a in args))

    return wrapper


def settings(n):
    block = triton.next_power_of_2(n)
    if block > 65536:
        raise RuntimeError(f"rows of {n} are too long")
    return block, 32 if block >= 32768 else 16 if block >= 8192 else 8 if block >= 2048 else 4


@triton.jit
def rms_norm_kernel(
    y,
    y_stride,
    x,
    x_stride,
    w,
    rstd,
    rstd_stride,
    n,
    eps,
    offset,
    CASTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * x_stride + at, mask=at < n, other=0)
    narrow = value.dtype
    weight = tl.load(w + at, mask=at < n, other=0)
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / n + eps)
    tl.store(rstd + row * rstd_stride, scale)
    value = value * scale
    if CASTS == 0:
        value = value.to(narrow)
    tl.store(y + row * y_stride + at, value * (offset + weight), mask=at < n)


class RmsNorm(torch.autograd.Function):
    @staticmethod
    @contiguous_inputs
    def forward(ctx, x, weight, eps, offset, casts):
        shape = x.shape
        x = x.view(-1, shape[-1])
        rows, columns = x.shape
        block, warps = settings(columns)
        y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
        rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
        rms_norm_kernel[(rows,)](
            *(y, y.stride(0), x, x.stride(0), weight, rstd, rstd.stride(0)),
            *(columns, eps, offset, casts),
            BLOCK=block,
            num_warps=warps,
        )
        return y.view(*shape)


def rms_norm(x, weight, eps=1e-6):
    return RmsNorm.apply(x, weight, eps, 0.0, 0)
