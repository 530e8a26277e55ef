"""Stored tensors and programs through the SDK, blocking and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, assert_type

import httpx
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.servers import Server, running_server
from warpcall import AsyncClient, Busy, Client, InvalidInput, NotFound, StoredTensor
from warpcall._arrays import NUMPY_DTYPES

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def gpu(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
        for stored in client.tensors():
            stored.delete()


def own_part(tensor_id: str) -> str:
    """The id without the server, which servers that share a database append."""
    return tensor_id.partition(".")[0]


def test_a_stored_tensor_says_what_it_is(gpu: Client) -> None:
    stored = gpu.put(X, id="photo", ttl_s=100)

    assert own_part(stored.id) == "photo"
    assert (stored.dtype, stored.shape, stored.nbytes) == (X.dtype, (2, 3), 24)
    assert stored.device == "cpu"
    assert 90 < (stored.expires - datetime.now(UTC)).total_seconds() <= 100
    assert repr(stored) == f"StoredTensor('{stored.id}', float32, (2, 3), on 'cpu' of {gpu.url})"
    np.testing.assert_array_equal(stored.get(), X)


@pytest.mark.parametrize("code", NUMPY_DTYPES)
def test_every_dtype_comes_back_bit_by_bit(gpu: Client, code: str) -> None:
    plain = np.arange(24, dtype=np.uint8)
    x = plain % 2 == 1 if code == "BOOL" else plain.view(NUMPY_DTYPES[code])

    back = gpu.put(x).get()

    assert back.dtype == x.dtype
    assert back.tobytes() == x.tobytes()


def test_strided_empty_and_plain_values_come_back_as_they_look(gpu: Client) -> None:
    strided = np.arange(60, dtype=np.int32).reshape(3, 4, 5)[::2, ::-1, 1::2]
    transposed = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t()

    arrays = [gpu.put(x).get() for x in (strided, np.empty((1, 0)), np.array(3.0))]
    tensor = gpu.put(transposed).get()

    np.testing.assert_array_equal(arrays[0], strided)
    assert [a.shape for a in arrays[1:]] == [(1, 0), ()]
    assert torch.equal(tensor, transposed)


def test_ops_take_stored_tensors_in_place_of_arrays(gpu: Client) -> None:
    words = np.array([1, 5], np.float32)

    with gpu.put(X) as x, gpu.put(words) as test_elements:
        mixed = gpu.isin(x, words)
        result = gpu.isin(x, test_elements)
        by_name = gpu.run("isin", elements=x, test_elements=words, invert=True)

    assert_type(mixed, npt.NDArray[Any])
    assert_type(result, npt.NDArray[Any])
    np.testing.assert_array_equal(mixed, np.isin(X, words))
    np.testing.assert_array_equal(result, mixed)
    np.testing.assert_array_equal(by_name, ~mixed)
    assert gpu.tensors() == []


def test_outputs_stay_there_and_come_when_they_are_wanted(gpu: Client) -> None:
    turned = gpu.stored.permute(X, dims=(1, 0))
    again = gpu.stored.permute(turned, dims=(1, 0))

    assert_type(turned, StoredTensor[npt.NDArray[Any]])
    np.testing.assert_array_equal(turned.get(), X.T)
    np.testing.assert_array_equal(again.get(), X)


def test_all_outputs_of_an_op_stay_those_that_are_there(gpu: Client) -> None:
    x, weight = np.ones((1, 2, 5), np.float32), np.ones((2, 3), np.float32)

    without = gpu.stored.conv_backward(x, x, weight)
    with_bias = gpu.stored.conv_backward(x, x, weight, bias=True)

    assert without[0].shape == (1, 2, 5)
    assert without[2] is None
    assert with_bias[2] is not None
    np.testing.assert_allclose(with_bias[2].get(), [5, 5])


def test_torch_goes_in_and_torch_comes_back(gpu: Client) -> None:
    x = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    stored = gpu.put(x)

    y = gpu.permute(stored, dims=(1, 0))

    assert_type(y, torch.Tensor)
    assert torch.equal(y, x.t())
    assert torch.equal(gpu.stored.permute(stored, dims=(1, 0)).get(), x.t())
    assert stored.dtype == np.dtype(ml_dtypes.bfloat16)


def test_another_client_finds_what_is_there(gpu: Client, server: Server) -> None:
    gpu.put(X, id="shared")

    with Client(server.url) as other:
        (found,) = other.tensors()

    np.testing.assert_array_equal(gpu.permute(found, dims=(0, 1)), X)


def test_a_tensor_of_another_server_is_refused_here(gpu: Client) -> None:
    stored = gpu.put(X)
    if own_part(stored.id) != stored.id:
        pytest.skip("the id names its server: clients of other addresses may use it, too")

    with (
        Client("http://127.0.0.1:9") as other,
        pytest.raises(InvalidInput, match=r"x must be on http://127\.0\.0\.1:9") as refused,
    ):
        other.permute(stored, dims=(0, 1))

    assert refused.value.field == "x"


@pytest.mark.parametrize("name", ["é", "a,b", "a=b", "a\nb"])
def test_what_no_header_can_say_is_refused_here(gpu: Client, name: str) -> None:
    with gpu.put(X) as x, pytest.raises(InvalidInput, match="must be plain text"):
        gpu.call("permute", {name: x}, {"dims": (0, 1)})
    with pytest.raises(InvalidInput, match="must be"):
        gpu.put(X, device=name)


def test_what_is_gone_is_said_to_be(gpu: Client) -> None:
    stored = gpu.put(X)
    stored.delete()
    stored.delete()

    with pytest.raises(NotFound, match="it was deleted"):
        stored.get()
    with pytest.raises(NotFound, match="it was deleted") as refused:
        gpu.permute(stored, dims=(0, 1))

    assert refused.value.field == "x"


def test_a_program_runs_its_ops_together(gpu: Client) -> None:
    program = gpu.program()
    with gpu.put(X) as x:
        turned = program.permute(x, dims=(1, 0))
        total = program.transpose_add(turned, X)
        scores = program.masked_softmax(total, scale=0.5)
        answer = program.run(y=scores, total=total, store=["total"])

        again = program.run(y=scores)

    assert answer.outputs.keys() == {"y", "total"}
    assert isinstance(answer.outputs["total"], StoredTensor)
    np.testing.assert_array_equal(answer.outputs["total"].get(), 2 * X)
    np.testing.assert_array_equal(answer.outputs["y"], gpu.masked_softmax(2 * X, scale=0.5))
    np.testing.assert_array_equal(again.outputs["y"], answer.outputs["y"])
    assert answer.timing_ms.keys() == {"queue", "h2d", "kernel", "d2h"}


def test_an_array_that_two_steps_take_goes_up_once(gpu: Client) -> None:
    x = np.zeros((256, 256))
    before = received(gpu)

    program = gpu.program()
    sums = [program.transpose_add(x, x) for _ in range(3)]
    program.run(a=sums[0], b=sums[1], c=sums[2])

    assert x.nbytes < received(gpu) - before < 1.1 * x.nbytes


def received(gpu: Client) -> float:
    """Bytes of bodies that all servers have received."""
    texts = [httpx.get(f"{node.url}/metrics", timeout=30).text for node in gpu.nodes().nodes]
    lines = [line for text in texts for line in text.splitlines()]
    counts = [line for line in lines if line.startswith('warpcall_body_bytes_total{direction="in"')]
    return sum(float(line.split()[1]) for line in counts)


def test_a_wrong_step_is_named(gpu: Client) -> None:
    program = gpu.program()
    turned = program.permute(X, dims=(1, 0))
    wrong = program.transpose_add(turned, turned)

    with pytest.raises(
        InvalidInput, match=r"step transpose_add_2 \(transpose-add\): b must"
    ) as refused:
        program.run(y=wrong)

    assert refused.value.field == "transpose_add_2.b"


def test_what_cannot_be_in_a_program_is_refused_at_once(gpu: Client) -> None:
    program, other = gpu.program(), gpu.program()
    theirs = other.permute(X, dims=(1, 0))

    with pytest.raises(InvalidInput, match="x must come from this program"):
        program.permute(theirs, dims=(1, 0))
    with pytest.raises(InvalidInput, match="x must be an array, a stored tensor or an output"):
        program.permute({1, 2}, dims=(0,))  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(InvalidInput, match="store must name outputs, y, got 'z'"):
        other.run(y=theirs, store=["z"])


def test_all_of_it_can_be_awaited(server: Server) -> None:
    async def play() -> tuple[Any, ...]:
        async with AsyncClient(server.url) as gpu, await gpu.put(X) as x:
            turned = await gpu.stored.permute(x, dims=(1, 0))
            program = gpu.program()
            total = program.transpose_add(turned, x)
            answer = await program.run(y=total)
            listed = await gpu.tensors()
            back = await turned.get()
            await asyncio.gather(*(stored.delete() for stored in listed))
            return answer.output("y"), len(listed), back, await gpu.tensors()

    total, count, back, left = asyncio.run(play())

    np.testing.assert_array_equal(total, 2 * X)
    np.testing.assert_array_equal(back, X.T)
    assert (count, left) == (2, [])


def test_a_put_that_is_sent_again_takes_the_place_of_the_first(server: Server) -> None:
    """The id is drawn by the client, so a retry after a broken connection leaves nothing behind."""
    with Client(server.url) as gpu:
        for _ in range(3):
            gpu.put(X, id="again")

        listed, nodes = gpu.tensors(), gpu.nodes().nodes
        for stored in listed:
            stored.delete()

    if len(nodes) > 1 and server.url not in [node.url for node in nodes]:
        pytest.skip("a load balancer may have stored it on several servers")
    assert [own_part(stored.id) for stored in listed] == ["again"]


def test_a_full_quota_is_refused_at_once() -> None:
    settings = {"WARPCALL_ARENA_BYTES": "16MiB", "WARPCALL_TENSOR_USER_BYTES": "40"}
    with running_server(settings) as server, Client(server.url) as gpu:
        gpu.put(X)

        with pytest.raises(Busy, match="delete some tensors, or wait") as refused:
            gpu.put(X)

    assert (refused.value.retry_after_s or 0) > 500
