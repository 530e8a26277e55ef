"""Masked softmax with a bias and with slopes: what is added, what -inf masks, and both gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.layouts import arguments, at, variant
from tests.kernels.suite import assert_bits_equal, assert_right
from warpcall_kernels import InvalidInput
from warpcall_kernels import masked_softmax as forward
from warpcall_kernels import masked_softmax_bias_backward as backward
from warpcall_kernels._softmax import constants
from warpcall_kernels._softmax.rows import Variant
from warpcall_kernels.masked_softmax import masked_softmax, masked_softmax_reference
from warpcall_kernels.masked_softmax_bias_backward import masked_softmax_bias_backward
from warpcall_kernels.op.launch import Launch, layout_key

quiet = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SHAPE = (2, 3, 5, 12)
F64 = torch.float64
BROADCASTS = [
    tuple(1 if one else n for one, n in zip(ones, SHAPE, strict=True))
    for ones in itertools.product((False, True), repeat=4)
]


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plan as if few warps filled a device, held few bytes, and parts took no memory: small sums have parts, too."""
    monkeypatch.setattr(constants, "BIAS_PARTS_SHARE", 1000.0)
    monkeypatch.setattr(constants, "BIAS_LEAST_STEPS", 1)
    monkeypatch.setattr(constants, "BIAS_TILE_BYTES", 512)
    monkeypatch.setattr(constants, "HELD_BYTES_BIAS", 8192)
    backward._plan.cache_clear()
    yield
    backward._plan.cache_clear()


