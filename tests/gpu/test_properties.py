"""Random shapes, strides, offsets, dtypes and values, against the references; `--examples` says how
many.

Sizes come from few ranges and dtypes from all, so that 2,000 examples need some 300 to 1,300
compiled kernels. Compiling them takes nearly all of the time. Each family is therefore SHARES tests,
and `pytest -n` gives them to as many processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.gpu.every_kernel import LOWERED_THRESHOLDS
from tests.kernels.suite import assert_right
from warpcall_kernels import Op, ops
from warpcall_kernels.op.declaration import dtype_name
from warpcall_kernels.permute import DTYPES

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
REALS = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)
NUMBERS = (*REALS, torch.complex64, torch.complex128)
ODD = st.integers(1, 400)
SIZES = st.one_of(st.sampled_from([1, 2, 3, 5, 8, 16, 31, 64, 100, 128, 257, 512]), ODD)
SHARES = 8  # tests of a family, each with as many of the examples
MANY = 5000  # columns; more are for few rows
COLUMNS = st.one_of(SIZES, st.integers(400, MANY), st.integers(9_000, 70_000))


@pytest.fixture(scope="module", autouse=True)
def _small_tensors_take_the_variants_for_large_ones() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        lower_thresholds(patch)
        yield


def lower_thresholds(patch: pytest.MonkeyPatch) -> None:
    """Let small tensors take the variants that are otherwise chosen for large ones only."""
    for module, name, value in LOWERED_THRESHOLDS:
        patch.setattr(module, name, value)


@pytest.fixture(scope="module")
def quiet(request: pytest.FixtureRequest) -> settings:
    return settings(
        max_examples=-(-request.config.getoption("--examples") // SHARES),
        deadline=None,
        phases=[Phase.explicit, Phase.generate],  # a failing example is reported as it is found
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@st.composite
def tensors(
    draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, *, special: bool = True
) -> Tensor:
    """A tensor of this shape at an odd or even address, its dims in any order in memory, with gaps."""
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else range(len(shape))
    steps = (
        [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
        if draw(st.booleans())
        else [1] * len(shape)
    )
    offset = draw(st.sampled_from([0, 0, 1, 3, 8]))
    seed = draw(st.integers(0, 2**31))
    stored = [shape[d] * steps[d] for d in order]
    values = _values(math.prod(stored) + offset, dtype, seed, special and draw(st.booleans()))
    laid = values[offset:].view(stored)[tuple(slice(None, None, steps[d]) for d in order)]
    return laid.permute([list(order).index(d) for d in range(len(shape))])


def _values(count: int, dtype: torch.dtype, seed: int, special: bool) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator, device="cuda") < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        words = torch.randint(-(2**31), 2**31, (count,), generator=generator, device="cuda")
        return words.to(dtype)
    wide = torch.complex64 if dtype.is_complex else torch.float32
    drawn = torch.randn(count, generator=generator, device="cuda", dtype=wide)
    if special:
        extremes = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], device="cuda")
        which = torch.randint(0, 60, (count,), generator=generator, device="cuda")
        drawn = torch.where(which < 5, extremes[which.clamp(max=4)].to(wide), drawn)
    return drawn.to(dtype)


def check(op: Op, inputs: dict[str, Tensor], params: dict[str, Any]) -> None:
    """The outputs are as the reference says: bit for bit, or within the op's tolerance of fp64."""
    got = op.compute(inputs, op.check_params(params))

    assert all(output.is_contiguous() for output in got.values())
    assert_right(op, inputs, params, got)


@st.composite
def permutations(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Any]]:
    rank = draw(st.integers(0, 6))
    sizes, room = [], 1 << 18
    for _ in range(rank):
        sizes.append(min(draw(SIZES), max(1, room)))
        room //= sizes[-1]
    x = draw(tensors(tuple(sizes), draw(st.sampled_from(DTYPES))))
    dims = [d - rank * draw(st.integers(0, 1)) for d in draw(st.permutations(range(rank)))]
    return {"x": x}, {"dims": tuple(dims)}


@st.composite
def sums(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Any]]:
    batch = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=3))
    one = [n if draw(st.booleans()) else 1 for n in batch]
    other = [n if draw(st.booleans()) else 1 for n in batch[draw(st.integers(0, len(batch))) :]]
    h, w = draw(SIZES), draw(SIZES)
    dtype = draw(st.sampled_from(NUMBERS))
    a = draw(tensors((*one, h, w), dtype))
    b = draw(tensors((*other, w, h), draw(st.sampled_from([dtype, *NUMBERS]))))
    return {"a": a, "b": b}, {}


@st.composite
def scores(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Any]]:
    rows = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 7, 16]), max_size=3)))
    columns = draw(COLUMNS)
    rows = rows[:1] if columns > MANY else rows
    x = draw(tensors((*rows, columns), draw(st.sampled_from(FLOATS))))
    inputs, shape = {"x": x}, (*rows, columns)
    if draw(st.booleans()):
        kept = tuple(n if draw(st.booleans()) else 1 for n in shape)
        inputs["mask"] = draw(tensors(kept, draw(st.sampled_from([torch.bool, torch.uint8]))))
    if draw(st.booleans()):
        kept = tuple(n if draw(st.booleans()) else 1 for n in rows)
        lengths = draw(tensors(kept, torch.int64)) % (columns + 3)
        inputs["lengths"] = lengths.to(draw(st.sampled_from([torch.int32, torch.int64])))
    causal = bool(rows) and draw(st.booleans())
    if draw(st.booleans()):
        inputs["bias"] = draw(biases(shape, x.dtype))
    if len(shape) > 2 and draw(st.booleans()):
        inputs["slopes"] = draw(tensors(shape[-3:-2], torch.float32, special=False)) / 4
    return inputs, {"scale": draw(st.sampled_from([1.0, 0.125, -2.0])), "causal": causal}


