"""Traps of masked softmax's backward: exact zeros, gradients of any layout, rows far apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.suite import assert_right
from tests.kernels.test_masked_softmax import far_apart
from warpcall_kernels import InvalidInput
from warpcall_kernels.masked_softmax import masked_softmax
from warpcall_kernels.masked_softmax_backward import OP, masked_softmax_backward


def by_torch(x: Tensor, mask: Tensor, g: Tensor, scale: float) -> Tensor:
    """The gradient of torch's own softmax; every row must have a position that counts."""
    (grad,) = torch.autograd.grad((x * scale).masked_fill(mask, -torch.inf).softmax(-1), x, g)
    return grad


@pytest.mark.parametrize("columns", [7, 1000, 20_000])
def test_the_gradient_is_zero_wherever_the_output_is(columns: int, device: str) -> None:
    y = torch.softmax(torch.randn(2, columns, device=device), -1)
    y[:, ::3] = 0
    g = torch.randn(2, columns, device=device)
    expected = masked_softmax_backward(g, y, 0.5)
    g[:, ::3] = float("nan")

    grad = masked_softmax_backward(g, y, 0.5)

    assert torch.equal(grad, expected)
    assert not grad[:, ::3].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_lies_under_a_mask_leaves_no_trace_in_the_gradient(bad: float, device: str) -> None:
    clean = torch.randn(4, 9, dtype=torch.float64, device=device)
    mask = torch.rand(4, 9, device=device) < 0.4
    mask[0, :2] = False  # a row with one column left has no gradient
    mask[1] = True
    lengths = torch.tensor([9, 4, 0, 5], device=device)
    x = clean.masked_fill(mask, bad).requires_grad_()
    clean.requires_grad_()
    g = torch.randn(4, 9, dtype=torch.float64, device=device)

    (grad,) = torch.autograd.grad(masked_softmax(x, mask, lengths, 0.5), x, g)

    (expected,) = torch.autograd.grad(masked_softmax(clean, mask, lengths, 0.5), clean, g)
    assert torch.equal(grad, expected)
    assert not grad[1:3].any()
    assert grad[0].any()


@pytest.mark.parametrize(
    "lay_out",
    [
        pytest.param(lambda g: g, id="contiguous"),
        pytest.param(lambda g: g.sum().expand(g.shape), id="expanded in all dims"),
        pytest.param(lambda g: g[:, :, :1].expand(g.shape), id="expanded in rows"),
        pytest.param(lambda g: g.transpose(0, 2).contiguous().transpose(0, 2), id="transposed"),
        pytest.param(lambda g: g.repeat_interleave(2, -1)[..., ::2], id="strided"),
        pytest.param(lambda g: g.repeat_interleave(12, -1)[..., ::12], id="strided, copied"),
    ],
)
def test_gradients_of_any_layout_give_what_torch_gives(lay_out: Any, device: str) -> None:
    x = torch.randn(4, 6, 5, dtype=torch.float64, device=device, requires_grad=True)
    mask = torch.rand(6, 5, device=device) < 0.3
    mask[:, 0] = False
    g = lay_out(torch.randn(4, 6, 5, dtype=torch.float64, device=device))

    (grad,) = torch.autograd.grad(masked_softmax(x, mask, scale=0.7), x, g)

    assert grad.is_contiguous()
    torch.testing.assert_close(grad, by_torch(x, mask, g, 0.7))


def test_a_second_derivative_is_refused_and_not_wrong(device: str) -> None:
    x = torch.randn(2, 5, dtype=torch.float64, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(masked_softmax(x).square().sum(), x, create_graph=True)

    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(grad.sum(), x)


@pytest.mark.slow
@given(
    rows=st.lists(st.integers(1, 4), min_size=0, max_size=5),
    columns=st.sampled_from([1, 3, 8, 33, 64, 1025]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    turned=st.booleans(),
    scale=st.sampled_from([1.0, 0.125, -2.0, 0.0]),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_gradient_is_the_formula_for_any_rows(
    rows: list[int],
    columns: int,
    dtype: torch.dtype,
    turned: bool,
    scale: float,
    device: str,
) -> None:
    generator = torch.Generator().manual_seed(columns)
    g, scores = torch.randn(2, *rows, columns, generator=generator)
    g, y = g.to(device, dtype), scores.softmax(-1).to(device, dtype)
    if turned:  # dims that do not merge, and columns that are steps apart
        g = g.transpose(0, -1).contiguous().transpose(0, -1)

    grad = masked_softmax_backward(g, y, scale)

    assert_right(OP, {"grad_output": g, "output": y}, {"scale": scale}, grad)


@pytest.mark.parametrize("columns", [8, 40_000])
def test_rows_2_to_the_30_apart_have_their_gradients(columns: int, device: str) -> None:
    g = far_apart(columns, "float16", device)
    g.copy_(torch.randn(3, columns))
    y = far_apart(columns, "float16", device)
    y.copy_(torch.rand(3, columns))

    grad = masked_softmax_backward(g, y)

    assert_right(OP, {"grad_output": g, "output": y}, {}, grad)


X = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: masked_softmax_backward(torch.zeros(()), torch.zeros(())), "output"),
        (lambda: masked_softmax_backward(X.int(), X.int()), "output"),
        (lambda: masked_softmax_backward(X, X[0]), "grad_output"),
        (lambda: masked_softmax_backward(X[..., :1], X), "grad_output"),
        (lambda: masked_softmax_backward(X, X.double()), "grad_output"),
        (lambda: masked_softmax_backward(X.to("meta"), X), "output"),
        (lambda: masked_softmax_backward(X, X, float("nan")), "scale"),
        (lambda: masked_softmax_backward(X, X, float("-inf")), "scale"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, argument: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        call()

    assert refused.value.argument == argument