def by_torch(x: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
    return torch.softmax(scale * x + bias, -1)


@pytest.mark.parametrize("shape", [*BROADCASTS, (3, 1, 12), (12,), (1,), ()], ids=str)
def test_a_bias_is_broadcast_and_its_gradient_summed_as_torch_does(
    shape: tuple[int, ...], device: str
) -> None:
    x = torch.randn(SHAPE, dtype=F64, device=device, requires_grad=True)
    bias = torch.randn(shape, dtype=F64, device=device, requires_grad=True)
    g = torch.randn(SHAPE, dtype=F64, device=device)

    out = masked_softmax(x, scale=0.7, bias=bias)
    grads = torch.autograd.grad(out, (x, bias), g)

    expected = by_torch(x, bias, 0.7)
    torch.testing.assert_close(out, expected)
    for grad, right in zip(grads, torch.autograd.grad(expected, (x, bias), g), strict=True):
        torch.testing.assert_close(grad, right)
        assert grad.is_contiguous()


@pytest.mark.thinned
@pytest.mark.parametrize("other", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("shape", [(2, 1, 1, 12), (1, 3, 5, 12), SHAPE])
def test_dtypes_of_scores_and_bias_need_not_be_equal(
    dtype: torch.dtype, other: torch.dtype, shape: tuple[int, ...], device: str
) -> None:
    x = torch.randn(SHAPE, device=device).to(dtype).requires_grad_()
    bias = torch.randn(shape, device=device).to(other).requires_grad_()
    g = torch.randn(SHAPE, device=device).to(dtype)

    out = masked_softmax(x, scale=2.0, bias=bias)
    grad_x, grad_bias = torch.autograd.grad(out, (x, bias), g)

    assert (out.dtype, grad_x.dtype, grad_bias.dtype) == (dtype, dtype, other)
    given_bias = bias.detach()
    assert_right(forward.OP, {"x": x.detach(), "bias": given_bias}, {"scale": 2.0}, out.detach())
    inputs = {"grad_output": g, "output": out.detach(), "bias": given_bias}
    assert_right(backward.OP, inputs, {"scale": 2.0}, (grad_x, grad_bias))


@pytest.mark.parametrize("columns", [1, 7, 64, 1000, 20_000, 40_000])
def test_a_bias_of_minus_infinity_masks_as_a_mask_does(columns: int, device: str) -> None:
    x = torch.randn(4, columns, device=device)
    mask = torch.rand(4, columns, device=device) < 0.4
    mask[1] = True
    bias = torch.zeros(4, columns, device=device).masked_fill(mask, -math.inf)

    out = masked_softmax(x.masked_fill(mask, math.nan), bias=bias)

    assert_right(forward.OP, {"x": x, "mask": mask}, {}, out)
    assert not out[1].any()
    assert not out[mask].any()


def test_a_row_whose_bias_is_minus_infinity_has_zeros_and_no_gradient(device: str) -> None:
    x = torch.randn(2, 3, 9, dtype=F64, device=device, requires_grad=True)
    bias = torch.zeros(2, 1, 9, dtype=F64, device=device)
    bias[0] = -math.inf
    bias.requires_grad_()

    out = masked_softmax(x, bias=bias)
    grad_x, grad_bias = torch.autograd.grad(out.square().sum(), (x, bias))

    assert not out[0].any()
    assert not grad_x[0].any()
    assert not grad_bias[0].any()
    torch.testing.assert_close(out[1], torch.softmax(x[1], -1))
    assert grad_x[1].any()
    assert grad_bias[1].any()


@pytest.mark.parametrize("columns", [6, 1000, 40_000])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_inf_in_a_bias_spoil_their_rows_as_in_torch(
    columns: int, value: float, device: str
) -> None:
    x, bias = torch.randn(3, columns, device=device), torch.randn(3, columns, device=device)
    bias[1, columns // 2] = value
    bias[2, 0] = -0.0

    out = masked_softmax(x, bias=bias)

    assert torch.equal(out.isnan(), by_torch(x, bias).isnan())
    assert out[1].isnan().all()
    assert not out[::2].isnan().any()


@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    queries=st.integers(1, 6),
    columns=st.sampled_from([1, 2, 7, 16, 33, 100, 1025]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, F64]),
    other=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    ones=st.tuples(*[st.booleans()] * 8),
    masked=st.booleans(),
    by_lengths=st.booleans(),
    causal=st.booleans(),
    sloped=st.booleans(),
    biased=st.booleans(),
    scale=st.sampled_from([1.0, 0.125, -2.0, 0.0]),
    apart=st.tuples(st.integers(1, 3), st.sampled_from([1, 1, 2, 9])),
)
@quiet
def test_bias_slopes_masks_lengths_and_causality_combine(
    batch: int,
    heads: int,
    queries: int,
    columns: int,
    dtype: torch.dtype,
    other: torch.dtype,
    ones: tuple[bool, ...],
    masked: bool,
    by_lengths: bool,
    causal: bool,
    sloped: bool,
    biased: bool,
    scale: float,
    apart: tuple[int, int],
    device: str,
) -> None:
    generator = torch.Generator().manual_seed(columns)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    shape = (batch, heads, queries, columns)
    sizes = [1 if one else n for one, n in zip(ones, (*shape, *shape), strict=True)]
    inputs: dict[str, Any] = {"x": drawn(*shape, apart[0]).to(device, dtype)[..., 0]}
    if masked:
        inputs["mask"] = (drawn(*sizes[:4]) < -0.5).to(device)
    if by_lengths:
        inputs["lengths"] = torch.randint(-1, columns + 2, (batch, 1, 1), generator=generator)
        inputs["lengths"] = inputs["lengths"].to(device)
    if biased:
        bias = drawn(*sizes[4:], apart[1]).to(device, other)[..., 0]
        inputs["bias"] = bias.masked_fill(bias > 1.5, -math.inf)
    if sloped:
        inputs["slopes"] = drawn(heads).to(device)
    form: dict[str, Any] = {"causal": causal, "scale": scale}

    out = masked_softmax(**inputs, **form)

    assert_right(forward.OP, inputs, form, out)
    exact = masked_softmax_reference(**{**inputs, "x": inputs["x"].double()}, **form)
    assert not out[exact == 0].any()
    if biased:
        g = drawn(*shape, apart[0]).to(device, dtype)[..., 0]
        grads = {"grad_output": g, "output": out, "bias": inputs["bias"]}
        both = masked_softmax_bias_backward(g, out, inputs["bias"], scale)
        assert_right(backward.OP, grads, {"scale": scale}, both)


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (3, 7), (7, 3), (1, 33), (2, 40_000)])
def test_slopes_are_minus_the_distance_where_causality_masks(
    queries: int, keys: int, device: str
) -> None:
    x = torch.randn(2, 3, queries, keys, device=device)
    slopes = torch.tensor([0.5, 0.25, 0.0], device=device)
    q = torch.arange(queries, device=device)[:, None] + keys - queries
    distance = (q - torch.arange(keys, device=device)).abs()
    bias = (-slopes[:, None, None] * distance).masked_fill(
        torch.ones(queries, keys, device=device).triu(keys - queries + 1) > 0, -math.inf
    )

    out = masked_softmax(x, causal=True, slopes=slopes)

    assert_right(forward.OP, {"x": x, "bias": bias}, {}, out)


