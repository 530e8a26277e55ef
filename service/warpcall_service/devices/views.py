"""Makes tensors of the arena's bytes for a GPU, and keeps them for the next call like it."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from warpcall_service.devices.graphs import GraphedCall
from warpcall_service.devices.tensors import OpCall, Place, Runnable

MAX_VIEWS = 1024  # calls whose views are kept, by plan and slots
# Up to so many bytes of inputs, kernels read the page-locked arena themselves. A copy to the device
# costs 10 us of CPU and, on an H200, as long on the stream: calls of 4 KB took 35 us instead of 50.
DIRECT_BYTES = 64 << 10
DIRECT_ALIGNMENT = 16  # of such inputs: for others, Triton would compile kernels of their own


@dataclass(slots=True)
class Views:
    """The tensors of a call as they lie in the arena.

    Attributes:
        work: whose inputs and outputs they are.
        direct: inputs that the device reads in the arena.
        uploaded: inputs to copy to the device, with their elements in the order of memory, where
            strides say another order.
        outputs: to copy results to.
        uses: how many calls had these views.
        graphed: the call as a CUDA graph, once there is one.
    """

    work: Runnable
    direct: Mapping[str, Tensor]
    uploaded: Sequence[tuple[Place, Tensor]]
    outputs: Sequence[tuple[str, Tensor]]
    uses: int = 0
    graphed: GraphedCall | None = None


class ArenaViews:
    """Makes views of the arena for a GPU. Those of ops are kept: repeated calls get the same slots
    again and again, and a view takes 4 us.

    Args:
        mapped: the arena's bytes as a tensor of the device; None if the device cannot read them.
    """

    def __init__(self, arena: mmap.mmap, mapped: Tensor | None) -> None:
        self._arena = arena
        self._mapped = mapped
        self._kept: dict[tuple[int, int, int], Views] = {}

    def of(self, work: Runnable, source: int, target: int) -> Views:
        """Views for a call whose input and output regions begin at these bytes."""
        key = id(work), source, target
        found = self._kept.get(key)
        if found is not None and found.work is work:
            return found
        # A program may keep its inputs as stored tensors, so that they are always copied.
        is_direct = isinstance(work, OpCall) and _nbytes(work.inputs) <= DIRECT_BYTES
        direct = self._on_device(work.inputs, source) if is_direct else {}
        flat = [(i, i.flat(self._arena, source)) for i in work.inputs if i.name not in direct]
        views = Views(
            work,
            direct,
            [(i, view if i.strides else i.shaped(view)) for i, view in flat],
            [(o.name, o.shaped(o.flat(self._arena, target))) for o in work.outputs],
        )
        if isinstance(work, OpCall):
            if len(self._kept) >= MAX_VIEWS:
                self._kept.clear()
            self._kept[key] = views
        return views

    def outputs_on_device(self, views: Views, target: int) -> Mapping[str, Tensor] | None:
        """The outputs in the arena as tensors of the device, for a call that can be captured.

        Returns:
            None for other calls: those of which an input is copied to the device, with more than
            DIRECT_BYTES of outputs, or with an output that is empty or not aligned.
        """
        outputs = views.work.outputs
        if views.uploaded or not isinstance(views.work, OpCall) or _nbytes(outputs) > DIRECT_BYTES:
            return None
        found = self._on_device(outputs, target)
        return found if len(found) == len(outputs) else None

    def _on_device(self, places: Sequence[Place], region: int) -> dict[str, Tensor]:
        """Those of the tensors that the device can read where they are."""
        mapped = self._mapped
        if mapped is None:
            return {}
        return {
            p.name: p.shaped(mapped[at : at + p.nbytes].view(p.dtype))
            for p in places
            if (at := region + p.offset) % DIRECT_ALIGNMENT == 0 and p.nbytes
        }


def _nbytes(places: Sequence[Place]) -> int:
    return sum(place.nbytes for place in places)


def mapped_memory(memory: Tensor, device: torch.device) -> Tensor | None:
    """The bytes of page-locked `memory` as a tensor of `device`; None if it cannot read them there."""
    mapped = torch.as_tensor(_CudaArray(memory), device=device)
    return mapped if mapped.data_ptr() == memory.data_ptr() else None


class _CudaArray:
    """Page-locked memory as memory of a GPU, for torch.as_tensor: both have the same addresses."""

    def __init__(self, memory: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(memory.shape),
            "typestr": "|u1",
            "data": (memory.data_ptr(), False),
            "version": 3,
        }
