"""A launch plan: all that a verified implementation does on the GPU in one call of one case.

A plan names buffers and lists steps: launches of compiled kernels, fills and copies. It has no code
for the host. It comes from a process that ran code of users, so `Plan.from_json` checks every member:
whatever a plan says, carrying it out launches the kernels on the buffers of its own call.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from warpcall_kernels.op import driver_launch
from warpcall_kernels.op.declaration import dtype_name

MOST_STEPS = 32
MOST_LAUNCHES = 8  # in sequence
MOST_CHOICES = 64  # configurations of one step
MOST_KERNELS = 64
MOST_BUFFERS = 32
MOST_ARGUMENTS = 128
MOST_CHARS = 200  # of a name or a label
MOST_CUBIN_BYTES = 1 << 20
MOST_CUBINS_BYTES = 16 << 20  # of all kernels of a plan together
MOST_BYTES = 1 << 42  # of a buffer
MOST_DIMS = 32
MOST_THREADS = 1024  # of a block
MOST_SHARED_BYTES = 256 << 10
MOST_CLUSTER = 16  # blocks
MOST_GRID = ((1 << 31) - 1, 65535, 65535)
POINTER = "*"
# Types of the parameters of a kernel, and how `struct` packs each.
FORMATS: Mapping[str, str] = {POINTER: "Q", **driver_launch.FORMATS, "fp16": "e"}
FLOATS = ("fp16", "fp32", "fp64")
FILL_BYTES = (1, 2, 4)  # of the value of a fill
Triple = tuple[int, int, int]


class InvalidPlan(Exception):
    """A plan that no recorder of ours makes, or one beyond the limits. The text names the member."""


@dataclass(frozen=True)
class Place:
    """A byte of a buffer: `offset` counts from the buffer's begin, of an input from its first element."""

    buffer: int
    offset: int


Argument = Place | int | float | None  # None is a null pointer


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel.

    Attributes:
        name: its symbol in the cubin.
        parameters: the type of each parameter, one of FORMATS.
        threads: of a block, along three axes.
        shared_bytes: dynamic shared memory of a block.
        cluster: blocks of a cluster along three axes; (1, 1, 1) without clusters.
    """

    name: str
    cubin: bytes
    parameters: tuple[str, ...]
    threads: Triple
    shared_bytes: int = 0
    cluster: Triple = (1, 1, 1)


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: its number in the plan.
        grid: blocks along three axes.
        early: whether it may begin before the launch before it has ended (programmatic dependent
            launch). The first launch of a call never does.
        cooperative: whether all its blocks must be resident at the same time.
    """

    kernel: int
    grid: Triple
    arguments: tuple[Argument, ...]
    early: bool = False
    cooperative: bool = False


@dataclass(frozen=True)
class Fill:
    """Fill `count` elements of `nbytes` bytes with the bit pattern `value`."""

    place: Place
    count: int
    nbytes: int
    value: int


@dataclass(frozen=True)
class View:
    """A tensor in a buffer. Strides are in elements."""

    place: Place
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Copy:
    """Copy a tensor to another one of the same shape, and convert its dtype as torch does."""

    source: View
    target: View


Action = Launch | Fill | Copy


@dataclass(frozen=True)
class Choice:
    """One way to do a step, such as a configuration of an autotuner.

    Attributes:
        label: of the configuration, for reports; empty if there is only one.
        actions: in order: one launch, and what must be filled or copied before it.
    """

    label: str
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Buffer:
    """Memory of a call: an input by its name, or memory that is allocated for each call.

    Attributes:
        input: the name of the input; empty for allocated memory.
        nbytes: from the first to the last byte; of an input as its layout says.
    """

    input: str
    nbytes: int


