"""Softmax over rows, with as many persistent programs as the GPU can hold at a time."""

import torch
import triton
import triton.language as tl
from triton.runtime import driver

DEVICE = driver.active.get_active_torch_device()
PROPERTIES = driver.active.utils.get_device_properties(DEVICE.index)


@triton.jit
def softmax_kernel(
    out, x, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        at = tl.arange(0, BLOCK)
        values = tl.load(x + row * x_stride + at, mask=at < columns, other=-float("inf"))
        numerator = tl.exp(values - tl.max(values, axis=0))
        tl.store(
            out + row * out_stride + at, numerator / tl.sum(numerator, axis=0), mask=at < columns
        )


def softmax(x):
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    stages = 4 if PROPERTIES["max_shared_mem"] > 200_000 else 2
    out = torch.empty_like(x)
    compiled = softmax_kernel.warmup(
        *(out, x, x.stride(0), out.stride(0), rows, columns),
        BLOCK=block,
        STAGES=stages,
        num_warps=8,
        grid=(1,),
    )
    compiled._init_handles()
    occupancy = PROPERTIES["max_num_regs"] // (compiled.n_regs * PROPERTIES["warpSize"] * 8)
    if compiled.metadata.shared:
        occupancy = min(occupancy, PROPERTIES["max_shared_mem"] // compiled.metadata.shared)
    programs = min(PROPERTIES["multiprocessor_count"] * occupancy, rows)
    softmax_kernel[programs, 1, 1](
        *(out, x, x.stride(0), out.stride(0), rows, columns), block, stages, num_warps=8
    )
    return out
