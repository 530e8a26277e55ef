"""Carries out launch plans on a GPU, by the driver.

The process that does this runs no code of the author for the host. Each call allocates its own memory,
with guard bands around each buffer, and queues the actions of the plan on the current stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import secrets
import statistics
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.op import driver_launch
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.driver_launch import Attribute, Config, error_text
from warpcall_kernels.verified.plan import (
    FLOATS,
    FORMATS,
    Action,
    Copy,
    Fill,
    Kernel,
    Launch,
    Place,
    Plan,
    View,
)

GUARD_BYTES = 4096  # on each side of a buffer; a multiple of the alignment that torch gives
PATTERN = 0xA5  # of guard bands, and of memory before a call that is checked
SLOT_BYTES = 8  # no argument is wider than a pointer
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_..., as cuda.h numbers them
NON_PORTABLE_CLUSTER = 14
SHARED_WITHOUT_CONSENT = 48 << 10  # bytes that a kernel may have without that attribute
PORTABLE_CLUSTER = 8  # blocks
CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_...
COOPERATIVE = 2
EARLY = driver_launch.PROGRAMMATIC_STREAM_SERIALIZATION
FEWEST_TRIALS, MOST_TRIALS, TRIALS_US = 5, 25, 2000  # of a choice
FLUSH_FACTOR = 2  # bytes written before a trial, as a multiple of the L2 cache
MOST_LOADS = 8  # of each module in one process
STICKY = frozenset((*range(700, 720), 999))  # errors after which a context cannot be used any more


class CannotLoad(Exception):
    """The driver cannot load a kernel, or not with its options."""


class OutOfBounds(Exception):
    """A kernel has written outside of the buffers of its call."""


class PlannedFunction:
    """The function of one case that a plan describes. Takes the inputs by name.

    Args:
        outputs: shapes and dtypes of its outputs.
    """

    def __init__(self, plan: Plan, outputs: Mapping[str, Meta]) -> None:
        self._plan = plan
        self._outputs = outputs
        self._functions: dict[int, _Function] = {}  # by the number of a kernel
        self._loads = 0
        self._old: list[_Function] = []  # graphs that were captured before may launch them
        self._checked: list[Tensor] | None = None  # the memory of calls that are checked
        self._kept: list[Tensor] | None = None  # the memory of calls that is kept
        self._steps: list[list[_Action]] = [[] for _ in plan.steps]
        self._chosen = [0 for _ in plan.steps]
        self.renew()

    def __call__(self, **inputs: Tensor) -> Any:
        memory = self._memory(inputs)
        bases = self._bases(memory, inputs)
        stream = torch.cuda.current_stream().cuda_stream
        for actions in self._steps:
            for action in actions:
                action.queue(bases, stream)
        outputs = tuple(
            memory[place.buffer].tensor(place.offset, meta)
            for place, meta in zip(self._plan.outputs, self._outputs.values(), strict=True)
        )
        return outputs if len(outputs) != 1 else outputs[0]

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """A context in which the memory of calls is filled before, and its guard bands are checked.

        Raises:
            OutOfBounds: a guard band is not as it was.
        """
        self._checked = []
        try:
            yield
            torch.cuda.synchronize()
            self._check_guards(self._checked)
        finally:
            self._checked = None

    @contextlib.contextmanager
    def keeping(self) -> Iterator[list[Tensor]]:
        """A context in which the memory of all calls is added to the list that it gives."""
        kept = self._kept = []
        try:
            yield kept
        finally:
            self._kept = None

    def choose(self, inputs: Mapping[str, Tensor]) -> None:
        """Find the fastest choice of each step, with the L2 cache overwritten before each trial.

        A choice that the driver refuses to launch is left out.

        Raises:
            CannotLoad: the driver refuses all choices of a step.
        """
        memory = self._memory(inputs)
        bases = self._bases(memory, inputs)
        flush = _flush_buffer()
        for number, step in enumerate(self._plan.steps):
            if len(step) > 1:
                self._choose(number, bases, flush)
            for action in self._steps[number]:  # what the next steps read
                action.queue(bases, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()

    @property
    def chosen(self) -> list[str]:
        """The labels of the choices that are taken, of the steps that have several."""
        pairs = zip(self._plan.steps, self._chosen, strict=True)
        return [step[number].label for step, number in pairs if len(step) > 1]

    def renew(self) -> None:
        """Load the modules of the chosen kernels anew, at most MOST_LOADS times."""
        if self._loads == MOST_LOADS:
            return
        self._loads += 1
        self._old += self._functions.values()
        self._functions.clear()
        for number in range(len(self._plan.steps)):
            self._prepare(number, self._chosen[number])

    def _choose(self, number: int, bases: Sequence[_Base], flush: Tensor) -> None:
        times_us: dict[int, float] = {}
        refused: CannotLoad | None = None
        for choice in range(len(self._plan.steps[number])):
            try:
                self._prepare(number, choice)
                times_us[choice] = _time_us(self._steps[number], bases, flush)
            except CannotLoad as error:
                refused = error
        if not times_us:
            assert refused is not None
            raise refused
        self._chosen[number] = min(times_us, key=lambda choice: times_us[choice])
        self._prepare(number, self._chosen[number])

    def _prepare(self, number: int, choice: int) -> None:
        self._steps[number] = [
            self._action(one) for one in self._plan.steps[number][choice].actions
        ]
        first = not any(isinstance(a, _Launched) for step in self._steps[:number] for a in step)
        if first:  # it would not wait for the call before
            for action in self._steps[number]:
                if isinstance(action, _Launched):
                    action.wait()
                    break

    def _action(self, action: Action) -> _Action:
        if isinstance(action, Fill):
            return _Filled(action)
        if isinstance(action, Copy):
            return _Copied(action)
        function = self._functions.get(action.kernel)
        if function is None:
            function = _Function(self._plan.kernels[action.kernel])
            self._functions[action.kernel] = function
        return _Launched(action, function)

    def _memory(self, inputs: Mapping[str, Tensor]) -> dict[int, _Memory]:
        device = torch.device("cuda", torch.cuda.current_device())
        made = {
            number: _Memory(buffer.nbytes, device)
            for number, buffer in enumerate(self._plan.buffers)
            if not buffer.input
        }
        if self._kept is not None:
            self._kept += [one.bytes for one in made.values()]
        if self._checked is not None:
            for one in made.values():
                one.bytes.fill_(PATTERN)
                self._checked.append(one.bytes)
        return made

    def _bases(self, memory: Mapping[int, _Memory], inputs: Mapping[str, Tensor]) -> list[_Base]:
        return [
            _Base.of_input(inputs[buffer.input]) if buffer.input else memory[number].base
            for number, buffer in enumerate(self._plan.buffers)
        ]

    def _check_guards(self, memory: Sequence[Tensor]) -> None:
        names = {
            place.buffer: name
            for place, name in zip(self._plan.outputs, self._outputs, strict=True)
        }
        numbers = [n for n, buffer in enumerate(self._plan.buffers) if not buffer.input]
        for at, one in enumerate(memory):
            for side, guard in (("before", one[:GUARD_BYTES]), ("behind", one[-GUARD_BYTES:])):
                changed = int((guard != PATTERN).sum())
                if changed:
                    number = numbers[at % len(numbers)]
                    what = names.get(number, f"its scratch memory {number}")
                    raise OutOfBounds(f"a kernel has written {changed} bytes {side} {what}")


def overwriting(
    fill: Callable[[int, int], None], memory: list[Tensor]
) -> Callable[[int, int], None]:
    """A function that fills a set of inputs, and for the first set all memory of calls before.

    The calls of a graph have the same memory at each replay, and often the same inputs. A kernel could
    find there what it has left, and skip what it need not do again. Nor may it know what it finds, of
    which a part could be right.
    """

    def filling(number: int, place: int) -> None:
        if number == 0 and memory:
            torch._foreach_zero_(memory)
            if secrets.randbelow(2):
                torch._foreach_add_(memory, PATTERN)
        fill(number, place)

    return filling


class _Base:
    """Where a buffer begins.

    Attributes:
        address: of its first byte.
        offset: of that byte in the storage.
    """

    __slots__ = ("address", "offset", "storage")

    def __init__(self, address: int, storage: Any, offset: int) -> None:
        self.address = address
        self.storage = storage
        self.offset = offset

    @classmethod
    def of_input(cls, t: Tensor) -> _Base:
        return cls(t.data_ptr(), t.untyped_storage(), int(t.storage_offset()) * t.element_size())

    def tensor(self, view: View) -> Tensor:
        """A tensor in the buffer."""
        made = torch.empty(0, dtype=view.dtype, device="cuda")
        begin = self.offset + view.place.offset
        return made.set_(self.storage, begin // view.dtype.itemsize, view.shape, view.strides)


class _Memory:
    """Memory of one call, between two guard bands."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.bytes = torch.empty(nbytes + 2 * GUARD_BYTES, dtype=torch.uint8, device=device)
        address = self.bytes.data_ptr() + GUARD_BYTES
        self.base = _Base(address, self.bytes.untyped_storage(), GUARD_BYTES)

    def tensor(self, offset: int, meta: Meta) -> Tensor:
        """A contiguous tensor in it."""
        begin = GUARD_BYTES + offset
        flat = self.bytes[begin : begin + meta.nbytes].view(meta.dtype)
        return flat.view(meta.shape)