@pytest.mark.parametrize(
    ("columns", "dtype", "taken"),
    [
        (77, torch.bfloat16, Variant.TILE),
        (1029, torch.float32, Variant.TILE),
        (20_003, torch.float32, Variant.LONG),
    ],
)
@pytest.mark.parametrize("kept", [(2, 3, 3), (1, 3, 3), (1, 1, 1)], ids=str)
def test_bias_and_slopes_of_skewed_rows_are_those_of_their_positions(
    columns: int, dtype: torch.dtype, taken: Variant, kept: tuple[int, int, int], device: str
) -> None:
    x = torch.randn(2, 3, 3, columns, device=device).to(dtype)
    bias = torch.randn(*kept, columns, device=device).masked_fill_(
        torch.rand(*kept, columns, device=device) < 0.2, -math.inf
    )
    slopes = torch.tensor([0.5, -0.25, 0.125], device=device) * 20 / columns
    inputs = {"x": x, "bias": bias, "slopes": slopes}

    out = masked_softmax(x, bias=bias, slopes=slopes)

    plan = forward._plan(
        layout_key(x), None, None, 1.0, False, layout_key(bias), layout_key(slopes)
    )
    assert variant(plan) == taken
    assert arguments(plan)["SKEWED"]
    assert_right(forward.OP, inputs, {}, out)


def test_slopes_have_no_gradient_and_say_so(device: str) -> None:
    x = torch.randn(2, 3, 4, device=device)
    slopes = torch.ones(2, device=device, requires_grad=True)

    with pytest.raises(InvalidInput, match=r"slopes\.detach\(\)"):
        masked_softmax(x, slopes=slopes)
    with torch.no_grad():
        out = masked_softmax(x, slopes=slopes)

    assert_right(forward.OP, {"x": x, "slopes": slopes.detach()}, {}, out)


def test_a_bias_that_leaves_four_dims_of_rows_is_copied(device: str) -> None:
    x = torch.randn(2, 3, 2, 4, 5, device=device)
    mask = torch.rand(3, 1, 4, 5, device=device) < 0.3
    bias = torch.randn(2, 1, 2, 1, 5, device=device)

    out = masked_softmax(x, mask, bias=bias)

    assert_right(forward.OP, {"x": x, "mask": mask, "bias": bias}, {}, out)


@pytest.mark.parametrize(
    ("columns", "dtype", "other", "taken"),
    [
        (17, torch.bfloat16, torch.bfloat16, Variant.TILE),
        (32_768, torch.bfloat16, torch.bfloat16, Variant.TILE),
        (16_384, torch.float32, torch.float16, Variant.TILE),
        (32_776, torch.bfloat16, torch.float32, Variant.LONG),
        (20_001, torch.float32, torch.float32, Variant.LONG),
    ],
)
@pytest.mark.usefixtures("many_rows")
def test_rows_with_a_bias_are_held_or_read_twice(
    columns: int, dtype: torch.dtype, other: torch.dtype, taken: Variant
) -> None:
    x, bias = at(0, (40_000, columns), dtype), at(0, (columns,), other)

    assert variant(forward._plan(x, None, None, 1.0, False, bias)) == taken


@pytest.mark.parametrize(
    ("address", "pitch", "dtype", "align"),
    [
        (0, 64, torch.bfloat16, 8),
        (8, 64, torch.bfloat16, 4),
        (2, 64, torch.bfloat16, 1),
        (0, 68, torch.bfloat16, 4),
        (0, 64, torch.float32, 4),
        (8, 64, torch.float32, 2),
    ],
)
def test_a_bias_is_read_as_widely_as_its_rows_allow(
    address: int, pitch: int, dtype: torch.dtype, align: int
) -> None:
    x, bias = at(0, (3, 64), torch.bfloat16), at(address, (3, 64), dtype, pitch)

    plan = arguments(forward._plan(x, None, None, 1.0, False, bias))

    assert plan["BIAS_ALIGN"] == align
    assert not plan["FOLDED"]


@pytest.mark.parametrize(("address", "pitch", "align"), [(0, 77, 8), (0, 76, 1), (2, 77, 1)])
def test_a_bias_of_skewed_rows_is_aligned_where_its_rows_begin_as_those_of_the_result(
    address: int, pitch: int, align: int
) -> None:
    x, bias = at(0, (3, 77), torch.bfloat16), at(address, (3, 77), torch.bfloat16, pitch)

    plan = arguments(forward._plan(x, None, None, 1.0, False, bias))

    assert plan["SKEWED"]
    assert plan["BIAS_ALIGN"] == align


def test_a_call_without_a_bias_is_planned_as_before() -> None:
    plan = arguments(forward._plan(at(0, (32, 512), torch.bfloat16), None, None, 0.5, False))

    assert plan["FOLDED"]
    assert plan["bias_strides"] is None
    assert plan["slope_strides"] is None


