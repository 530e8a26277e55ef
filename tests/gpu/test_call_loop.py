"""Calls on one GPU: several under way, and small calls whose kernels read and write the arena."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu.cached_memory import CACHED_BYTES, given_back
from tests.service.worker.lane_calls import check_many_calls, permutation
from warpcall_kernels import ops
from warpcall_service.devices import views
from warpcall_service.devices.cuda import CAPTURED_AT
from warpcall_service.devices.device import Device, Times
from warpcall_service.devices.graphs import Graphs
from warpcall_service.devices.open_device import open_device
from warpcall_service.devices.tensors import CODES, OpCall
from warpcall_service.devices.views import DIRECT_BYTES

ARENA_BYTES = 1 << 20
TARGET = ARENA_BYTES // 2  # where outputs begin
Inputs = Mapping[str, tuple[Tensor, int]]  # each with its offset


@pytest.fixture(scope="module")
def arena() -> mmap.mmap:
    return mmap.mmap(-1, ARENA_BYTES)


@pytest.fixture(scope="module")
def gpu(arena: mmap.mmap, device: str) -> Device:
    if device != "cuda":  # this fixture is made before the one that skips every test of this folder
        pytest.skip("needs --device cuda")
    return open_device("cuda:0", arena, 1)


def run(
    device: Device,
    arena: mmap.mmap,
    op: str,
    inputs: Inputs,
    output: Tensor,
    params: Mapping[str, Any],
    source: int = 0,
) -> tuple[Tensor, Times]:
    """Run a call whose region of inputs begins at `source`; `output` has the result's form."""
    for x, offset in inputs.values():
        if not x.numel():
            continue
        begin = source + offset
        memory = torch.frombuffer(arena, dtype=x.dtype, count=x.numel(), offset=begin)
        memory.copy_(x.flatten())
    message = {
        "op": op,
        "params": params,
        "inputs": [entry(name, x, offset) for name, (x, offset) in inputs.items()],
        "outputs": [entry("out", output, 0)],
    }
    with torch.inference_mode():
        times = device.begin(OpCall.decode(json.dumps(message).encode()), source, TARGET).times()
    result = torch.frombuffer(arena, dtype=output.dtype, count=output.numel(), offset=TARGET)
    return result.view(output.shape).clone(), times


def entry(name: str, x: Tensor, offset: int) -> Sequence[Any]:
    return [name, CODES[x.dtype], list(x.shape), offset]


def test_calls_under_way_together_are_answered_in_order_and_with_their_own_data() -> None:
    check_many_calls("cuda:0")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.complex64])
@pytest.mark.parametrize(("nbytes", "is_direct"), [(DIRECT_BYTES, True), (2 * DIRECT_BYTES, False)])
def test_a_kernel_reads_small_inputs_where_they_lie(
    gpu: Device, arena: mmap.mmap, dtype: torch.dtype, nbytes: int, is_direct: bool
) -> None:
    rows = nbytes // dtype.itemsize // 64
    for seed in range(3):  # the same views, with other values
        torch.manual_seed(seed)
        x = torch.randint(0, 200, (rows, 64)).to(dtype)

        found, (h2d_ms, kernel_ms, d2h_ms) = run(
            gpu, arena, "permute", {"x": (x, 0)}, x.T, {"dims": [1, 0]}
        )

        assert torch.equal(found, x.T)
        assert (h2d_ms == 0) == is_direct
        assert kernel_ms > 0
        assert d2h_ms > 0


@pytest.mark.parametrize("gap", [0, 3, 8])
def test_inputs_that_are_not_aligned_are_copied(gpu: Device, arena: mmap.mmap, gap: int) -> None:
    a, b = torch.randint(0, 100, (48, 20)).to(torch.uint8), torch.ones((20, 48), dtype=torch.uint8)

    found, (h2d_ms, _, _) = run(
        gpu,
        arena,
        "transpose-add",
        {"a": (a, 0), "b": (b, a.nbytes + gap)},
        b,
        {},
        source=4096,
    )

    assert torch.equal(found, a.T + b)
    assert (h2d_ms == 0) == (gap == 0)


def test_an_empty_input_beside_a_small_one_is_no_error(gpu: Device, arena: mmap.mmap) -> None:
    elements, none = torch.arange(100, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)

    found, _ = run(
        gpu,
        arena,
        "isin",
        {"elements": (elements, 0), "test_elements": (none, 400)},
        torch.zeros(100, dtype=torch.bool),
        {"assume_unique": False, "invert": True},
    )

    assert found.all()


