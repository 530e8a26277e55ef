"""Wrong outputs are rejected, however small the results are, in every dtype.

A comparison that accepts too much lets tests and benchmarks pass for nothing. These tests spoil
right results in the ways in which kernels fail, and expect that each is noticed.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from tests.kernels.tolerances.wrong_outputs import Call, calls, wrong_outputs
from warpcall_kernels.op.compare import Comparison, same_bits

pytestmark = pytest.mark.slow

SEEDS = (1, 2)
COMPUTED_IN = {torch.float32: (torch.float16, torch.bfloat16), torch.float64: (torch.float32,)}
CALLS = list(calls())
every_call = pytest.mark.parametrize("call", [pytest.param(c, id=c.name) for c in CALLS])


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs have the same bits, but for the signs of zeros, so that neither is wrong."""
    one, other = (t.contiguous().view(-1) for t in (one, other))
    equal = same_bits(one, other)
    if one.is_floating_point() and one.dtype.itemsize > 1:
        equal |= one == other
    return bool(equal.all())


@every_call
def test_wrong_outputs_are_rejected(call: Call) -> None:
    (inputs, wanted), (_, others) = (call.results(seed) for seed in SEEDS)
    outputs = call.op.check(inputs, call.params)
    comparison = Comparison(call.op, inputs, call.params)
    accepted, right_by_chance = [], Counter[str]()

    for name, meta in outputs.items():
        right = wanted[name].to(meta.dtype)
        assert comparison.difference(name, right, wanted[name]) is None
        previous = others[name].to(meta.dtype)
        spoilt = list(wrong_outputs(right, wanted[name], previous))
        for shorter in () if call.op.tolerance is None else COMPUTED_IN.get(meta.dtype, ()):
            computed = call.computed_in(shorter, inputs)[name].to(meta.dtype)
            spoilt.append((f"computed in {shorter}", computed))
        for kind, wrong in spoilt:
            if same(wrong, right):
                right_by_chance[kind] += 1
            elif comparison.difference(name, wrong, wanted[name]) is None:
                accepted.append(f"{name}: {kind}")

    assert accepted == []
    if right_by_chance:
        pytest.skip(f"the others are rejected, these are right: {', '.join(right_by_chance)}")
