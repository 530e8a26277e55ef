"""Runs a call on a device: inputs from the arena, the op, and its outputs into the arena."""

from __future__ import annotations

import json
import math
import mmap
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from warpcall import dtypes
from warpcall.errors import KernelFailed
from warpcall_kernels import Op, ops
from warpcall_service.lanes.messages import NoSuchDevice

# By wire code; torch has the names that numpy and ml_dtypes have.
DTYPES: dict[str, torch.dtype] = {dtype.code: getattr(torch, dtype.name) for dtype in dtypes.DTYPES}
HOST_SHARE, DEVICE_SHARE = 0.5, 0.9  # of all memory, for tensors; the rest is for the programs
CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor in a region of the arena; `strides` in elements, None for C order."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] | None = None

    @staticmethod
    def of(
        name: str,
        code: str,
        shape: Sequence[int],
        offset: int = 0,
        strides: Sequence[int] | None = None,
    ) -> Place:
        """Decode an entry of a message."""
        return Place(name, DTYPES[code], tuple(shape), offset, tuple(strides) if strides else None)

    def flat(self, arena: mmap.mmap, region: int) -> Tensor:
        """The elements in the order of memory; the region begins at byte `region` of the arena."""
        count = math.prod(self.shape)
        if not count:  # frombuffer refuses to make an empty tensor
            return torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(arena, dtype=self.dtype, count=count, offset=region + self.offset)

    def shaped(self, flat: Tensor) -> Tensor:
        """View these elements as the tensor."""
        if self.strides is None:
            return flat.view(self.shape)
        return flat.as_strided(self.shape, self.strides)


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
        planned = {o.name: (o.shape, o.dtype) for o in self.outputs}
        given = {name: (tuple(t.shape), t.dtype) for name, t in results.items()}
        if given != planned:
            raise KernelFailed(f"{self.op.name} declared {planned} and gave {given}")
        return results


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


class Device(Protocol):
    """A device that runs calls.

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

    def run(self, work: Runnable, source: int, target: int) -> Times:
        """Run `work`, whose input and output regions begin at these bytes of the arena."""
        ...

    def is_broken(self) -> bool:
        """Whether the device cannot run any more calls, after one that raised an exception."""
        ...


class Cpu:
    """The CPU with the torch references, for machines without a GPU."""

    name = "cpu"
    label = "cpu (torch reference)"

    def __init__(self, arena: mmap.mmap, threads: int) -> None:
        self.all = [self.name]
        self.memory_nbytes = int(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * HOST_SHARE
        )
        self._arena = arena
        torch.set_num_threads(threads or len(os.sched_getaffinity(0)))

    def run(self, work: Runnable, source: int, target: int) -> Times:
        """As `Device.run`, without transfers.

        A reference may return a view, as permute does, so writing the result counts as kernel time.
        """
        if work.is_empty:
            # The launchers do the same; a reference could allocate for a dimension of 2^40.
            return 0.0, 0.0, 0.0
        began = time.perf_counter()
        tensors = {i.name: i.shaped(i.flat(self._arena, source)) for i in work.inputs}
        results = work.compute(tensors)
        for output in work.outputs:
            place = output.shaped(output.flat(self._arena, target))
            # Without dims of size 1, of which torch copies some tensors several times as slowly.
            place.squeeze().copy_(results[output.name].squeeze())
        return 0.0, (time.perf_counter() - began) * 1e3, 0.0

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
        self._arena = arena
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
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]  # type: ignore[no-untyped-call]  # nor here

    def run(self, work: Runnable, source: int, target: int) -> Times:
        """As `Device.run`."""
        try:
            return self._run(work, source, target)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # memory that the caching allocator keeps from earlier calls
        try:
            return self._run(work, source, target)
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

    def _run(self, work: Runnable, source: int, target: int) -> Times:
        begin, copied, computed, end = self._events
        begin.record()
        tensors = {
            i.name: i.shaped(i.flat(self._arena, source).to(self._device, non_blocking=True))
            for i in work.inputs
        }
        copied.record()
        results = work.compute(tensors)
        computed.record()
        for output in work.outputs:
            place = output.shaped(output.flat(self._arena, target))
            place.copy_(results[output.name], non_blocking=True)
        end.record()
        end.synchronize()
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
