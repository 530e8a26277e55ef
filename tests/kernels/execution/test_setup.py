"""What a setup knows of the inputs of a case."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from warpcall_kernels.execution.inputs import layout_of
from warpcall_kernels.execution.setup import described, set_up_at_first_call

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "tensor", [torch.ones(3, 4), torch.ones(4, 3).T, torch.ones(()), torch.ones(0, 2).half()]
)
def test_a_setup_knows_all_of_an_input_but_its_values(tensor: Tensor) -> None:
    of_layout = described({"x": layout_of(tensor)}, CPU)["x"]
    of_tensor = described({"x": tensor}, CPU)["x"]

    assert of_layout == of_tensor
    assert (of_layout.shape, of_layout.dtype, of_layout.device) == (tensor.shape, tensor.dtype, CPU)
    assert (of_layout.stride(), of_layout.size()) == (tensor.stride(), tensor.size())
    assert (of_layout.ndim, of_layout.numel()) == (tensor.ndim, tensor.numel())
    assert of_layout.nbytes == tensor.nbytes
    assert of_layout.is_contiguous() == tensor.is_contiguous()
    assert torch.empty(of_layout.shape, dtype=of_layout.dtype).shape == tensor.shape
    with pytest.raises(AttributeError):
        of_layout.data_ptr()  # type: ignore[attr-defined]


def test_a_profile_calls_the_setup_before_the_first_call_only() -> None:
    calls: list[Any] = []

    def setup(x: Any, scale: int) -> int:
        calls.append(x)
        return 10 * scale

    def function(x: Tensor, scale: int, state: int) -> Tensor:
        return x + scale + state

    call = set_up_at_first_call(function, setup, {"scale": 2})

    assert [call(x=torch.zeros(1)).item(), call(x=torch.ones(1)).item()] == [22, 23]
    assert [one.shape for one in calls] == [(1,)]
