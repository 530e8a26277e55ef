"""Right results are accepted: 2,000 random calls, computed in ways that round differently.

All compute in the accumulator that the ops document, fp32 for dtypes of two bytes, and round once:
torch's own functions, sums in sequence, backwards and by blocks, exponentials of base 2.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as all of torch's own pages have it
from torch import Tensor

from tests.kernels.problems.row_norm import problem, row_norm
from tests.kernels.suite import assert_right
from tests.kernels.tolerances.wrong_outputs import FLOATS
from warpcall_kernels import Op, ops
from warpcall_kernels.op.tolerance import accumulator

EXAMPLES = 2000
SHARES = 8  # tests of an op, each with as many of the examples
LONG = 5_000  # elements of a long row
Sum = Callable[[Tensor], Tensor]


def native(terms: Tensor) -> Tensor:
    """The sum of the last dim as torch has it."""
    return terms.sum(-1, keepdim=True)


def in_sequence(terms: Tensor) -> Tensor:
    """The sum of the last dim, one term after the other."""
    return terms.cumsum(-1)[..., -1:] if terms.shape[-1] else native(terms)


def backwards(terms: Tensor) -> Tensor:
    """The sum of the last dim, one term after the other, the last one first."""
    return in_sequence(terms.flip(-1))


def in_blocks(terms: Tensor) -> Tensor:
    """The sum of the last dim: 64 partial sums, which are then added up."""
    padded = F.pad(terms, (0, -terms.shape[-1] % 64))
    return in_sequence(in_sequence(padded.reshape(*padded.shape[:-1], -1, 64).mT).mT).squeeze(-1)


SUMS: tuple[Sum, ...] = (native, in_sequence, backwards, in_blocks)


class Drawn:
    """Random choices and tensors from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self.dtype = self.random.choice(FLOATS)
        self.sum = self.random.choice(SUMS)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        # In long sums in sequence of terms that differ by orders of magnitude, those below the last
        # digit of the sum are lost one by one. Such a result has an error that none should have.
        size = self.random.choice([1.0, 0.01, 30.0]) if shape[-1] < LONG else 1.0
        return (torch.randn(shape, generator=self._generator) * size).to(dtype or self.dtype)

    def wide(self, t: Tensor) -> Tensor:
        """The values in the accumulator."""
        return t.to(accumulator(self.dtype))

    def columns(self) -> int:
        """Mostly short rows, so that 2,000 examples take seconds."""
        many = self.random.random() < 0.05
        return self.random.randint(LONG, 100_000) if many else self.random.randint(1, 300)

    def softmax(self, scores: Tensor, *, base_2: bool) -> Tensor:
        """The softmax of the last dim, of scores of which at least one is finite in each row."""
        less = scores - scores.amax(-1, keepdim=True)
        powers = torch.exp2(less * math.log2(math.e)) if base_2 else less.exp()
        total = self.sum(powers)
        return powers * (1 / total) if base_2 else powers / total


Call = tuple[Op, dict[str, Tensor], dict[str, Any], Any]


def softmax(drawn: Drawn) -> Call:
    """A call of masked softmax."""
    x = drawn.normal(drawn.random.randint(1, 4), drawn.columns())
    scale = drawn.random.choice([1.0, 0.125, -2.0, 0.3])
    inputs, scores = {"x": x}, drawn.wide(x) * scale
    if drawn.random.random() < 0.5:
        mask = inputs["mask"] = drawn.normal(*x.shape) > 0
        mask[:, 0] = False
        scores = scores.masked_fill(mask, -math.inf)
    if drawn.random.random() < 0.3:
        out = scores.softmax(-1)
    else:
        out = drawn.softmax(scores, base_2=drawn.random.random() < 0.5)
    return ops()["masked-softmax"], inputs, {"scale": scale}, out.to(x.dtype)


def softmax_backward(drawn: Drawn) -> Call:
    """A call of its gradient, for outputs of a softmax and for others."""
    g = drawn.normal(drawn.random.randint(1, 4), drawn.columns())
    y = drawn.normal(*g.shape)
    if drawn.random.random() < 0.7:
        y = drawn.wide(y).softmax(-1).to(y.dtype)
    wide_g, wide_y = drawn.wide(g), drawn.wide(y)
    total = drawn.sum(wide_g * wide_y)
    if drawn.random.random() < 0.5:
        grad = 0.3 * wide_y * (wide_g - total)
    else:  # torch's own form
        grad = 0.3 * (wide_g * wide_y - wide_y * total)
    op = ops()["masked-softmax-backward"]
    return op, {"grad_output": g, "output": y}, {"scale": 0.3}, grad.to(g.dtype)


