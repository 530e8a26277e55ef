"""Runs calls on the CPU with the torch references: inputs and outputs are views of the arena."""

from __future__ import annotations

import mmap
import os
import time

import torch
from torch import Tensor

from warpcall_service.devices.device import Finished, Pending
from warpcall_service.devices.tensors import CODES, Place, Runnable

HOST_SHARE = 0.5  # of all memory, for tensors; the rest is for the programs


class Cpu:
    """The CPU with the torch references, for machines without a GPU.

    It keeps no views of the arena. They would lie in the heap between the temporaries of references,
    of which some have 50 MB, and split the memory that these need again: the heap would grow by
    hundreds of MB.
    """

    name = "cpu"
    label = "cpu (torch reference)"

    def __init__(self, arena: mmap.mmap, threads: int) -> None:
        self.all = [self.name]
        self.memory_nbytes = int(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * HOST_SHARE
        )
        self._arena = arena
        with torch.inference_mode():  # views of such tensors are made faster
            whole = torch.frombuffer(arena, dtype=torch.uint8)
            self._whole = {dtype: whole.view(dtype) for dtype in CODES}
        torch.set_num_threads(threads or len(os.sched_getaffinity(0)))

    def begin(self, work: Runnable, source: int, target: int) -> Pending:
        """As `Device.begin`; the call has ended when this returns. It has no transfers.

        A reference may return a view, as permute does, so writing the result counts as kernel time.
        """
        if work.is_empty:
            # The launchers do the same; a reference could allocate for a dimension of 2^40.
            return Finished((0.0, 0.0, 0.0))
        began = time.perf_counter()
        results = work.compute({i.name: self._view(i, source) for i in work.inputs})
        for output in work.outputs:
            place, result = self._view(output, target), results[output.name]
            if (
                1 in output.shape
            ):  # torch copies some tensors with such dims several times as slowly
                place, result = place.squeeze(), result.squeeze()
            place.copy_(result)
        return Finished((0.0, (time.perf_counter() - began) * 1e3, 0.0))

    def _view(self, place: Place, region: int) -> Tensor:
        """View a tensor in the arena; the region begins at byte `region`."""
        index, rest = divmod(region + place.offset, place.dtype.itemsize)
        if rest:  # not at a whole element, as tensors of other programs' safetensors may be
            return place.shaped(place.flat(self._arena, region))
        # A third faster than frombuffer.
        return self._whole[place.dtype].as_strided(place.shape, place.layout, index)

    def is_broken(self) -> bool:
        """Always False: an error that breaks the CPU's process ends it."""
        return False
