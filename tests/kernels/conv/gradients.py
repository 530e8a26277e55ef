"""Inputs of convolutions whose sums are exact, and their gradients beside the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.conv_backward import TOLERANCE, conv_backward, conv_backward_reference

INTEGERS = (-3, 4)  # sums of such products are exact


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Random small integers."""
    return torch.randint(*INTEGERS, shape).to(device, dtype)


def check_gradients(g: Tensor, x: Tensor, weight: Tensor, **how: Any) -> None:
    """Assert that both gradients are as the reference computes them in fp64."""
    error = TOLERANCE[x.dtype]

    grads = conv_backward(g, x, weight, **how)

    wanted = conv_backward_reference(g.double(), x.double(), weight.double(), **how)
    for grad, right in zip(grads[:2], wanted[:2], strict=True):
        assert grad is not None
        assert right is not None
        torch.testing.assert_close(grad.double(), right, rtol=error, atol=error, equal_nan=True)
