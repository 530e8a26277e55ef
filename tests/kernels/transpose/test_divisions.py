"""Divisions by sizes that the compiler does not know, as programs divide their numbers."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from warpcall_kernels._transpose.strides import divide, reciprocal

MOST = 2**31 - 1
SIZES = [1, 2, 3, 5, 7, 8, 16, 641, 46_341, 2**20 + 7, 2**30, 2**30 + 1, MOST]


@triton.jit(do_not_specialize=("size", "reciprocal_of_size"))
def _kernel(
    n_ptr: tl.tensor,
    quotient_ptr: tl.tensor,
    remainder_ptr: tl.tensor,
    size: tl.tensor,
    reciprocal_of_size: tl.tensor,
) -> None:
    pid = tl.program_id(0)
    quotient, remainder = divide(tl.load(n_ptr + pid), size, reciprocal_of_size)
    tl.store(quotient_ptr + pid, quotient)
    tl.store(remainder_ptr + pid, remainder)


@pytest.mark.parametrize("size", SIZES)
def test_quotients_and_remainders_are_exact(size: int, device: str) -> None:
    multiples = {times * size for times in (0, 1, 2, 3, 1000, MOST // size)}
    numbers = {m + e for m in multiples for e in (-1, 0, 1)} | {MOST}
    n = torch.tensor(sorted(m for m in numbers if 0 <= m <= MOST), dtype=torch.int32, device=device)
    quotient, remainder = torch.empty_like(n), torch.empty_like(n)

    _kernel[(n.numel(),)](n, quotient, remainder, size, reciprocal(size))

    assert torch.equal(quotient, n // size)
    assert torch.equal(remainder, n % size)
