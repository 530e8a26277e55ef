"""Every op through the whole path: SDK, socket, arena, lane and back, compared with its reference."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from demo.server import Server
from tests.kernels import suite
from warpcall import AsyncClient, Client, InvalidInput
from warpcall_kernels import Op, ops
from warpcall_kernels.op.cases import Case


def on_the_wire(op: Op, case: Case) -> bool:
    """Whether the inputs and outputs of a case have dtypes that calls can: not complex128."""
    given = [sample.dtype for sample in case.inputs.values()]
    made = [meta.dtype for meta in op.infer(**case.metas(), **case.params).values()]
    return torch.complex128 not in (*given, *made)


CASES = suite.case_params(
    (
        (op, case)
        for op in ops().values()
        for case in op.cases
        if case.size == "small" and on_the_wire(op, case)
    ),
    quick=8,  # tests/kernels/test_ops.py computes all of them
)
NUMPY_DTYPES = [
    *(np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


@pytest.fixture(scope="module")
def gpu(server: Server) -> Iterator[Client]:
    with Client(server.url, progress=False) as client:
        yield client


@pytest.mark.parametrize(("op", "case"), CASES)
def test_every_case_of_every_op_comes_back_right(op: Op, case: Case, gpu: Client) -> None:
    inputs = case.tensors()
    params = op.check_params(case.params)

    answer = gpu.call(op.name, inputs, params)

    assert answer.outputs.keys() == suite.reference_of(op, inputs, params).keys()
    suite.assert_right(op, inputs, params, answer.outputs)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 1), (3, 1, 4), (1, 2, 1, 3), (3, 4)], ids=str)
def test_numpy_arrays_of_every_dtype_come_back_permuted(
    dtype: npt.DTypeLike, shape: tuple[int, ...], gpu: Client
) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)

    y = gpu.permute(x, dims=range(x.ndim)[::-1])

    assert (y.dtype, y.shape) == (x.dtype, x.shape[::-1])
    assert y.tobytes() == x.T.tobytes()


def test_dims_are_given_as_torch_takes_them(gpu: Client) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    program = gpu.program()
    with gpu.stored.permute(x, 2, 0, 1) as stored:  # else it stays on the server for other tests
        from_store = stored.get()
    ways = {
        "one by one": gpu.permute(x, 2, 0, 1),
        "a sequence": gpu.permute(x, (2, 0, 1)),
        "by name": gpu.permute(x, dims=(2, 0, 1)),
        "one dim": gpu.permute(x.reshape(-1), 0).reshape(2, 3, 4).transpose(2, 0, 1),
        "stored": from_store,
        "a program": program.run(y=program.permute(x, 2, 0, 1)).outputs["y"],
    }

    for way, y in ways.items():
        np.testing.assert_array_equal(y, x.transpose(2, 0, 1), err_msg=way)
    with pytest.raises(InvalidInput, match=r"dims must be integers, or one sequence of them") as e:
        gpu.permute(x, (2, 0), 1)
    assert e.value.field == "dims"


def test_isin_takes_numbers_and_lists_as_torch_and_numpy_do(gpu: Client) -> None:
    x = torch.tensor([[0.1, 2.0], [3.0, -0.0]])
    program = gpu.program()

    found = {
        "number": (gpu.isin(x, 0.1), torch.isin(x, 0.1)),
        "integer": (gpu.isin(x, 2), torch.isin(x, 2)),
        "list": (gpu.isin(x, [2.0, 0.0]), torch.isin(x, torch.tensor([2.0, 0.0]))),
        "of a number": (gpu.isin(2, x), torch.isin(2, x)),
        "in a program": (
            program.run(y=program.isin(x, [3.0])).outputs["y"],
            torch.isin(x, torch.tensor([3.0])),
        ),
    }
    arrays = gpu.isin([[1, 2], [3, 4]], [2, 4])

    for way, (ours, theirs) in found.items():
        assert torch.equal(ours, theirs), way
    np.testing.assert_array_equal(arrays, [[False, True], [False, True]])


def test_an_op_is_found_with_underscores_or_with_hyphens(gpu: Client) -> None:
    x = np.zeros((1, 2), np.float32)

    program = gpu.program()
    step = program.step("masked_softmax", {"x": x}, {})
    preview = gpu.jobs.preview("masked_softmax", cases=[{"shape": [1, 2], "dtype": "F32"}])

    assert gpu.run("masked_softmax", x=x).tolist() == gpu.run("masked-softmax", x=x).tolist()
    assert program.run(out=step["out"]).outputs["out"].tolist() == [[0.5, 0.5]]
    assert preview.first_cases[0].startswith("masked-softmax x=")


def test_strided_arrays_are_read_as_they_look(gpu: Client) -> None:
    x = np.arange(60, dtype=np.int32).reshape(3, 4, 5)[::2, ::-1, 1::2]

    y = gpu.permute(x, dims=(2, 0, 1))

    np.testing.assert_array_equal(y, x.transpose(2, 0, 1))


def test_an_optional_output_is_there_when_asked_for(gpu: Client) -> None:
    x, weight = np.ones((1, 2, 5), np.float32), np.ones((2, 3), np.float32)

    without = gpu.conv_backward(x, x, weight)
    with_bias = gpu.conv_backward(x, x, weight, bias=True)

    assert without[2] is None
    assert with_bias[2] is not None
    np.testing.assert_allclose(with_bias[2], [5, 5])


def test_async_calls_run_side_by_side(server: Server) -> None:
    arrays = [np.full((8, i + 1), i, np.int16) for i in range(32)]

    async def call_all() -> list[Any]:
        async with AsyncClient(server.url) as gpu:
            return list(await asyncio.gather(*(gpu.permute(a, dims=(1, 0)) for a in arrays)))

    answers = asyncio.run(call_all())

    assert all(np.array_equal(y, a.T) for y, a in zip(answers, arrays, strict=True))


def test_an_answer_says_what_ran_it_and_how_long(gpu: Client) -> None:
    answer = gpu.call("permute", {"x": np.zeros((64, 64))}, {"dims": (1, 0)})

    assert answer.device in [lane.device for lane in gpu.health().lanes]
    assert answer.timing_ms.keys() == {"queue", "h2d", "kernel", "d2h"}
    assert answer.timing_ms["kernel"] > 0
    assert answer.request_id


def test_a_refusal_names_the_field_and_the_next_call_works(gpu: Client) -> None:
    x = np.zeros((2, 3))

    with pytest.raises(InvalidInput, match="dims") as refused:
        gpu.permute(x, dims=(0, 0))

    assert refused.value.field == "dims"
    assert gpu.permute(x, dims=(1, 0)).shape == (3, 2)
