"""The CPU of a lane: what it keeps between calls, and tensors at any place of the arena."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
import torch

from tests.service.worker.lane_calls import NBYTES, SIDE, message
from warpcall_service.devices.open_device import open_device
from warpcall_service.devices.tensors import OpCall

SLOTS = 50


def live_tensors() -> int:
    gc.collect()
    return sum(type(thing) is torch.Tensor for thing in gc.get_objects())


def test_calls_leave_no_tensors_between_the_temporaries_of_later_calls() -> None:
    device = open_device("cpu", mmap.mmap(-1, 2 * NBYTES * SLOTS), 1)
    work = OpCall.decode(message())
    before = live_tensors()

    with torch.inference_mode():
        for slot in range(SLOTS):
            device.begin(work, 2 * NBYTES * slot, 2 * NBYTES * slot + NBYTES)

    assert live_tensors() <= before


@pytest.mark.parametrize("source", [0, 4, 1, 7])
def test_a_tensor_may_begin_at_any_byte(source: int) -> None:
    arena = mmap.mmap(-1, 4 * NBYTES)
    device = open_device("cpu", arena, 1)
    x = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    arena[source : source + NBYTES] = x.tobytes()

    with torch.inference_mode():
        device.begin(OpCall.decode(message()), source, 2 * NBYTES)

    out = np.frombuffer(arena, np.float32, SIDE * SIDE, 2 * NBYTES).reshape(SIDE, SIDE)
    assert np.array_equal(out, x.T)
