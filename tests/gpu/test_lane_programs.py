"""Programs and stored tensors on a CUDA lane: nothing comes back in between, nothing stays but what
should.
"""

from __future__ import annotations

import functools
import json
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from warpcall_service.devices.device import Device
from warpcall_service.devices.open_device import open_device
from warpcall_service.worker.program_planner import plan_program
from warpcall_service.worker.programs import PlannedProgram, TensorStore

SIDE = 1024
NBYTES = SIDE * SIDE * 4
STEPS = 20


def chain(source: str) -> dict[str, Any]:
    """Sums of a square with its transpose, again and again."""
    names = [f"s{i}" for i in range(STEPS)]
    steps = [
        {"name": name, "op": "transpose-add", "inputs": {"a": before, "b": before}, "params": {}}
        for before, name in zip([source, *names], names, strict=False)
    ]
    return {"steps": steps, "outputs": {"y": names[-1]}}


def message(
    request: Mapping[str, Any], stored_inputs: Mapping[str, int], stored_outputs: Mapping[str, int]
) -> bytes:
    """As `programs.build_plan` writes it, with each input and output at the start of its region."""
    checked = plan_program(request)
    returned = {
        name: source for name, source, *_ in checked["outputs"] if name not in stored_outputs
    }
    return json.dumps(
        {
            "steps": checked["steps"],
            "name": "program",
            "inputs": [[name, code, shape, 0, None] for name, code, shape in request["tensors"]],
            "outputs": [[n, c, s, 0] for n, _, c, s in checked["outputs"] if n in returned],
            "returned": returned,
            "stored_inputs": dict(stored_inputs),
            "stored_outputs": [
                [s, stored_outputs[n]] for n, s, *_ in checked["outputs"] if n in stored_outputs
            ],
        }
    ).encode()


@functools.cache  # never unmapped: CUDA would go on to read what had been there
def open_lane(name: str = "cuda:0") -> tuple[Device, mmap.mmap]:
    arena = mmap.mmap(-1, 4 * NBYTES)
    return open_device(name, arena, 0), arena


def test_a_program_between_kept_tensors_uses_memory_for_few_of_its_steps() -> None:
    device, arena = open_lane()
    tensor_store: TensorStore = {}
    x = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    arena[:NBYTES] = x.tobytes()
    square = ["x", "F32", [SIDE, SIDE]]
    put = {"steps": [], "outputs": {"x": "x"}, "tensors": [square], "stored": []}
    run = {**chain("x"), "tensors": [], "stored": [square]}
    get = {"steps": [], "outputs": {"y": "y"}, "tensors": [], "stored": [["y", *square[1:]]]}
    before = torch.cuda.memory_allocated()

    device.begin(
        PlannedProgram.decode(message(put, {}, {"x": 1}), tensor_store), 0, 2 * NBYTES
    ).times()
    torch.cuda.reset_peak_memory_stats()
    device.begin(
        PlannedProgram.decode(message(run, {"x": 1}, {"y": 2}), tensor_store), 0, 2 * NBYTES
    ).times()
    peak = torch.cuda.max_memory_allocated() - before
    device.begin(
        PlannedProgram.decode(message(get, {"y": 2}, {}), tensor_store), 0, 2 * NBYTES
    ).times()

    expected = torch.from_numpy(x).cuda()
    for _ in range(STEPS):
        expected = expected.T + expected
    got = np.frombuffer(arena[2 * NBYTES : 3 * NBYTES], np.float32).reshape(SIDE, SIDE)
    np.testing.assert_array_equal(got, expected.cpu().numpy())
    assert all(tensor.is_cuda for tensor in tensor_store.values())
    assert peak <= 4 * NBYTES, "x, and the input and output of one step"
    del expected
    tensor_store.clear()
    assert torch.cuda.memory_allocated() == before


def test_an_upload_is_freed_once_no_step_needs_it() -> None:
    device, arena = open_lane()
    arena[:NBYTES] = np.ones(SIDE * SIDE, np.float32).tobytes()
    request = {**chain("x"), "tensors": [["x", "F32", [SIDE, SIDE]]], "stored": []}
    program = PlannedProgram.decode(message(request, {}, {}), {})
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    device.begin(program, 0, 2 * NBYTES).times()

    got = np.frombuffer(arena[2 * NBYTES : 3 * NBYTES], np.float32)
    assert (got == 2.0**STEPS).all()
    assert torch.cuda.max_memory_allocated() - before <= 2 * NBYTES
    assert torch.cuda.memory_allocated() == before
