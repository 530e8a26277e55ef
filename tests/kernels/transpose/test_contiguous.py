"""Contiguous copies of operands: by the kernels of permute where they transpose, else by torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.suite import assert_right
from warpcall_kernels import conv, conv_backward, isin
from warpcall_kernels._transpose import contiguous as module
from warpcall_kernels._transpose.contiguous import contiguous, has_far_positions
from warpcall_kernels._transpose.plan import plan_permute
from warpcall_kernels.op.launch import Launch, layout_key


def transposed(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Values of any bits, the last dim of which is the outer one in memory."""
    stored = torch.arange(torch.Size(shape).numel(), device=device).reshape(*shape[::-1])
    return stored.to(dtype).permute(*reversed(range(len(shape))))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float32, torch.float64]
)
@pytest.mark.parametrize("shape", [(3, 5), (40, 70), (4, 1, 33), (2, 17, 6, 3), (2,) * 14])
def test_transposed_operands_are_copied_by_a_kernel(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, launched: list[Launch]
) -> None:
    x = transposed(*shape, dtype=dtype, device=device)

    copied = contiguous(x)

    assert len(launched) == 1
    assert copied.is_contiguous()
    assert torch.equal(copied, x)


@pytest.mark.parametrize(
    "made", ["contiguous", "strided", "offset", "expanded", "empty", "one element", "scalar"]
)
def test_other_operands_are_not(made: str, device: str, launched: list[Launch]) -> None:
    x = torch.randn(6, 8, device=device)
    x = {
        "contiguous": x,
        "strided": x[:, ::2],
        "offset": x[1:, 3:],
        "expanded": x[:, None].expand(6, 3, 8),
        "empty": x[:0].t(),
        "one element": x[:1, :1].t(),
        "scalar": x[0, 0],
    }[made]

    copied = contiguous(x)

    assert not launched
    assert copied.is_contiguous()
    assert torch.equal(copied, x)
    assert (copied.data_ptr() == x.data_ptr()) == x.is_contiguous() or not x.numel()


def test_elements_that_lie_apart_are_a_plain_copy() -> None:
    assert plan_permute((10,), (2,), (0,), 4, 0) is None
    assert plan_permute((4, 6), (24, 4), (0, 1), 2, 0) is None


@pytest.mark.parametrize(
    ("stride", "nbytes", "copies"), [(8, 8, False), (9, 8, True), (9, 9 * 40 * 4 + 1, False)]
)
def test_large_operands_whose_positions_are_far_apart_are_found(
    stride: int, nbytes: int, copies: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COPIED_BYTES", nbytes)
    x = transposed(stride, 40, dtype=torch.float32, device=device)

    assert has_far_positions(layout_key(x), 8) == copies


@pytest.mark.parametrize("softmax_weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_conv_and_its_gradient_are_right_by_copies(
    softmax_weight: bool,
    bias: bool,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COPIED_BYTES", 1)
    x = torch.randn(50, 140, 2, device=device).permute(2, 1, 0)
    grad = torch.randn(50, 2, 140, device=device).permute(1, 2, 0)
    weight = torch.randn(7, 5, device=device)

    added = torch.randn(140, device=device) if bias else None
    params: dict[str, Any] = {"padding_l": 1, "softmax_weight": softmax_weight}
    out = conv.conv(x, weight, added, **params)
    of_conv = len(launched)
    grads = conv_backward.conv_backward(grad, x, weight, **params, bias=bias)

    assert of_conv == 2
    assert len(launched) - of_conv >= 3
    assert_right(conv.OP, {"x": x, "weight": weight, "bias": added}, params, out)
    inputs = {"grad_output": grad, "x": x, "weight": weight}
    assert_right(conv_backward.OP, inputs, {**params, "bias": bias}, grads)


def test_isin_is_right_by_a_copy(device: str, launched: list[Launch]) -> None:
    elements = transposed(70, 40, dtype=torch.int32, device=device)
    test = transposed(6, 9, dtype=torch.int32, device=device) * 3

    out = isin.isin(elements, test)

    assert len(launched) == 3
    assert torch.equal(out, torch.isin(elements, test))
