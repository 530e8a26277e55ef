"""Gradients of torch tensors through calls, compared with autograd on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from demo.server import Server
from warpcall import AsyncClient, Client, InvalidInput, StoredTensor
from warpcall_kernels.conv import conv
from warpcall_kernels.masked_softmax import masked_softmax

F64 = torch.float64
LENGTHS = torch.tensor([[1, 3], [2, 4]])
SLOPES = torch.tensor([0.5, 0.25])


@pytest.fixture(scope="module")
def gpu(server: Server) -> Iterator[Client]:
    with Client(server.url, progress=False) as client:
        yield client


def drawn(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    values = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=values, dtype=F64).to(dtype).requires_grad_()


Remote = Callable[[Client], Callable[..., Tensor]]
CASES: dict[str, tuple[Remote, Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "permute": (
        lambda gpu: lambda x: gpu.permute(x, dims=(2, 0, -2)),
        lambda x: x.permute(2, 0, 1),
        (drawn(2, 3, 4),),
    ),
    "permute, no dims": (
        lambda gpu: lambda x: gpu.permute(x, dims=()),
        lambda x: x.clone(),
        (drawn(),),
    ),
    "transpose-add": (
        lambda gpu: gpu.transpose_add,
        lambda a, b: a.transpose(-1, -2) + b,
        (drawn(2, 3, 2), drawn(2, 3)),
    ),
    "transpose-add, broadcast": (
        lambda gpu: gpu.transpose_add,
        lambda a, b: a.transpose(-1, -2) + b,
        (drawn(3, 2), drawn(2, 2, 3)),
    ),
    "masked-softmax": (
        lambda gpu: lambda x: gpu.masked_softmax(x, scale=0.5, causal=True),
        lambda x: masked_softmax(x, None, None, 0.5, True),
        (drawn(2, 2, 4),),
    ),
    "masked-softmax, a bias": (
        lambda gpu: lambda x, bias: gpu.masked_softmax(x, bias=bias, scale=0.5, causal=True),
        lambda x, bias: masked_softmax(x, None, None, 0.5, True, bias),
        (drawn(2, 2, 4), drawn(2, 1, 4)),
    ),
    "masked-softmax, a full bias and slopes": (
        lambda gpu: lambda x, bias: gpu.masked_softmax(x, bias=bias, slopes=SLOPES),
        lambda x, bias: masked_softmax(x, bias=bias, slopes=SLOPES),
        (drawn(3, 2, 2, 4), drawn(3, 2, 2, 4)),
    ),
    "masked-softmax, lengths": (
        lambda gpu: lambda x: gpu.masked_softmax(x, lengths=LENGTHS),
        lambda x: masked_softmax(x, None, LENGTHS),
        (drawn(2, 2, 4),),
    ),
    "conv": (
        lambda gpu: lambda x, w, b: gpu.conv(x, w, b, padding_l=1, softmax_weight=True),
        lambda x, w, b: conv(x, w, b, 1, True),
        (drawn(1, 4, 5), drawn(2, 3), drawn(4)),
    ),
    "conv, no bias": (
        lambda gpu: gpu.conv,
        conv,
        (drawn(1, 2, 4), drawn(2, 2)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_through_the_server_are_those_of_autograd_here(case: str, gpu: Client) -> None:
    remote, local, inputs = CASES[case]
    call = remote(gpu)

    assert torch.autograd.gradcheck(call, inputs)
    ours, theirs = call(*inputs), local(*inputs)
    upstream = torch.ones_like(theirs) * torch.arange(1, theirs.numel() + 1).reshape(theirs.shape)
    for found, expected in zip(
        torch.autograd.grad(ours, inputs, upstream),
        torch.autograd.grad(theirs, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


def test_each_gradient_has_the_dtype_of_its_input(gpu: Client) -> None:
    a, b = drawn(2, 3, dtype=torch.bfloat16), drawn(3, 2, dtype=torch.float32)

    torch.autograd.backward(gpu.transpose_add(a, b).sum())

    assert a.grad is not None
    assert b.grad is not None
    assert (a.grad.dtype, b.grad.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(a.grad.float(), torch.ones(2, 3))


def test_the_gradient_of_a_real_term_of_a_complex_sum_is_real(gpu: Client) -> None:
    a, b = drawn(2, 3, dtype=torch.float32), drawn(3, 2, dtype=torch.complex64)

    ours = torch.autograd.grad(gpu.transpose_add(a, b).abs().sum(), (a, b))

    theirs = torch.autograd.grad((a.mT + b).abs().sum(), (a, b))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_only_what_is_asked_for_is_computed(gpu: Client) -> None:
    x, weight = drawn(1, 2, 4), drawn(2, 2).detach()

    out = gpu.conv(x, weight)

    assert out.grad_fn is not None
    (grad,) = torch.autograd.grad(out.sum(), [x])
    torch.testing.assert_close(grad, torch.autograd.grad(conv(x, weight).sum(), [x])[0])


def test_a_stored_tensor_may_be_beside_what_is_differentiated(gpu: Client) -> None:
    x, weight = drawn(1, 2, 4), drawn(2, 2).detach()

    with gpu.put(weight) as stored:
        (grad,) = torch.autograd.grad(gpu.conv(x, stored).sum(), [x])

    torch.testing.assert_close(grad, torch.autograd.grad(conv(x, weight).sum(), [x])[0])


def test_what_is_linear_can_be_differentiated_twice(gpu: Client) -> None:
    x = drawn(2, 3)

    assert torch.autograd.gradgradcheck(lambda x: gpu.permute(x, dims=(1, 0)) ** 2, (x,))


def test_a_second_derivative_that_no_op_has_is_refused(gpu: Client) -> None:
    x = drawn(2, 3)
    (grad,) = torch.autograd.grad(gpu.masked_softmax(x)[0, 0], [x])
    assert not grad.requires_grad

    message = (
        "masked-softmax of Warpcall has no second derivative, because masked-softmax-backward has "
        "no gradient: compute the first one without create_graph=True"
    )
    with pytest.raises(InvalidInput, match=f"^{message}$"):
        torch.autograd.grad(gpu.masked_softmax(x)[0, 0], [x], create_graph=True)
    with pytest.raises(InvalidInput, match="conv of Warpcall has no second derivative"):
        torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
            lambda x: gpu.conv(x[None], torch.ones(2, 2, dtype=x.dtype)).sum(), drawn(2, 3)
        )


def test_transforms_of_torch_are_refused_and_the_error_says_what_to_do(gpu: Client) -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        return gpu.permute(x, dims=(1, 0))

    def total(x: torch.Tensor) -> torch.Tensor:
        return turned(x).sum()

    batch, x = torch.randn(2, 3, 4), torch.randn(3, 4)
    because = "x must be a plain tensor, because Warpcall sends it to a server"
    outside = f"^{because}; got one of torch.vmap .*: call the op outside of torch.vmap"
    derivative = f"^{because}; .* torch.func: take derivatives with torch.autograd.grad"

    with pytest.raises(InvalidInput, match=outside):
        torch.vmap(turned)(batch)
    with pytest.raises(InvalidInput, match=outside):
        torch.vmap(gpu.masked_softmax)(batch)
    with pytest.raises(InvalidInput, match=outside):
        torch.vmap(gpu.put)(batch)
    with pytest.raises(InvalidInput, match=f"^{because}; .*: leave out vectorize=True"):
        torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
            turned, x, vectorize=True
        )
    for transform in (torch.func.grad(total), torch.func.jacrev(turned)):
        with pytest.raises(InvalidInput, match=because):
            transform(x)
    with pytest.raises(InvalidInput, match=derivative):
        torch.func.grad(total)(x)


def test_an_output_can_be_changed_in_place(gpu: Client) -> None:
    x = drawn(2, 3)

    y = gpu.permute(x, dims=(1, 0))
    y *= 2
    torch.autograd.backward(y.sum())

    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2, 3), 2.0, dtype=F64))


def test_an_input_that_was_changed_in_place_has_no_gradient_any_more(gpu: Client) -> None:
    x, weight = drawn(1, 2, 4), drawn(2, 2)
    out = gpu.conv(x, weight)

    with torch.no_grad():
        weight.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(out.sum())


def test_nothing_is_recorded_where_nobody_asks_for_it(gpu: Client) -> None:
    x = drawn(2, 3)

    with torch.no_grad():
        plain = gpu.permute(x, dims=(1, 0))

    assert not plain.requires_grad
    assert not gpu.permute(x.detach(), dims=(1, 0)).requires_grad
    assert not gpu.isin(x, x).requires_grad


def test_asyncio_has_gradients_too(server: Server) -> None:
    x = drawn(2, 3)

    async def differentiate() -> None:
        async with AsyncClient(server.url) as gpu:
            y = await gpu.masked_softmax(x)
            await asyncio.to_thread(y[0, 0].backward)

    asyncio.run(differentiate())

    assert x.grad is not None
    expected = torch.autograd.grad(torch.softmax(x, -1)[0, 0], [x])[0]
    torch.testing.assert_close(x.grad, expected)


LOSING: dict[str, Callable[[Client, Tensor], object]] = {
    "a stored tensor": lambda gpu, x: gpu.put(x),
    "an output that is stored": lambda gpu, x: gpu.stored.permute(x, dims=(1, 0)),
    "a program": lambda gpu, x: gpu.program().permute(x, dims=(1, 0)),
    "an op without a gradient": lambda gpu, x: gpu.masked_softmax_backward(x, x),
    "an input without one": lambda gpu, x: gpu.masked_softmax(torch.zeros(2, 3, 4), slopes=x[:, 0]),
    "an op that this client does not know": lambda gpu, x: gpu.run("other", x=x),
}


@pytest.mark.parametrize("what", LOSING)
def test_a_gradient_that_would_be_lost_is_an_error_here(what: str, gpu: Client) -> None:
    x = drawn(2, 3)

    with pytest.raises(InvalidInput, match=r"requires a gradient.*(x|grad_output|slopes)\.detach"):
        LOSING[what](gpu, x)


def test_numpy_fetches_a_stored_tensor(gpu: Client) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    with gpu.put(x) as stored, gpu.put(torch.from_numpy(x)) as of_torch:
        arrays = [np.asarray(stored), np.asarray(of_torch), stored + x - x]
        wider = np.asarray(stored, np.float64)
        with pytest.raises(ValueError, match="only be copied"):
            np.asarray(stored, copy=False)

    assert isinstance(stored, StoredTensor)
    assert wider.dtype == np.float64
    for array in (*arrays, wider):
        np.testing.assert_array_equal(array, x)


def test_numpy_cannot_fetch_what_must_be_awaited(server: Server) -> None:
    async def fetch() -> Any:
        async with AsyncClient(server.url) as gpu, await gpu.put(np.zeros(2)) as stored:
            return np.asarray(stored)

    with pytest.raises(TypeError, match="await stored"):
        asyncio.run(fetch())
