"""Calls on one GPU: several under way, and small inputs that kernels read in the arena."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.service.worker.lane_calls import check_many_calls
from warpcall_service.worker.devices import DIRECT_BYTES, Device, Times, open_device
from warpcall_service.worker.tensors import CODES, OpCall

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
