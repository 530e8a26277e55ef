"""Runs a call on a device: inputs from the arena, the op, and its outputs into the arena."""

from __future__ import annotations

import json
import math
import mmap
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from warpcall.errors import KernelFailed
from warpcall_kernels import Op, ops
from warpcall_service.lanes.messages import NoSuchDevice
from warpcall_service.worker.tensors import CODES, Place

MAX_VIEWS = 1024  # calls whose views are kept, by plan and slots
HOST_SHARE, DEVICE_SHARE = 0.5, 0.9  # of all memory, for tensors; the rest is for the programs


@dataclass(frozen=True, slots=True)
class OpCall:
    """A plan's message, decoded: one call of an op."""

    op: Op
    params: Mapping[str, Any]
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]

    @staticmethod
    def decode(message: bytes) -> OpCall:
        """Decode a `Plan.message`."""
        payload = json.loads(message)
        inputs = tuple(Place.of(*entry) for entry in payload["inputs"])
        outputs = tuple(Place.of(*entry) for entry in payload["outputs"])
        return OpCall(ops()[payload["op"]], params_of(payload["params"]), inputs, outputs)

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def is_empty(self) -> bool:
        """Whether all outputs are empty."""
        return not any(math.prod(output.shape) for output in self.outputs)

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the op, and check its outputs: their places were planned by its declaration.

        Raises:
            KernelFailed: the outputs have other names, shapes or dtypes than planned.
        """
        results = self.op.compute(tensors, self.params)
        if len(results) == len(self.outputs):
            for output in self.outputs:
                result = results.get(output.name)
                if result is None or result.shape != output.shape or result.dtype != output.dtype:
                    break
            else:
                return results
        planned = {o.name: (o.shape, o.dtype) for o in self.outputs}
        given = {name: (tuple(t.shape), t.dtype) for name, t in results.items()}
        raise KernelFailed(f"{self.op.name} declared {planned} and gave {given}")


def params_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters from JSON, where tuples have become lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in payload.items()}


Times = tuple[float, float, float]  # ms of h2d, kernel and d2h


class Runnable(Protocol):
    """Something that a device can run: an `OpCall` or a `Program`.

    Attributes:
        name: for messages.
        inputs, outputs: places of the tensors in the arena.
        is_empty: whether there is nothing to compute.
    """

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[Place, ...]: ...
    @property
    def outputs(self) -> tuple[Place, ...]: ...
    @property
    def is_empty(self) -> bool: ...

    def compute(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute the outputs by name. It may change `tensors`."""
        ...


@dataclass(frozen=True, slots=True)
class Views:
    """The tensors of a call as they lie in the arena.

    Attributes:
        work: whose inputs and outputs they are.
        inputs: with their elements in the order of memory, where strides say another order.
    """

    work: Runnable
    inputs: tuple[tuple[Place, Tensor], ...]
    outputs: tuple[tuple[str, Tensor], ...]


class ArenaViews:
    """Makes views of the arena for a GPU. Those of ops are kept: repeated calls get the same slots
    again and again, and a view takes 4 us."""

    def __init__(self, arena: mmap.mmap) -> None:
        self._arena = arena
        self._kept: dict[tuple[int, int, int], Views] = {}

    def of(self, work: Runnable, source: int, target: int) -> Views:
        """Views for a call whose input and output regions begin at these bytes."""
        key = id(work), source, target
        found = self._kept.get(key)
        if found is not None and found.work is work:
            return found
        inputs = [(i, i.flat(self._arena, source)) for i in work.inputs]
        views = Views(
            work,
            tuple((i, flat if i.strides else i.shaped(flat)) for i, flat in inputs),
            tuple((o.name, o.shaped(o.flat(self._arena, target))) for o in work.outputs),
        )
        if isinstance(work, OpCall):
            if len(self._kept) >= MAX_VIEWS:
                self._kept.clear()
            self._kept[key] = views
        return views


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
        self._views = ArenaViews(arena)
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
        tensors = {place.name: self._uploaded(place, view) for place, view in views.inputs}
        copied.record(stream)
        results = work.compute(tensors)
        computed.record(stream)
        for name, place in views.outputs:
            place.copy_(results[name], non_blocking=True)
        end.record(stream)
        return OnStream(events, self._free_events)

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
    """A call whose work is queued on a stream, between events that go back to `free` at its end."""

    events: Events
    free: list[Events]

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