def test_a_call_that_is_repeated_is_captured_and_reads_new_values(
    gpu: Device, arena: mmap.mmap
) -> None:
    x = torch.zeros((40, 24))
    work, source = permutation(x.shape), torch.frombuffer(arena, dtype=x.dtype, count=x.numel())
    out = torch.frombuffer(arena, dtype=x.dtype, count=x.numel(), offset=TARGET).view(24, 40)
    copies_back = []

    with torch.inference_mode():
        for seed in range(2 * CAPTURED_AT):
            source.fill_(seed).add_(torch.arange(x.numel()))
            _, _, d2h_ms = gpu.begin(work, 0, TARGET).times()
            copies_back.append(d2h_ms > 0)
            assert torch.equal(out, source.view(40, 24).T)

    assert copies_back == [i + 1 < CAPTURED_AT for i in range(2 * CAPTURED_AT)]


def test_a_captured_call_that_is_under_way_is_begun_again_without_its_graph(
    gpu: Device, arena: mmap.mmap
) -> None:
    x = torch.zeros((24, 56))
    work = permutation(x.shape)
    with torch.inference_mode():
        for _ in range(CAPTURED_AT):
            gpu.begin(work, 0, TARGET).times()

        both = [gpu.begin(work, 0, TARGET) for _ in range(2)]

    assert [pending.times()[2] > 0 for pending in both] == [False, True]


def test_more_captured_calls_than_are_kept_are_right(
    gpu: Device, arena: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MAX_VIEWS", 3)
    x = torch.arange(15 * 64, dtype=torch.float32).view(15, 64)
    work, step = permutation(x.shape), 8 << 10

    with torch.inference_mode():
        for place in [*range(5), *range(5)]:  # the first are dropped while others come
            source = torch.frombuffer(arena, dtype=x.dtype, count=x.numel(), offset=place * step)
            source.copy_(x.flatten()).add_(place)
            for _ in range(CAPTURED_AT + 2):
                at = TARGET + place * step
                out = torch.frombuffer(arena, dtype=x.dtype, count=x.numel(), offset=at).zero_()
                gpu.begin(work, place * step, at).times()
                assert torch.equal(out.view(64, 15), x.T + place)


class Waiting:
    """A call that reads a value back, which no graph captures."""

    name = "waiting"
    inputs = outputs = ()
    is_empty = False

    def compute(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"out": torch.full((1,), torch.zeros(1, device="cuda").item())}


def test_memory_is_given_back_after_a_call_that_could_not_be_captured(gpu: Device) -> None:
    assert Graphs(torch.device("cuda:0")).capture(Waiting(), {}, {}) is None

    assert given_back() >= CACHED_BYTES


def test_random_numbers_can_be_drawn_after_a_call_that_could_not_be_captured(gpu: Device) -> None:
    assert Graphs(torch.device("cuda:0")).capture(Waiting(), {}, {}) is None

    torch.rand(1, device="cuda")


SMALL = [
    pytest.param(op.name, case.name, id=f"{op.name}: {case.name}")
    for op in ops().values()
    for case in op.cases
    if case.size == "small"
]


@pytest.mark.parametrize(("op_name", "case_name"), SMALL)
def test_captured_calls_of_all_ops_give_what_they_gave_before(
    gpu: Device, arena: mmap.mmap, op_name: str, case_name: str
) -> None:
    op = ops()[op_name]
    (case,) = (c for c in op.cases if c.name == case_name and c.size == "small")
    inputs = {name: x.contiguous() for name, x in case.tensors("cpu").items()}
    planned = op.check(inputs, op.check_params(case.params))
    tensors: list[Any] = [*inputs.values(), *planned.values()]
    if not {x.dtype for x in tensors} <= set(CODES):
        pytest.skip("calls cannot have this dtype")
    message = {
        "op": op_name,
        "params": case.params,
        "inputs": placed(inputs),
        "outputs": placed(planned),
    }
    work = OpCall.decode(json.dumps(message).encode())
    if work.is_empty:
        pytest.skip("there is nothing to compute")
    for place in work.inputs:
        place.flat(arena, 0).copy_(inputs[place.name].flatten())
    answers = []

    with torch.inference_mode():
        for _ in range(CAPTURED_AT + 1):
            for place in work.outputs:
                place.flat(arena, TARGET).zero_()
            gpu.begin(work, 0, TARGET).times()
            answers.append([place.flat(arena, TARGET).clone() for place in work.outputs])

    for answer in answers[1:]:
        for first, again in zip(answers[0], answer, strict=True):
            assert torch.equal(first.view(torch.uint8), again.view(torch.uint8))


def placed(tensors: Mapping[str, Any]) -> list[Sequence[Any]]:
    """Entries of a message, one after the other, each aligned."""
    entries: list[Sequence[Any]] = []
    at = 0
    for name, x in tensors.items():
        entries.append([name, CODES[x.dtype], list(x.shape), at])
        at += -(-math.prod(x.shape) * x.dtype.itemsize // 64) * 64
    return entries
