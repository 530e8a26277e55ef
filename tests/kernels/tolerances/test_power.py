"""Wrong outputs are rejected, however small the results are, in every dtype.

A comparison that accepts too much lets tests and benchmarks pass for nothing. These tests spoil
right results in the ways in which kernels fail, and expect that each is noticed.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.tolerances.wrong_outputs import GROUPS, Call, calls, wrong_outputs
from warpcall_kernels.op.compare import Comparison, same_bits

pytestmark = pytest.mark.slow

SEEDS = (1, 2)
COMPUTED_IN = {torch.float32: (torch.float16, torch.bfloat16), torch.float64: (torch.float32,)}
every_group = pytest.mark.parametrize("group", GROUPS)


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs have the same bits, but for the signs of zeros, so that neither is wrong."""
    one, other = (t.contiguous().view(-1) for t in (one, other))
    equal = same_bits(one, other)
    if one.is_floating_point() and one.dtype.itemsize > 1:
        equal |= one == other
    return bool(equal.all())


@every_group
def test_wrong_outputs_are_rejected(group: str) -> None:
    found = 0
    for call in calls(group):
        found += spoil(call)

    assert found > 0


def spoil(call: Call) -> int:
    """Spoil the outputs of a call, and count the wrong ones, which must all be rejected."""
    (inputs, wanted), (_, others) = (call.results(seed) for seed in SEEDS)
    outputs = call.op.check(inputs, call.params)
    comparison = Comparison(call.op, inputs, call.params)
    accepted, rejected = [], 0

    for name, meta in outputs.items():
        right = wanted[name].to(meta.dtype)
        assert comparison.difference(name, right, wanted[name]) is None, call.name
        previous = others[name].to(meta.dtype)
        spoilt = list(wrong_outputs(right, wanted[name], previous))
        for shorter in () if call.op.tolerance is None else COMPUTED_IN.get(meta.dtype, ()):
            computed = call.computed_in(shorter, inputs)[name].to(meta.dtype)
            spoilt.append((f"computed in {shorter}", computed))
        for kind, wrong in spoilt:
            if same(wrong, right):  # right by chance
                continue
            if comparison.difference(name, wrong, wanted[name]) is None:
                accepted.append(f"{name}: {kind}")
            else:
                rejected += 1

    assert accepted == [], call.name
    return rejected
