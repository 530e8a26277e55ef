"""Sources that are verified: implementations of permute."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"
PERMUTE = (EXAMPLES / "verified_permute.py").read_text()
SOFTMAX = (EXAMPLES / "verified_softmax.py").read_text()
CONV = (EXAMPLES / "verified_conv.cu").read_text()

_KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def _copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def permute(x, dims):
"""
COPY = (
    _KERNEL
    + """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _copy[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out
"""
)
COMPUTES = (
    _KERNEL
    + """
    return x.permute(dims).contiguous() + 1
"""
)
READS = (
    _KERNEL
    + """
    out = torch.empty_like(x)
    if x.sum().item() > 0:
        _copy[(1,)](x, out, x.numel(), BLOCK=64)
    return out
"""
)
RETURNS_INPUT = (
    _KERNEL
    + """
    _copy[(1,)](x, x, x.numel(), BLOCK=64)
    return x
"""
)
RAISES = (
    _KERNEL
    + """
    raise ValueError("<b>not for such dims</b>")
"""
)
WRONG_KERNEL = COPY.replace("at < n), mask", "at < absent), mask")
ENDLESS = "def permute(x, dims):\n    while True:\n        pass\n"
EXITS = "import os\n\n\ndef permute(x, dims):\n    os._exit(0)\n"
LEAVES = "def permute(x, dims):\n    raise SystemExit(3)\n"
FORGED = """
import os, struct
payload = {payload!r}
for fd in range(3, 1024):
    try:
        os.write(fd, struct.pack("<I", len(payload)) + payload)
    except OSError:
        pass
os._exit(0)
"""
