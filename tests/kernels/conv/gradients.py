"""Inputs of convolutions whose sums are exact, and their gradients beside the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.kernels.suite import assert_right
from warpcall_kernels.conv_backward import OP, conv_backward

INTEGERS = (-3, 4)  # sums of such products are exact


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Random small integers."""
    return torch.randint(*INTEGERS, shape).to(device, dtype)


def check_gradients(g: Tensor, x: Tensor, weight: Tensor, **how: Any) -> None:
    """Assert that both gradients are as the reference computes them in fp64."""
    grads = conv_backward(g, x, weight, **how)

    assert_right(OP, {"grad_output": g, "x": x, "weight": weight}, how, grads)