@dataclass(frozen=True)
class Plan:
    """All that one call does.

    Attributes:
        gpu: architecture that the kernels are compiled for, such as "sm_90".
        steps: in order. The fastest choice of each is found before anything is timed.
        outputs: contiguous, where each begins; None for an optional output that there is not.
    """

    gpu: str
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[tuple[Choice, ...], ...]
    outputs: tuple[Place, ...]

    @property
    def allocated_bytes(self) -> int:
        """Bytes that are allocated for each call: outputs and scratch memory."""
        return sum(buffer.nbytes for buffer in self.buffers if not buffer.input)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data for json.dumps."""
        return {
            "gpu": self.gpu,
            "kernels": [_kernel_to_json(kernel) for kernel in self.kernels],
            "buffers": [[buffer.input, buffer.nbytes] for buffer in self.buffers],
            "steps": [
                [
                    {"label": choice.label, "actions": [_action_to_json(a) for a in choice.actions]}
                    for choice in step
                ]
                for step in self.steps
            ],
            "outputs": [[place.buffer, place.offset] for place in self.outputs],
        }

    @classmethod
    def from_json(cls, data: Any, inputs: Mapping[str, int], output_bytes: Sequence[int]) -> Plan:
        """The plan of the data that `to_json` returned, checked as a stranger's.

        Args:
            inputs: bytes of each input of the case, from its first to its last element.
            output_bytes: of each output of the case.

        Raises:
            InvalidPlan: it is no plan for such a case, or one beyond the limits.
        """
        return _Reader(inputs, output_bytes).plan(data)


def _kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "cubin": base64.b64encode(zlib.compress(kernel.cubin, 1)).decode(),
        "parameters": [*kernel.parameters],
        "threads": [*kernel.threads],
        "shared_bytes": kernel.shared_bytes,
        "cluster": [*kernel.cluster],
    }


def _action_to_json(action: Action) -> dict[str, Any]:
    if isinstance(action, Launch):
        return {
            "launch": action.kernel,
            "grid": [*action.grid],
            "arguments": [
                [a.buffer, a.offset] if isinstance(a, Place) else a for a in action.arguments
            ],
            "early": action.early,
            "cooperative": action.cooperative,
        }
    if isinstance(action, Fill):
        place = [action.place.buffer, action.place.offset]
        return {
            "fill": place,
            "count": action.count,
            "nbytes": action.nbytes,
            "value": action.value,
        }
    return {"copy": _view_to_json(action.source), "to": _view_to_json(action.target)}


def _view_to_json(view: View) -> dict[str, Any]:
    return {
        "place": [view.place.buffer, view.place.offset],
        "dtype": dtype_name(view.dtype),
        "shape": [*view.shape],
        "strides": [*view.strides],
    }


_DTYPES = {
    dtype_name(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}
T = TypeVar("T")


class _Reader:
    """Reads a plan, member by member."""

    def __init__(self, inputs: Mapping[str, int], output_bytes: Sequence[int]) -> None:
        self._inputs = inputs
        self._output_bytes = output_bytes
        self._kernels: tuple[Kernel, ...] = ()
        self._buffers: tuple[Buffer, ...] = ()

    def plan(self, data: Any) -> Plan:
        gpu = _text(_member(data, "gpu"), "gpu")
        self._kernels = tuple(
            self._kernel(one) for one in _list(_member(data, "kernels"), MOST_KERNELS, "kernels")
        )
        if sum(len(kernel.cubin) for kernel in self._kernels) > MOST_CUBINS_BYTES:
            raise InvalidPlan(f"its kernels have more than {MOST_CUBINS_BYTES} bytes together")
        buffers = _list(_member(data, "buffers"), MOST_BUFFERS, "buffers")
        self._buffers = tuple(self._buffer(one) for one in buffers)
        steps = tuple(
            tuple(self._choice(one) for one in _list(step, MOST_CHOICES, "choices"))
            for step in _list(_member(data, "steps"), MOST_STEPS, "steps")
        )
        if not all(steps):
            raise InvalidPlan("a step has no choice")
        launches = sum(
            max(sum(isinstance(a, Launch) for a in choice.actions) for choice in step)
            for step in steps
        )
        if launches > MOST_LAUNCHES:
            raise InvalidPlan(
                f"it launches {launches} kernels in sequence, at most {MOST_LAUNCHES}"
            )
        outputs = _list(_member(data, "outputs"), len(self._output_bytes), "outputs")
        if len(outputs) != len(self._output_bytes):
            raise InvalidPlan(f"it has {len(outputs)} of {len(self._output_bytes)} outputs")
        places = tuple(
            self._place(one, nbytes)
            for one, nbytes in zip(outputs, self._output_bytes, strict=True)
        )
        if any(self._buffers[place.buffer].input for place in places):
            raise InvalidPlan("an output lies in an input")
        return Plan(gpu, self._kernels, self._buffers, steps, places)

    def _kernel(self, data: Any) -> Kernel:
        parameters = _list(_member(data, "parameters"), MOST_ARGUMENTS, "parameters")
        if not all(isinstance(one, str) and one in FORMATS for one in parameters):
            raise InvalidPlan("a parameter of a kernel has an unknown type")
        threads = _triple(_member(data, "threads"), (MOST_THREADS,) * 3, "threads")
        cluster = _triple(_member(data, "cluster"), (MOST_CLUSTER,) * 3, "cluster")
        if math.prod(threads) > MOST_THREADS or math.prod(cluster) > MOST_CLUSTER:
            raise InvalidPlan("a block has too many threads, or a cluster too many blocks")
        return Kernel(
            _text(_member(data, "name"), "name"),
            _cubin(_member(data, "cubin")),
            tuple(parameters),
            threads,
            _count(_member(data, "shared_bytes"), MOST_SHARED_BYTES, "shared_bytes"),
            cluster,
        )

    def _buffer(self, data: Any) -> Buffer:
        pair = _list(data, 2, "a buffer")
        if len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidPlan("a buffer has other members than a name and a size")
        if pair[0]:
            if pair[0] not in self._inputs:
                raise InvalidPlan("a buffer is an input that the case has not")
            return Buffer(pair[0], self._inputs[pair[0]])
        return Buffer("", _count(pair[1], MOST_BYTES, "the size of a buffer"))

    def _choice(self, data: Any) -> Choice:
        actions = _list(_member(data, "actions"), MOST_STEPS, "actions")
        label = _member(data, "label")
        if not isinstance(label, str) or len(label) > MOST_CHARS:
            raise InvalidPlan("a label is no short text")
        return Choice(label, tuple(self._action(one) for one in actions))

    def _action(self, data: Any) -> Action:
        if isinstance(data, dict) and "launch" in data:
            return self._launch(data)
        if isinstance(data, dict) and "fill" in data:
            count = _count(_member(data, "count"), MOST_BYTES, "count")
            nbytes = _member(data, "nbytes")
            if nbytes not in FILL_BYTES or type(nbytes) is not int:
                raise InvalidPlan("a fill has elements of another size")
            value = _count(_member(data, "value"), (1 << 8 * nbytes) - 1, "value")
            place = self._place(data["fill"], count * nbytes)
            self._check_written(place)
            if place.offset % nbytes:
                raise InvalidPlan("a fill begins within an element")
            return Fill(place, count, nbytes, value)
        source, target = self._view(_member(data, "copy")), self._view(_member(data, "to"))
        self._check_written(target.place)
        if source.shape != target.shape:
            raise InvalidPlan("a copy has two shapes")
        return Copy(source, target)

    def _launch(self, data: Mapping[str, Any]) -> Launch:
        number = _count(data["launch"], len(self._kernels) - 1, "the number of a kernel")
        kernel = self._kernels[number]
        given = _list(_member(data, "arguments"), MOST_ARGUMENTS, "arguments")
        if len(given) != len(kernel.parameters):
            raise InvalidPlan(
                f"{kernel.name} gets {len(given)} of {len(kernel.parameters)} arguments"
            )
        arguments = tuple(
            self._argument(kind, value)
            for kind, value in zip(kernel.parameters, given, strict=True)
        )
        early, cooperative = _member(data, "early"), _member(data, "cooperative")
        if type(early) is not bool or type(cooperative) is not bool:
            raise InvalidPlan("a launch has an attribute that is neither true nor false")
        grid = _triple(_member(data, "grid"), MOST_GRID, "grid", least=0)
        return Launch(number, grid, arguments, early, cooperative)

    def _argument(self, kind: str, value: Any) -> Argument:
        if kind == POINTER:
            return None if value is None else self._place(value, 0)
        if kind in FLOATS:
            if type(value) not in (int, float):
                raise InvalidPlan("an argument is no number")
            try:
                return float(value)
            except OverflowError:
                raise InvalidPlan("an argument is beyond the largest number") from None
        bits = int(kind[1:])
        low, high = (
            (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
        )
        if kind == "i1":
            low, high = 0, 1
        if type(value) is not int or not low <= value <= high:
            raise InvalidPlan(f"an argument is no number of the type {kind}")
        return value

    def _place(self, data: Any, nbytes: int) -> Place:
        """A place from which so many bytes lie in its buffer."""
        pair = _list(data, 2, "a place")
        if len(pair) != 2:
            raise InvalidPlan("a place is no pair of numbers")
        buffer = _count(pair[0], len(self._buffers) - 1, "the number of a buffer")
        offset = _count(pair[1], self._buffers[buffer].nbytes, "an offset")
        if offset + nbytes > self._buffers[buffer].nbytes:
            raise InvalidPlan("a tensor does not lie in its buffer")
        return Place(buffer, offset)

    def _view(self, data: Any) -> View:
        name = _member(data, "dtype")
        if not isinstance(name, str) or name not in _DTYPES:
            raise InvalidPlan("a copy has an unknown dtype")
        dtype = _DTYPES[name]
        shape = [
            _count(n, MOST_BYTES, "shape")
            for n in _list(_member(data, "shape"), MOST_DIMS, "shape")
        ]
        strides = [
            _count(n, MOST_BYTES, "strides")
            for n in _list(_member(data, "strides"), MOST_DIMS, "strides")
        ]
        if len(shape) != len(strides):
            raise InvalidPlan("a copy has other strides than dims")
        reached = 0
        if all(shape):
            reached = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        place = self._place(_member(data, "place"), reached * dtype.itemsize)
        return View(place, dtype, tuple(shape), tuple(strides))

    def _check_written(self, place: Place) -> None:
        if self._buffers[place.buffer].input:
            raise InvalidPlan("a fill or a copy writes to an input")


def _member(data: Any, name: str) -> Any:
    if not isinstance(data, dict) or name not in data:
        raise InvalidPlan(f"{name} is missing")
    return data[name]


def _list(data: Any, most: int, what: str) -> list[Any]:
    if not isinstance(data, list) or len(data) > most:
        raise InvalidPlan(f"{what}: there may be at most {most}")
    return data


def _count(value: Any, most: int, what: str) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidPlan(f"{what} must be a number from 0 to {most}")
    return value


def _triple(data: Any, most: Sequence[int], what: str, least: int = 1) -> Triple:
    numbers = [_count(n, m, what) for n, m in zip(_list(data, 3, what), most, strict=False)]
    if len(numbers) != 3 or min(numbers) < least:
        raise InvalidPlan(f"{what} must have three numbers, each at least {least}")
    return numbers[0], numbers[1], numbers[2]


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MOST_CHARS or not value.isascii():
        raise InvalidPlan(f"{what} must be an ASCII text of at most {MOST_CHARS} characters")
    return value


def _cubin(value: Any) -> bytes:
    if not isinstance(value, str) or len(value) > 2 * MOST_CUBIN_BYTES:
        raise InvalidPlan(f"a cubin has more than {MOST_CUBIN_BYTES} bytes")
    try:
        inflate = zlib.decompressobj()
        cubin = inflate.decompress(base64.b64decode(value, validate=True), MOST_CUBIN_BYTES)
    except (binascii.Error, zlib.error, ValueError):
        raise InvalidPlan("a cubin is no compressed base64") from None
    if not inflate.eof:
        raise InvalidPlan(f"a cubin has more than {MOST_CUBIN_BYTES} bytes")
    return cubin
