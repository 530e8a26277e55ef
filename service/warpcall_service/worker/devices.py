"""Runs a call on a device: inputs from the arena, the op, and its outputs into the arena."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from warpcall.errors import KernelFailed
from warpcall_service.lanes.messages import NoSuchDevice
from warpcall_service.worker.tensors import CODES, OpCall, Place, Runnable

MAX_VIEWS = 1024  # calls whose views are kept, by plan and slots
# Up to so many bytes of inputs, kernels read the page-locked arena themselves. A copy to the device
# costs 10 us of CPU and, on an H200, as long on the stream: calls of 4 KB took 35 us instead of 50.
DIRECT_BYTES = 64 << 10
DIRECT_ALIGNMENT = 16  # of such inputs: for others, Triton would compile kernels of their own
HOST_SHARE, DEVICE_SHARE = 0.5, 0.9  # of all memory, for tensors; the rest is for the programs


Times = tuple[float, float, float]  # ms of h2d, kernel and d2h


@dataclass(frozen=True, slots=True)
class Views:
    """The tensors of a call as they lie in the arena.

    Attributes:
        work: whose inputs and outputs they are.
        direct: inputs that the device reads in the arena.
        uploaded: inputs to copy to the device, with their elements in the order of memory, where
            strides say another order.
        outputs: to copy results to.
    """

    work: Runnable
    direct: Mapping[str, Tensor]
    uploaded: tuple[tuple[Place, Tensor], ...]
    outputs: tuple[tuple[str, Tensor], ...]


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
        direct = self._direct(work, source)
        flat = [(i, i.flat(self._arena, source)) for i in work.inputs if i.name not in direct]
        views = Views(
            work,
            direct,
            tuple((i, view if i.strides else i.shaped(view)) for i, view in flat),
            tuple((o.name, o.shaped(o.flat(self._arena, target))) for o in work.outputs),
        )
        if isinstance(work, OpCall):
            if len(self._kept) >= MAX_VIEWS:
                self._kept.clear()
            self._kept[key] = views
        return views

    def _direct(self, work: Runnable, source: int) -> dict[str, Tensor]:
        """Inputs of a small call that the device reads where they are.

        A program may keep its inputs as stored tensors, so that its inputs are always copied.
        """
        mapped = self._mapped
        if (
            mapped is None
            or not isinstance(work, OpCall)
            or sum(i.nbytes for i in work.inputs) > DIRECT_BYTES
        ):
            return {}
        return {
            i.name: i.shaped(mapped[at : at + i.nbytes].view(i.dtype))
            for i in work.inputs
            if (at := source + i.offset) % DIRECT_ALIGNMENT == 0 and i.nbytes
        }


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


class Pending(Protocol):
    """A call that a device has begun."""

    def ready(self) -> bool:
        """Whether the device has finished it."""
        ...

    def times(self) -> Times:
        """Wait until the device has finished it, and return the times of its stages.

        Raises whatever went wrong.
        """
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A call that ended while it was begun."""

    took: Times

    def ready(self) -> bool:
        return True

    def times(self) -> Times:
        return self.took


class Device(Protocol):
    """A device that runs calls, one after the other.

    Attributes:
        name: such as "cuda:0".
        label: a name for people, in responses and logs.
        all: names of all devices of this kind.
        memory_nbytes: the most bytes that tensors may use on it.
    """

    name: str
    label: str
    all: list[str]
    memory_nbytes: int

    def begin(self, work: Runnable, source: int, target: int) -> Pending:
        """Begin `work`, whose input and output regions begin at these bytes of the arena.

        Calls that were begun before may still run. This one runs after them.
        """
        ...

    def is_broken(self) -> bool:
        """Whether the device cannot run any more calls, after one that raised an exception."""
        ...


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
        note = f", memory not page-locked: CUDA error {refused}" if refused else ""
        self.label = f"{self.name} ({torch.cuda.get_device_name(index)}{note})"
        mapped = None if refused else mapped_memory(whole, self._device)
        self._views = ArenaViews(arena, mapped)
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
        events = self._free_events.pop() if self._free_events else _new_events()
        begin, copied, computed, end = events
        stream = self._stream
        views = self._views.of(work, source, target)
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
        """As `Pending.ready`. A lost device has finished: `times` raises its error."""
        try:
            return bool(self.events[3].query())  # type: ignore[no-untyped-call]  # as above
        except RuntimeError:
            return True

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


def open_device(name: str, arena: mmap.mmap, threads: int) -> Device:
    """The device `name`; "auto" is the first CUDA device, or else the CPU."""
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return Cpu(arena, threads)
    return Cuda(int(name.removeprefix("cuda:")), arena)