class _Function:
    """A kernel in a loaded module."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        driver = driver_launch.driver()
        self._module = ctypes.c_void_p()
        self.handle = ctypes.c_void_p()
        torch.cuda.current_stream()  # the context must be the current one
        self._must(driver.cuModuleLoadData(ctypes.byref(self._module), kernel.cubin))
        found = driver.cuModuleGetFunction(
            ctypes.byref(self.handle), self._module, kernel.name.encode()
        )
        self._must(found)
        if kernel.shared_bytes > SHARED_WITHOUT_CONSENT:
            self._set(MAX_DYNAMIC_SHARED, kernel.shared_bytes)
        if kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2] > PORTABLE_CLUSTER:
            self._set(NON_PORTABLE_CLUSTER, 1)

    def __del__(self) -> None:
        if self._module:
            driver_launch.driver().cuModuleUnload(self._module)

    def _set(self, attribute: int, value: int) -> None:
        self._must(driver_launch.driver().cuFuncSetAttribute(self.handle, attribute, value))

    def _must(self, error: int) -> None:
        if error:
            raise _failure(error, f"the kernel {self.kernel.name} cannot be loaded")


class _Action:
    """What is queued on a stream in each call."""

    def queue(self, bases: Sequence[_Base], stream: int) -> None:
        raise NotImplementedError


class _Launched(_Action):
    def __init__(self, launch: Launch, function: _Function) -> None:
        kernel = function.kernel
        count = len(kernel.parameters)
        self._function = function
        self._slots = (ctypes.c_uint64 * max(1, count))()
        self._places: list[tuple[int, Place]] = []
        for number, (kind, value) in enumerate(
            zip(kernel.parameters, launch.arguments, strict=True)
        ):
            if isinstance(value, Place):
                self._places.append((number, value))
            elif value is not None:
                _pack(kind, value, self._slots, number)
        first = ctypes.addressof(self._slots)
        self._params = (ctypes.c_void_p * max(1, count))(
            *(first + SLOT_BYTES * number for number in range(count))
        )
        given: list[tuple[int, tuple[int, ...]]] = [(EARLY, (1,))] if launch.early else []
        if launch.cooperative:
            given.append((COOPERATIVE, (1,)))
        if kernel.cluster != (1, 1, 1):
            given.append((CLUSTER_DIMENSION, kernel.cluster))
        self._attributes = (Attribute * max(1, len(given)))(
            *(Attribute(number, 0, value) for number, value in given)
        )
        self._config = Config(
            launch.grid,
            kernel.threads,
            kernel.shared_bytes,
            None,
            ctypes.addressof(self._attributes),
            len(given),
        )
        self._is_early = launch.early
        self._is_empty = not all(launch.grid)
        self._arguments = (
            ctypes.addressof(self._config),
            function.handle.value,
            ctypes.addressof(self._params),
            None,
        )

    def wait(self) -> None:
        """Begin only when all that was queued before has ended."""
        if self._is_early:  # it is the first attribute
            kept = self._config.attribute_count - 1
            ctypes.memmove(
                ctypes.addressof(self._attributes),
                ctypes.addressof(self._attributes) + ctypes.sizeof(Attribute),
                kept * ctypes.sizeof(Attribute),
            )
            self._config.attribute_count = kept
            self._is_early = False

    def queue(self, bases: Sequence[_Base], stream: int) -> None:
        if self._is_empty:
            return
        slots = self._slots
        for number, place in self._places:
            slots[number] = bases[place.buffer].address + place.offset
        self._config.stream = stream
        error = driver_launch.driver().cuLaunchKernelEx(*self._arguments)
        if error:
            name = self._function.kernel.name
            raise _failure(error, f"the kernel {name} cannot be launched")


class _Filled(_Action):
    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._set = getattr(driver_launch.driver(), f"cuMemsetD{8 * fill.nbytes}Async")

    def queue(self, bases: Sequence[_Base], stream: int) -> None:
        fill = self._fill
        if not fill.count:
            return
        address = bases[fill.place.buffer].address + fill.place.offset
        error = self._set(
            ctypes.c_uint64(address),
            ctypes.c_uint(fill.value),
            ctypes.c_size_t(fill.count),
            ctypes.c_void_p(stream),
        )
        if error:
            raise _failure(error, "memory cannot be filled")


class _Copied(_Action):
    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def queue(self, bases: Sequence[_Base], stream: int) -> None:
        source, target = self._copy.source, self._copy.target
        to = bases[target.place.buffer].tensor(target)
        to.copy_(bases[source.place.buffer].tensor(source))


def _pack(kind: str, value: float, slots: Any, number: int) -> None:
    """Write an argument as the kernel reads it."""
    if kind in FLOATS:
        kinds = {"fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
        data = torch.tensor([value], dtype=torch.float64).to(kinds[kind]).view(torch.uint8)
        ctypes.memmove(ctypes.addressof(slots) + SLOT_BYTES * number, data.data_ptr(), len(data))
    else:
        struct.pack_into(FORMATS[kind], slots, SLOT_BYTES * number, value)


Event: Any = torch.cuda.Event  # which has no types


def _time_us(actions: Sequence[_Action], bases: Sequence[_Base], flush: Tensor) -> float:
    """The median time of some actions in us."""
    stream = torch.cuda.current_stream().cuda_stream

    def once() -> float:
        begin, end = (Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        begin.record()
        for action in actions:
            action.queue(bases, stream)
        end.record()
        end.synchronize()
        return 1000 * float(begin.elapsed_time(end))

    once()
    rough_us = once()
    trials = min(MOST_TRIALS, max(FEWEST_TRIALS, int(TRIALS_US / max(rough_us, 1))))
    return statistics.median(once() for _ in range(trials))


def _flush_buffer() -> Tensor:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return torch.empty(FLUSH_FACTOR * properties.L2_cache_size, dtype=torch.uint8, device="cuda")


def _failure(error: int, what: str) -> Exception:
    """An exception for an error of the driver."""
    if error in STICKY:
        return RuntimeError(f"CUDA error: {error_text(error)}")
    return CannotLoad(f"{what}: {error_text(error)}")
