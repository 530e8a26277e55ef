"""How kernels are launched: on the caller's stream and device, and into a CUDA graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels import suite
from warpcall_kernels import Op, ops
from warpcall_kernels.op.cases import Case

WAIT_CYCLES = 50_000_000  # some 25 ms: a kernel on the wrong stream reads what is not there yet

every_case = pytest.mark.parametrize(
    ("op", "case"),
    [
        pytest.param(op, case, id=f"{op.name} {case.name}")
        for op in ops().values()
        for case in op.cases
        if case.size == "small" and all(0 not in sample.shape for sample in case.inputs.values())
    ],
)  # an empty tensor launches nothing


def _call(op: Op, inputs: dict[str, Tensor], params: dict[str, Any]) -> dict[str, Tensor]:
    return suite.by_name(op, op.function(**inputs, **params))


def _assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        suite.assert_bits_equal(tensor.cpu(), expected[name].cpu())


@every_case
def test_a_kernel_runs_on_the_current_stream(op: Op, case: Case) -> None:
    params = op.check_params(case.params)
    inputs = {name: t.contiguous() for name, t in case.tensors("cuda").items()}
    expected = _call(op, inputs, params)
    late = {name: torch.zeros_like(t) for name, t in inputs.items()}
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    with torch.cuda.stream(stream):
        torch.cuda._sleep(WAIT_CYCLES)  # type: ignore[no-untyped-call]
        for name, tensor in late.items():
            tensor.copy_(inputs[name])
        outputs = _call(op, late, params)
    stream.synchronize()

    _assert_same(outputs, expected)


@every_case
def test_a_captured_graph_replays_with_new_values(op: Op, case: Case) -> None:
    params = op.check_params(case.params)
    static = {name: t.contiguous() for name, t in case.tensors("cuda").items()}
    fresh = dataclasses.replace(case, seed=case.seed + 1).tensors("cuda")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        _call(op, static, params)  # compiles, which a capture must not
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = _call(op, static, params)

    for name, tensor in static.items():
        tensor.copy_(fresh[name])
    graph.replay()
    torch.cuda.synchronize()

    _assert_same(outputs, _call(op, {n: t.contiguous() for n, t in fresh.items()}, params))


@every_case
def test_a_kernel_runs_on_the_device_of_its_inputs(op: Op, case: Case) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    params = op.check_params(case.params)
    expected = _call(op, case.tensors("cuda:0"), params)

    outputs = _call(op, case.tensors("cuda:1"), params)

    assert torch.cuda.current_device() == 0
    assert all(t.device.index == 1 for t in outputs.values())
    _assert_same(outputs, expected)
