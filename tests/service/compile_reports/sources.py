"""Sources whose kernels are compiled: implementations of masked-softmax and of permute."""

from __future__ import annotations

SOFTMAX = '''"""A softmax of rows, one program for each."""

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * columns + at, mask=inside, other=-float("inf")).to(tl.float32)
    x = tl.exp(x - tl.max(x, axis=0))
    out = (x / tl.sum(x, axis=0)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * columns + at, out, mask=inside)


def masked_softmax(x, mask=None, lengths=None, scale=None, causal=False):
    assert x.is_cuda, "only on a GPU"
    out = torch.empty_like(x)
    rows = x.numel() // x.shape[-1]
    block = triton.next_power_of_2(x.shape[-1])
    with torch.cuda.device(x.device):
        _softmax[(rows,)](x, out, x.shape[-1], BLOCK=block, num_warps=8)
    return out
'''

TUNED = """
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({}, num_warps=w, num_stages=2) for w in (2, 4)], key=["columns"]
)
@triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["columns"])})
@triton.jit
def _copy(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside), mask=inside)


def permute(x, dims):
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    out = torch.empty(x.shape, dtype=x.dtype, device="cuda")
    for _ in range(3):
        _copy[lambda given: (min(x.shape[0], processors), given["BLOCK"] // 64)](
            x, out, x.shape[1]
        )
    return out
"""

_KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def _fill(out_ptr, VALUE: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, 16), VALUE)


"""
MANY = (
    _KERNEL + "def permute(x, dims):\n    for i in range(5000):\n        _fill[(1,)](x, float(i))\n"
)
LONG_CONSTANT = (
    _KERNEL.replace("VALUE)\n", "1.0)\n")
    + "def permute(x, dims):\n    _fill[(1,)](x, 'a' * 10_000_000)\n"
)
PRINTS = (
    _KERNEL
    + "def permute(x, dims):\n    for _ in range(20_000):\n        print('x' * 1000)\n    _fill[(1,)](x, 1.0)\n"
)
STOPS = (
    _KERNEL + "def permute(x, dims):\n    _fill[(1,)](x, 1.0)\n    raise ValueError('<b>no</b>')\n"
)
NOTHING = "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"
ENDLESS = (
    _KERNEL
    + "def permute(x, dims):\n    _fill[(1,)](x, 1.0)\n    import time\n    time.sleep(600)\n"
)
ENDLESS_COMPILE = (
    _KERNEL.replace(
        "    tl.store(out_ptr + tl.arange(0, 16), VALUE)",
        "    for i in tl.static_range(0, 10_000_000):\n"
        "        tl.store(out_ptr + tl.arange(0, 16) + i, VALUE)",
    )
    + "def permute(x, dims):\n    _fill[(1,)](x, 1.0)\n"
)
WRONG_KERNEL = _KERNEL.replace("VALUE)\n", "absent)\n") + (
    "def permute(x, dims):\n    _fill[(1,)](x, 1.0)\n"
)
EXITS = "import os\n\n\ndef permute(x, dims):\n    os._exit(0)\n"
LEAVES = "def permute(x, dims):\n    raise SystemExit(3)\n"
