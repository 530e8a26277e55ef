"""Kernels that `test_launch_plans` compiles."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale(x, y, factor: tl.float32, size, BLOCK: tl.constexpr, BEYOND: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < size) * factor, mask=i < size + BEYOND)


@triton.jit
def add_to(x, y, size, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(y + i, mask=i < size) + tl.load(x + i, mask=i < size), mask=i < size)