def _filters(drawn: Drawn) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """x, the filters as given, those as applied, and the parameters."""
    heads, taps = drawn.random.randint(1, 3), drawn.random.randint(1, 40)
    length = min(drawn.columns(), 20_000)
    x = drawn.normal(drawn.random.randint(1, 3), heads * drawn.random.randint(1, 3), length)
    weight = drawn.normal(heads, taps)
    params = {
        "padding_l": drawn.random.randint(0, taps - 1),
        "softmax_weight": drawn.random.random() < 0.5,
    }
    applied = drawn.wide(weight)
    if params["softmax_weight"]:
        applied = drawn.softmax(applied, base_2=drawn.random.random() < 0.5)
    return x, weight, applied, params


def _windows(t: Tensor, taps: int, before: int) -> Tensor:
    """[B, C, T, K]: the K positions of each row that begin `before` positions earlier."""
    return F.pad(t, (before, taps - 1 - before)).unfold(-1, taps, 1)


def conv(drawn: Drawn) -> Call:
    """A call of the convolution."""
    x, weight, applied, params = _filters(drawn)
    channels, taps = x.shape[1], weight.shape[1]
    by_channel = applied.repeat_interleave(channels // weight.shape[0], 0)
    inputs = {"x": x, "weight": weight}
    wide = drawn.wide(x)
    if drawn.random.random() < 0.3:
        before = params["padding_l"]
        padded = F.pad(wide, (before, taps - 1 - before))
        out = F.conv1d(padded, by_channel[:, None], groups=channels)
    else:
        terms = _windows(wide, taps, params["padding_l"]) * by_channel[:, None]
        out = drawn.sum(terms).squeeze(-1)
    if drawn.random.random() < 0.5:
        inputs["bias"] = drawn.normal(channels)
        out = out + drawn.wide(inputs["bias"])[:, None]
    return ops()["conv"], inputs, params, out.to(x.dtype)


def conv_backward(drawn: Drawn) -> Call:
    """A call of its gradients."""
    x, weight, applied, params = _filters(drawn)
    g = drawn.normal(*x.shape)
    heads, taps = weight.shape
    group, before = x.shape[1] // heads, params["padding_l"]
    wide_g, wide_x = drawn.wide(g), drawn.wide(x)
    flipped = applied.flip(1).repeat_interleave(group, 0)[:, None]
    grad_x = drawn.sum(_windows(wide_g, taps, taps - 1 - before) * flipped).squeeze(-1)
    terms = _windows(wide_x, taps, before) * wide_g[..., None]  # [B, C, T, K]
    by_head = terms.reshape(terms.shape[0], heads, group, *terms.shape[2:])
    by_tap = by_head.permute(1, 4, 0, 2, 3).flatten(2)
    grad_weight = drawn.sum(by_tap).squeeze(-1)
    if params["softmax_weight"]:
        total = drawn.sum(grad_weight * applied)
        grad_weight = applied * (grad_weight - total)
    grad_bias = drawn.sum(wide_g.transpose(0, 1).flatten(1)).squeeze(-1)
    grads = tuple(t.to(x.dtype) for t in (grad_x, grad_weight, grad_bias))
    inputs = {"grad_output": g, "x": x, "weight": weight}
    return ops()["conv-backward"], inputs, {**params, "bias": True}, grads


ROW_NORM = problem(dtypes=FLOATS).op("row-norm")


def of_problem(drawn: Drawn) -> Call:
    """A call of the problem of the tests, whose tolerance knows no terms."""
    x = drawn.normal(drawn.random.randint(1, 4), drawn.columns())
    wide = drawn.wide(x)
    if drawn.random.random() < 0.3:
        out = row_norm(wide, 1e-6)
    else:
        out = wide * torch.rsqrt(drawn.sum(wide.square()) + 1e-6)
    return ROW_NORM, {"x": x}, {}, out.to(x.dtype)


FAMILIES = (softmax, softmax_backward, conv, conv_backward, of_problem)


@pytest.mark.parametrize(
    "share", [0, *(pytest.param(share, marks=pytest.mark.slow) for share in range(1, SHARES))]
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_right_results_are_accepted(family: Callable[[Drawn], Call], share: int) -> None:
    count = EXAMPLES // len(FAMILIES) // SHARES
    for seed in range(share * count, (share + 1) * count):
        op, inputs, params, result = family(Drawn(seed))
        given: Mapping[str, Tensor] = inputs
        assert_right(op, given, params, result)