@pytest.mark.slow
@pytest.mark.thinned
@pytest.mark.parametrize("columns", [1, 6, 33, 300, 9000])
@pytest.mark.parametrize(
    "kept", [(1, 1, 1), (4, 1, 1), (1, 9, 1), (1, 1, 2), (4, 1, 2), (4, 9, 2), (1, 9, 2)], ids=str
)
@pytest.mark.parametrize("summed_columns", [False, True])
@pytest.mark.usefixtures("few_programs")
def test_parts_of_a_gradient_are_added_in_one_order(
    columns: int, kept: tuple[int, int, int], summed_columns: bool, device: str
) -> None:
    if columns > 1000 and kept[:2] != (4, 1):
        pytest.skip("one such bias of long rows takes seconds to interpret")
    heads = 3 if columns > 1000 and device == "cpu" else 9
    shape = (4, heads, 2, columns)
    y = torch.softmax(torch.randn(shape, device=device), -1).to(torch.bfloat16)
    g = torch.randn(shape, device=device).to(torch.bfloat16)
    bias = torch.empty(*kept, 1 if summed_columns else columns, device=device)
    launches = backward._plan(layout_key(g), layout_key(y), layout_key(bias), 0.5)

    grads, again = (masked_softmax_bias_backward(g, y, bias, 0.5) for _ in range(2))

    assert launches is not None
    assert (launches.totals is not None) == (columns > 1000)
    if columns >= 33:  # a tile has all rows of shorter ones
        assert (launches.slots > 1) == (kept != (4, 9, 2) or (columns > 1000 and summed_columns))
    for grad, other in zip(grads, again, strict=True):
        assert_bits_equal(grad, other)
    inputs = {"grad_output": g, "output": y, "bias": torch.zeros_like(bias)}
    assert_right(backward.OP, inputs, {"scale": 0.5}, grads)


def test_what_lies_under_a_mask_leaves_no_trace_in_either_gradient(device: str) -> None:
    y = torch.softmax(torch.randn(3, 4, 30, device=device), -1)
    y[..., ::3], y[1] = 0, 0
    g = torch.randn(3, 4, 30, device=device)
    bias = torch.zeros(30, device=device)
    expected = masked_softmax_bias_backward(g, y, bias)

    grads = masked_softmax_bias_backward(g.masked_fill(y == 0, math.nan), y, bias)

    for grad, right in zip(grads, expected, strict=True):
        assert torch.equal(grad, right)
        assert not grad[..., ::3].any()


def test_a_gradient_of_x_alone_takes_the_launch_without_a_bias(
    launched: list[Launch], device: str
) -> None:
    x = torch.randn(2, 8, device=device, requires_grad=True)

    torch.autograd.backward(masked_softmax(x, bias=torch.zeros(8, device=device)).sum())

    names = [launch.kernel.fn.__name__ for launch in launched]
    assert not [name for name in names if "bias" in name]


X = torch.zeros(4, 3, 5, 8)
FULL_MESSAGE = (
    r"^mask must be broadcastable to \(4, 3, 5, 8\), the shape of x, got \(4, 8\); of one row for "
    r"each batch, pass mask\[:, None, None\]$"
)


@pytest.mark.parametrize(
    ("call", "argument", "message"),
    [
        (
            lambda: masked_softmax(X, torch.zeros(4, 8, dtype=torch.bool)),
            "mask",
            FULL_MESSAGE,
        ),
        (lambda: masked_softmax(X, bias=torch.zeros(4, 8)), "bias", r"pass bias\[:, None, None\]"),
        (lambda: masked_softmax(X[:, 0], bias=torch.zeros(4, 8)), "bias", r"pass bias\[:, None\]$"),
        (lambda: masked_softmax(X, bias=torch.zeros(7)), "bias", r"got \(7,\)$"),
        (lambda: masked_softmax(X, bias=torch.zeros(1, 4, 3, 5, 8)), "bias", "broadcastable"),
        (lambda: masked_softmax(X, bias=torch.zeros(8, dtype=torch.int32)), "bias", "int32"),
        (
            lambda: masked_softmax(X, bias=torch.zeros(8, dtype=F64)),
            "bias",
            "bias must be one of float16, bfloat16, float32, got float64",
        ),
        (lambda: masked_softmax(X, slopes=torch.zeros(5)), "slopes", r"must have shape \(3,\)"),
        (lambda: masked_softmax(X, slopes=torch.zeros(3, 1)), "slopes", r"must have shape \(3,\)"),
        (lambda: masked_softmax(X[0, 0], slopes=torch.zeros(3)), "slopes", "at least 3 dims"),
        (lambda: masked_softmax(X, slopes=torch.zeros(3).int()), "slopes", "int32"),
        (lambda: masked_softmax(X, bias=torch.zeros(8, device="meta")), "bias", "must be on cpu"),
        (lambda: masked_softmax_bias_backward(X, X, torch.zeros(4, 8)), "bias", "the shape of out"),
        (lambda: masked_softmax_bias_backward(X, X[0], torch.zeros(8)), "grad_output", "shape"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, argument: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        call()

    assert refused.value.argument == argument
