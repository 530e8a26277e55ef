"""Opens a device by its name."""

from __future__ import annotations

import mmap

import torch

from warpcall_service.devices.cpu import Cpu
from warpcall_service.devices.cuda import Cuda
from warpcall_service.devices.device import Device


def open_device(name: str, arena: mmap.mmap, threads: int) -> Device:
    """The device `name`; "auto" is the first CUDA device, or else the CPU."""
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return Cpu(arena, threads)
    return Cuda(int(name.removeprefix("cuda:")), arena)
