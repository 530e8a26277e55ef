"""Runs calls on a GPU: inputs from the arena, the op, and its outputs into the arena."""

from __future__ import annotations

import contextlib
import mmap
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from warpcall.errors import KernelFailed
from warpcall_service.devices.device import Pending, Times
from warpcall_service.devices.graphs import Graphs, has_passed
from warpcall_service.devices.tensors import Place, Runnable
from warpcall_service.devices.views import ArenaViews, mapped_memory
from warpcall_service.lanes.messages import NoSuchDevice

DEVICE_SHARE = 0.9  # of all memory, for tensors; the rest is for the programs
# A small call that is begun so often with the same plan and slots is captured as a CUDA graph, which
# takes 150 to 270 us once. On an H100's machine a call of 4 KB then took 14 us to begin instead of
# 52, and was ready after 26 instead of 66.
CAPTURED_AT = 16


class Cuda:
    """One CUDA device with the kernels; the arena is page-locked for its DMA."""

    def __init__(self, index: int, arena: mmap.mmap) -> None:
        count = torch.cuda.device_count()
        if index >= count:
            raise NoSuchDevice(f"there is no cuda:{index}, this machine has {count} CUDA devices")
        torch.cuda.set_device(index)
        self.name = f"cuda:{index}"
        self.all = [f"cuda:{i}" for i in range(count)]
        self.memory_nbytes = int(torch.cuda.mem_get_info(index)[1] * DEVICE_SHARE)
        self._device = torch.device("cuda", index)
        whole = torch.frombuffer(arena, dtype=torch.uint8)
        # Page-locked memory is copied to and from an H200 at 55 GB/s, other memory at 4 to 10.
        refused = int(
            torch.cuda.cudart().cudaHostRegister(  # type: ignore[no-untyped-call]  # torch has no types here
                whole.data_ptr(), len(arena), 0
            )
        )
        if refused:
            with contextlib.suppress(RuntimeError):  # torch raises CUDA's error at its next launch
                torch.ones(1, device=self._device)
        else:
            weakref.finalize(self, _unlock, whole).atexit = False  # a process that ends unlocks it
        note = f", memory not page-locked: CUDA error {refused}" if refused else ""
        self.label = f"{self.name} ({torch.cuda.get_device_name(index)}{note})"
        mapped = None if refused else mapped_memory(whole, self._device)
        self._views = ArenaViews(arena, mapped)
        self._graphs = Graphs(self._device)
        self._free_events: list[Events] = []
        self._stream = torch.cuda.current_stream(index)

    def begin(self, work: Runnable, source: int, target: int) -> Pending:
        """As `Device.begin`: copies and kernels are queued on the device's stream.

        Tensors may be freed here before the device has used them: the allocator gives their memory
        only to work that is queued later on the same stream.
        """
        try:
            return self._begin(work, source, target)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # memory that the caching allocator keeps from earlier calls
        try:
            return self._begin(work, source, target)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info()
            raise KernelFailed(
                f"{work.name} needs more device memory than there is for tensors of this size: "
                f"{free} of {total} bytes are free"
            ) from None

    def is_broken(self) -> bool:
        """Whether the CUDA context is lost, as after an illegal access."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def _begin(self, work: Runnable, source: int, target: int) -> Pending:
        stream = self._stream
        views = self._views.of(work, source, target)
        views.uses += 1
        if views.uses == CAPTURED_AT:
            outputs = self._views.outputs_on_device(views, target)
            if outputs is not None:
                views.graphed = self._graphs.capture(work, views.direct, outputs)
        if views.graphed is not None and not views.graphed.is_under_way:
            return views.graphed.begin(stream)
        events = self._free_events.pop() if self._free_events else _new_events()
        begin, copied, computed, end = events
        begin.record(stream)
        # Nothing but `tensors` holds what is uploaded: `compute` frees it there.
        tensors = dict(views.direct)
        if views.uploaded:
            for place, view in views.uploaded:
                tensors[place.name] = self._uploaded(place, view)
            copied.record(stream)
        results = work.compute(tensors)
        computed.record(stream)
        for name, output in views.outputs:
            output.copy_(results[name], non_blocking=True)
        end.record(stream)
        return OnStream(events, self._free_events, has_copied=bool(views.uploaded))

    def _uploaded(self, place: Place, view: Tensor) -> Tensor:
        on_device = view.to(self._device, non_blocking=True)
        return place.shaped(on_device) if place.strides else on_device


Events = tuple[torch.cuda.Event, torch.cuda.Event, torch.cuda.Event, torch.cuda.Event]


def _unlock(memory: Tensor) -> None:
    """Let the system move page-locked memory again."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]


def _new_events() -> Events:
    begin, copied, computed, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types here
        for _ in range(4)
    )
    return begin, copied, computed, end


@dataclass(frozen=True, slots=True)
class OnStream:
    """A call whose work is queued on a stream, between events that go back to `free` at its end.

    Attributes:
        has_copied: whether inputs were copied to the device. If not, the second event was not
            recorded.
    """

    events: Events
    free: list[Events]
    has_copied: bool

    def ready(self) -> bool:
        """As `Pending.ready`."""
        return has_passed(self.events[3])

    def times(self) -> Times:
        begin, copied, computed, end = self.events
        end.synchronize()
        self.free.append(self.events)
        if not self.has_copied:
            return 0.0, begin.elapsed_time(computed), computed.elapsed_time(end)
        return (
            begin.elapsed_time(copied),
            copied.elapsed_time(computed),
            computed.elapsed_time(end),
        )
