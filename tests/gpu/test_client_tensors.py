"""Tensors of torch on a GPU of the caller: calls return them on the same device."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch

from demo.server import running_server
from warpcall import Client, InvalidInput


@pytest.fixture(scope="module")
def gpu(device: str) -> Iterator[Client]:
    if device != "cuda":  # it comes before the folder's own fixture
        pytest.skip("needs --device cuda")
    with running_server({"WARPCALL_DEVICES": "cpu"}) as server, Client(server.url) as client:
        yield client


def test_outputs_are_on_the_device_of_the_inputs(gpu: Client) -> None:
    x = torch.randn(3, 5, device="cuda", dtype=torch.bfloat16)

    out = gpu.permute(x, dims=(1, 0))

    assert out.device == x.device
    assert torch.equal(out, x.t())


def test_gradients_are_on_the_device_of_the_inputs(gpu: Client) -> None:
    x = torch.randn(3, 5, device="cuda", requires_grad=True)

    (grad,) = torch.autograd.grad(gpu.masked_softmax(x).square().sum(), x)

    (expected,) = torch.autograd.grad(x.softmax(-1).square().sum(), x)
    assert grad.device == x.device
    torch.testing.assert_close(grad, expected)


def test_a_stored_tensor_comes_back_to_the_device(gpu: Client) -> None:
    x = torch.arange(6, device="cuda")

    with gpu.put(x) as stored:
        for handle in (stored, pickle.loads(pickle.dumps(stored))):
            assert handle.get().device == x.device
            assert torch.equal(handle.get(), x)


def test_inputs_on_two_devices_are_refused(gpu: Client) -> None:
    a = torch.zeros(2, 2, device="cuda")

    with pytest.raises(
        InvalidInput, match=r"b must be a torch tensor on cuda:0 as a is, got .* cpu"
    ):
        gpu.transpose_add(a, a.cpu())