@st.composite
def biases(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A bias of scores of this shape and dtype, broadcast along any of their dims."""
    kept = tuple(n if draw(st.booleans()) else 1 for n in shape)[draw(st.integers(0, 1)) :]
    allowed = FLOATS if dtype == torch.float64 else FLOATS[:3]
    return draw(tensors(kept, draw(st.sampled_from(allowed))))


@st.composite
def outputs(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Any]]:
    rows = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 7, 16]), max_size=3)))
    columns = draw(COLUMNS)
    shape = (*(rows[:1] if columns > MANY else rows), columns)
    dtype = draw(st.sampled_from(FLOATS))
    y = draw(tensors(shape, dtype, special=False))
    y = torch.where(y > 0, y, 0) / shape[-1]  # as a softmax of which half is masked
    return {"grad_output": draw(tensors(shape, dtype)), "output": y}, {"scale": 0.5}


@st.composite
def biased_outputs(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Any]]:
    inputs, params = draw(outputs())
    y = inputs["output"]
    return {**inputs, "bias": draw(biases(tuple(y.shape), y.dtype))}, params


@st.composite
def filters(
    draw: st.DrawFn, dtype: torch.dtype, *, backward: bool
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    heads = draw(st.sampled_from([1, 2, 3, 8]))
    channels = heads * draw(st.sampled_from([1, 2, 5]))
    # Each number of taps, and each of the ways in which a row is cut, is a kernel of its own.
    taps = draw(st.sampled_from([1, 3, 8, 16, 40] if backward else [1, 2, 3, 7, 9, 15, 31, 33, 70]))
    lengths = [1, 5, 31, 64, 256, 1101] if backward else [1101, 2048, 2500]
    length = draw(
        st.sampled_from(lengths) if backward else st.one_of(SIZES, st.sampled_from(lengths))
    )
    shape = (draw(st.integers(1, 4)), channels, length)
    inputs = {
        "x": draw(tensors(shape, dtype)),
        "weight": draw(tensors((heads, taps), dtype, special=False)),
    }
    params = {
        "padding_l": draw(st.sampled_from([None, taps // 2] if backward else [None, 0, taps // 2])),
        "softmax_weight": draw(st.booleans()),
    }
    if backward:
        # Small integers: what is compared is not how sums of many terms are rounded.
        inputs["x"] = inputs["x"].nan_to_num(0, 1, -1).round().clamp(-3, 3)
        g = draw(tensors(shape, dtype, special=False)).round().clamp(-3, 3)
        return {"grad_output": g, **inputs}, {**params, "bias": draw(st.booleans())}
    if draw(st.booleans()):
        inputs["bias"] = draw(tensors((channels,), dtype))
    return inputs, params


@st.composite
def sets(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Any]]:
    shape = tuple(draw(st.lists(SIZES, max_size=2)))
    n = draw(st.one_of(st.integers(0, 40), st.integers(40, 6000), st.sampled_from([70_000])))
    one, other = draw(st.sampled_from(REALS)), draw(st.sampled_from(REALS))
    x, test = (
        draw(tensors(shape, one)),
        draw(tensors((n,), other)) if n else torch.empty(0, dtype=other, device="cuda"),
    )
    if draw(st.booleans()) and not (one.is_floating_point or one == torch.bool):
        x = x % 1000
    if draw(st.booleans()) and n and not (other.is_floating_point or other == torch.bool):
        test = test % 5000
    return {"elements": x, "test_elements": test}, {"invert": draw(st.booleans())}


CALLS = {
    "permute": ("permute", permutations()),
    "transpose-add": ("transpose-add", sums()),
    "masked-softmax": ("masked-softmax", scores()),
    "masked-softmax-backward": ("masked-softmax-backward", outputs()),
    "masked-softmax-bias-backward": ("masked-softmax-bias-backward", biased_outputs()),
    "isin": ("isin", sets()),
    **{
        f"{op} {dtype_name(dtype)}": (op, filters(dtype, backward=op == "conv-backward"))
        for op in ("conv", "conv-backward")
        for dtype in FLOATS
    },
}


def test_every_op_is_called() -> None:
    assert {op for op, _ in CALLS.values()} == set(ops())


@pytest.mark.parametrize(
    "name", [pytest.param(name, id=f"{name} {i}") for i in range(SHARES) for name in CALLS]
)
def test_any_call_is_as_the_reference_says(name: str, quiet: settings) -> None:
    op, calls = ops()[CALLS[name][0]], CALLS[name][1]

    @quiet
    @given(call=calls)
    def holds(call: tuple[dict[str, Tensor], dict[str, Any]]) -> None:
        check(op, *call)

    holds()
