"""Sources as users upload them: implementations of permute."""

from __future__ import annotations

PLAIN = '''"""A file."""

import torch


def permute(x, dims):
    """Permute in plain torch.

    More text.
    """
    return x.permute(dims).contiguous()
'''

TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0)
    total = tl.sum(tl.where(inside, x, 0.0), axis=0)  # of Triton's own library
    tl.store(out_ptr + at * rows + row, x + 0.0 * total, mask=inside)


def permute(x, dims):
    assert tuple(dims) == (1, 0)
    rows, columns = x.shape
    out = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    _kernel[(rows,)](x, out, rows, columns, BLOCK=triton.next_power_of_2(columns))
    return out
"""

WRONG = "def permute(x, dims):\n    return x.permute(dims).contiguous() + 1\n"

# Without torch, so that its check is fast.
SHORT = "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"

# Takes so long that the server's own clock confirms its times on a CPU, too. It is also right in odd
# cases, where `contiguous` may return the input.
LONG = """
import time

import torch


def permute(x, dims):
    until = time.perf_counter() + 0.002
    out = x.permute(dims).clone(memory_format=torch.contiguous_format)
    while time.perf_counter() < until:
        out = x.permute(dims).clone(memory_format=torch.contiguous_format)
    return out
"""
