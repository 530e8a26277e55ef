"""Traps of conv and its gradients: any filter and padding, the same bits twice, sums in fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.suite import assert_right
from warpcall_kernels import InvalidInput
from warpcall_kernels._conv import backward
from warpcall_kernels._conv.forward import DOT_SHORT, FMA_MAX_TAPS
from warpcall_kernels.conv import OP, conv, conv_reference
from warpcall_kernels.conv_backward import conv_backward, conv_backward_reference
from warpcall_kernels.op.launch import Launch

FMA, DOT, BLOCKS, BANDS = "_fma_kernel", "_dot_kernel", "_blocks_kernel", "_bands_kernel"
ALIGNED, SKEWED = 96, 101  # positions of rows of two-byte types

FEW_TAPS = [(3, FMA)]
# Of fp16 and bf16; "several bands" is a loop of products, for what one does not reach.
BOTH_KERNELS = [
    *FEW_TAPS,
    pytest.param(FMA_MAX_TAPS, FMA, id="most of fma"),
    pytest.param(FMA_MAX_TAPS + 1, DOT, id="fewest of dot"),
    pytest.param(DOT_SHORT + 8, BANDS, id="several bands"),
]
MANY_TAPS_OF_GRADIENTS = 1 + max(
    backward.FMA_MAX_TAPS,
    backward.FMA_MAX_TAPS_SKEWED,
    backward.FMA_MAX_TAPS_FEW,
)

quiet = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def names(launched: list[Launch]) -> list[str]:
    return [str(launch.kernel.fn.__name__) for launch in launched]


def by_definition(x: Tensor, weight: Tensor, padding_l: int) -> Tensor:
    """The sum as the formula has it, term by term."""
    out = torch.zeros_like(x)
    channels, length = x.shape[1:]
    heads, taps = weight.shape
    for c in range(channels):
        for t in range(length):
            for j in range(taps):
                s = t + j - padding_l
                if 0 <= s < length:
                    out[:, c, t] += weight[c // (channels // heads), j] * x[:, c, s]
    return out


@pytest.mark.parametrize("padding_l", [0, 1, 2])
def test_the_reference_is_the_formula(padding_l: int) -> None:
    x, weight = torch.randn(2, 4, 6, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)

    torch.testing.assert_close(
        conv_reference(x, weight, padding_l=padding_l), by_definition(x, weight, padding_l)
    )


@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 40)),
    heads=st.integers(1, 3),
    taps=st.integers(1, 40),
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    softmax=st.booleans(),
)
@quiet
def test_any_shape_filter_and_padding(
    sizes: tuple[int, int, int],
    heads: int,
    taps: int,
    data: st.DataObject,
    dtype: torch.dtype,
    softmax: bool,
    device: str,
) -> None:
    batches, group, length = sizes
    generator = torch.Generator().manual_seed(taps)
    x = torch.randn(batches, heads * group, length, generator=generator).to(device, dtype)
    weight = torch.randn(heads, taps, generator=generator).to(device, dtype)
    padding = data.draw(st.integers(0, taps - 1))

    out = conv(x, weight, padding_l=padding, softmax_weight=softmax)

    how = {"padding_l": padding, "softmax_weight": softmax}
    assert_right(OP, {"x": x, "weight": weight}, how, out)


@pytest.mark.parametrize(
    ("dtype", "taps", "taps_of_gradients", "kernels"),
    [
        (torch.bfloat16, 8, 8, [FMA, FMA]),
        (torch.bfloat16, FMA_MAX_TAPS, backward.FMA_MAX_TAPS_FEW, [FMA, FMA]),
        (torch.float16, FMA_MAX_TAPS + 1, backward.FMA_MAX_TAPS_FEW + 1, [DOT, BLOCKS]),
        (torch.float16, DOT_SHORT + 2, backward.BLOCK_N + 1, [BANDS, BLOCKS]),
        (torch.bfloat16, 257, 257, [BANDS, BANDS]),
        (torch.bfloat16, 400, 400, [DOT, DOT]),
        (torch.float32, 100, 100, [FMA, FMA]),
    ],
)
def test_many_taps_of_two_byte_types_go_to_the_tensor_cores(
    dtype: torch.dtype,
    taps: int,
    taps_of_gradients: int,
    kernels: list[str],
    device: str,
    launched: list[Launch],
) -> None:
    x = torch.ones(1, 1, 8, dtype=dtype, device=device)

    conv(x, torch.ones(1, taps, dtype=dtype, device=device))
    conv_backward(x, x, torch.ones(1, taps_of_gradients, dtype=dtype, device=device))

    assert names([launched[0], launched[-2]]) == kernels  # the last one adds up the sums


@pytest.mark.parametrize(("taps", "kernel"), BOTH_KERNELS)
def test_no_stride_matters(taps: int, kernel: str, device: str, launched: list[Launch]) -> None:
    x = torch.randn(8, 6, 40, dtype=torch.float16, device=device)[::2, :, ::2]
    weight = torch.randn(taps, 3, dtype=torch.float16, device=device).T
    bias = torch.randn(12, dtype=torch.float16, device=device)[::2]

    out = conv(x, weight, bias)

    assert names(launched) == [kernel]
    assert_right(OP, {"x": x, "weight": weight, "bias": bias}, {}, out)


@pytest.mark.parametrize(("taps", "kernel"), [*FEW_TAPS, (31, DOT)])
def test_fp16_is_summed_in_fp32(
    taps: int, kernel: str, device: str, launched: list[Launch]
) -> None:
    x = torch.full((1, 1, 64), 100.0, dtype=torch.float16, device=device)
    weight = torch.full((1, taps), 100.0, dtype=torch.float16, device=device)
    weight[:, 1::2] *= -1  # partial sums pass what fp16 holds, the whole does not

    out = conv(x * 2, weight * 2, padding_l=0)

    assert names(launched) == [kernel]
    assert torch.equal(out[..., : 64 - taps], torch.full_like(out[..., : 64 - taps], 40_000.0))


@pytest.mark.parametrize(("taps", "kernel"), BOTH_KERNELS)
@pytest.mark.parametrize("length", [ALIGNED, SKEWED], ids=["aligned", "skewed"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_inf_reach_as_far_as_the_filter(
    taps: int, kernel: str, length: int, bad: float, device: str, launched: list[Launch]
) -> None:
    x = torch.randn(1, 2, length, device=device).bfloat16()
    weight = torch.randn(2, taps, device=device).bfloat16()
    x[0, 0, 50] = bad

    out = conv(x, weight)

    assert names(launched) == [kernel]
    spoilt = ~out.isfinite()
    expected = torch.zeros_like(spoilt)
    expected[0, 0, 50 : 50 + taps] = True
    assert torch.equal(spoilt, expected)


@pytest.mark.parametrize(("taps", "kernel"), [*FEW_TAPS, (MANY_TAPS_OF_GRADIENTS, BLOCKS)])
@pytest.mark.parametrize("length", [ALIGNED, SKEWED], ids=["aligned", "skewed"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_inf_of_a_gradient_reach_as_far_back_as_the_filter(
    taps: int, kernel: str, length: int, bad: float, device: str, launched: list[Launch]
) -> None:
    x, g = torch.randn(2, 1, 2, length, device=device).bfloat16()
    weight = torch.randn(2, taps, device=device).bfloat16()
    g[0, 0, 50] = bad

    grad_x, _, _ = conv_backward(g, x, weight)

    expected_kernel = DOT if kernel == BLOCKS and length == SKEWED else kernel
    assert names(launched) == [expected_kernel, "_reduce_kernel"]
    spoilt = ~grad_x.isfinite()
    expected = torch.zeros_like(spoilt)
    expected[0, 0, 50 - taps + 1 : 51] = True
    assert torch.equal(spoilt, expected)


def test_cases_with_nan_and_inf_run_on_both_kernels(device: str, launched: list[Launch]) -> None:
    for case in OP.cases:
        if case.inputs["x"].values == "special":
            OP.function(**case.tensors(device), **case.params)

    assert set(names(launched)) == {FMA, DOT}


@pytest.fixture
def gradients(device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    shapes = {"grad_output": (3, 4, 50), "x": (3, 4, 50), "weight": (2, 7)}
    return {k: torch.randn(s, generator=generator).to(device) for k, s in shapes.items()}


def test_the_gradients_have_the_same_bits_twice(gradients: dict[str, Any]) -> None:
    first = conv_backward(**gradients, bias=True)
    second = conv_backward(**gradients, bias=True)

    for one, other in zip(first, second, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("padding_l", [0, 3, 6])
def test_the_gradients_are_those_of_autograd(
    softmax: bool, padding_l: int, gradients: dict[str, Any]
) -> None:
    g, x, weight = (t.double() for t in gradients.values())
    bias = torch.zeros_like(x[0, :, 0])
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    out = conv_reference(x, weight, bias, padding_l, softmax)
    expected = torch.autograd.grad(out, leaves, g)

    ours = conv_backward(g, x.detach(), weight.detach(), padding_l, softmax, bias=True)
    reference = conv_backward_reference(g, x.detach(), weight.detach(), padding_l, softmax, True)

    for one, other, wanted in zip(ours, reference, expected, strict=True):
        torch.testing.assert_close(one, wanted)
        torch.testing.assert_close(other, wanted)


def test_the_gradient_of_a_filter_is_not_spoilt_by_what_it_never_met(device: str) -> None:
    x, g = torch.ones(1, 1, 5, device=device), torch.ones(1, 1, 5, device=device)
    x[..., -1] = float("nan")  # with padding 0, taps 0 to 2 meet it; nothing is beyond the end

    _, grad_weight, _ = conv_backward(g, x, torch.ones(1, 3, device=device), padding_l=2)

    assert torch.equal(grad_weight.isnan().cpu(), torch.tensor([[False, False, True]]))
    assert torch.equal(grad_weight[0, :2].cpu(), torch.tensor([3.0, 4.0]))


def test_sums_over_many_rows_are_exact_in_fp32_when_they_can_be(device: str) -> None:
    x = torch.ones(64, 4, 33, device=device, dtype=torch.bfloat16)

    _, grad_weight, _ = conv_backward(x, x, torch.ones(2, 3, device=device, dtype=torch.bfloat16))

    rows = 64 * 2
    expected = torch.tensor([[31.0, 32.0, 33.0]] * 2) * rows
    assert torch.equal(grad_weight.cpu(), expected.bfloat16())


X, W = torch.zeros(2, 4, 5), torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "argument", "says"),
    [
        (lambda: conv(X[0], W), "x", "3 dims"),
        (lambda: conv(X, W[0]), "weight", "2 dims"),
        (lambda: conv(X, torch.zeros(3, 3)), "weight", "divisor of the 4 channels"),
        (lambda: conv(X, torch.zeros(2, 0)), "weight", "K >= 1"),
        (lambda: conv(X, torch.zeros(0, 3)), "weight", "H a divisor"),
        (lambda: conv(X, W.double()), "weight", "float32 as x is"),
        (lambda: conv(X.int(), W.int()), "x", "got int32"),
        (lambda: conv(X, W, torch.zeros(3)), "bias", "(4,)"),
        (lambda: conv(X, W, torch.zeros(4).half()), "bias", "float32 as x is"),
        (lambda: conv(X, W, padding_l=3), "padding_l", "between 0 and 2"),
        (lambda: conv(X, W, padding_l=-1), "padding_l", "got -1"),
        (lambda: conv_backward(X[:1], X, W), "grad_output", "shape of x"),
        (lambda: conv_backward(X.half(), X, W), "grad_output", "float32 as x is"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, argument: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        call()

    assert refused.value.argument == argument
    assert says in str(refused.value)
