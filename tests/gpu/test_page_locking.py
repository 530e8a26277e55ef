"""The memory for inputs and outputs of calls, which a lane locks in the machine's memory."""

from __future__ import annotations

import gc
import mmap

import torch

from warpcall_service.devices.open_device import open_device

NBYTES = 1 << 20
REFUSED = "memory not page-locked: CUDA error"


def test_a_device_may_refuse_to_lock_memory() -> None:
    arena = mmap.mmap(-1, NBYTES)
    lane = open_device("cuda:0", arena, 0)

    refused = open_device("cuda:0", arena, 0)  # because it is locked already

    assert REFUSED not in lane.label
    assert REFUSED in refused.label
    assert torch.ones(4, device="cuda").sum().item() == 4, "CUDA's error is not of later calls"


def test_memory_is_unlocked_with_its_device() -> None:
    arena = mmap.mmap(-1, NBYTES)
    lane = open_device("cuda:0", arena, 0)
    assert REFUSED not in lane.label

    del lane
    gc.collect()

    assert REFUSED not in open_device("cuda:0", arena, 0).label
