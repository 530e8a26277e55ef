"""Traces what a host function does with tensors: what it allocates, fills and copies.

Tensors have no values here. Whatever would compute with torch, or read a value, is refused with the
line of the author's source.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

from warpcall_kernels.compile.pretended import OnCpu
from warpcall_kernels.verified.memory import spanned_bytes, untouched
from warpcall_kernels.verified.plan import (
    FILL_BYTES,
    MOST_BYTES,
    MOST_CHARS,
    MOST_CHOICES,
    MOST_LAUNCHES,
    MOST_STEPS,
    Action,
    Buffer,
    Choice,
    Copy,
    Fill,
    Launch,
    Place,
    View,
)

ALLOCATES = {
    *("empty", "empty_strided", "empty_permuted", "empty_like"),
    *("new_empty", "new_empty_strided"),
}
# The value with which these fill what they allocate; None means that it is an argument.
FILLS = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
    **dict.fromkeys(("full", "full_like", "new_full"), None),
}
READS = {"_local_scalar_dense", "item", "equal", "is_nonzero"}
READING_METHODS = {
    getattr(Tensor, name)
    for name in (
        *("tolist", "numpy", "item", "cpu", "__array__", "__bool__", "__int__", "__float__"),
        *("__index__", "__complex__", "__repr__", "__format__", "__contains__"),
    )
}
# What a tensor is that is in no buffer of the plan.
OUTSIDE = (
    "a tensor of the CPU, one with values of the host, or one from outside of the call{line}: "
    "allocate it in the call with device=x.device, and fill it there"
)
ALLOWED = "only launches of kernels, allocations, fills and copies can be verified"


class NotVerifiable(Exception):
    """What a function does cannot be a launch plan. The text says what, and what to change."""


@dataclass
class _Region:
    """Memory of one buffer of the plan."""

    begin: int
    buffer: Buffer
    kept: Tensor  # as long as the trace lives, no other tensor gets these addresses


@dataclass(frozen=True)
class NotedLaunch:
    """A launch as the author's source has it: what a declaration of it needs.

    Attributes:
        kernel: the name of the `triton.jit` function.
        name: under which its module has it, perhaps with an autotuner and heuristics.
        own: whether that module is the author's source.
        grid: programs along three axes.
        arguments: by name, in the kernel's order: places of tensors, numbers, None, and constants.
        constants: names of the arguments that are constants by their annotation.
        computed: names of the arguments that heuristics compute.
        defaults: values of arguments that a launch may leave out.
        options: of the compiler, such as num_warps.
        configuration: the autotuner's choice that it belongs to; None without one.
    """

    kernel: str
    name: str
    own: bool
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any]
    constants: frozenset[str]
    computed: frozenset[str]
    defaults: Mapping[str, Any]
    options: Mapping[str, int]
    configuration: Mapping[str, Any] | None


@dataclass
class _Choices:
    """The choices of one step so far.

    Attributes:
        before: what each of them begins with.
    """

    before: tuple[Action, ...]
    done: list[Choice] = field(default_factory=list)
    launched: list[NotedLaunch] = field(default_factory=list)


@dataclass
class Trace:
    """What a function has done so far.

    Args:
        file: of the author's source, whose lines messages name.
    """

    file: str
    regions: list[_Region] = field(default_factory=list)
    steps: list[tuple[Choice, ...]] = field(default_factory=list)
    notes: list[list[NotedLaunch]] = field(default_factory=list)  # of each step, by choice
    refused: NotVerifiable | None = None
    _pending: list[Action] = field(default_factory=list)  # since the last step or choice
    _launched: list[NotedLaunch] = field(default_factory=list)  # the same for launches
    _choices: _Choices | None = None  # within an autotuner

    def add_input(self, name: str, tensor: Tensor) -> None:
        """Make an input a buffer of the plan."""
        nbytes = spanned_bytes(tensor.dtype, tensor.shape, tensor.stride())
        self.regions.append(_Region(_address(tensor), Buffer(name, nbytes), tensor))

    def allocate(self, like: Tensor) -> Tensor:
        """A new buffer with the shape, the strides and the dtype of a tensor on the device "meta"."""
        nbytes = spanned_bytes(like.dtype, like.shape, like.stride())
        if nbytes > MOST_BYTES:
            raise self.refusal(f"it allocates {nbytes} bytes{{line}}, at most {MOST_BYTES} at once")
        try:
            made = untouched(like.dtype, like.shape, like.stride())
        except (OSError, OverflowError) as error:
            raise self.refusal(f"it allocates {nbytes} bytes{{line}}: {error}") from None
        begin = made.untyped_storage().data_ptr()
        self.regions.append(_Region(begin, Buffer("", nbytes), made))
        return made

    def place(self, address: int) -> Place | None:
        """Where an address lies; None if in no buffer."""
        for number, region in enumerate(self.regions):
            if region.begin <= address <= region.begin + max(region.buffer.nbytes - 1, 0):
                return Place(number, address - region.begin)
        return None

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where the first element of a tensor lies, which may be one without elements."""
        return self.place(_address(tensor))

    def is_ours(self, tensor: Tensor) -> bool:
        """Whether a tensor is an input, or was allocated in this call."""
        address = tensor.untyped_storage().data_ptr()
        storages = (region.kept.untyped_storage().data_ptr() for region in self.regions)
        return address in storages

    def refusal(self, text: str) -> NotVerifiable:
        """A refusal whose text may have the word {line}: ", line 12" if that is known."""
        line = self.line()
        where = "" if line is None else f" (line {line})"
        error = NotVerifiable(text.replace("{line}", where))
        self.refused = self.refused or error
        return error

    def line(self) -> int | None:
        """The line of the author's source that runs now."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                return frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def add(self, action: Action) -> None:
        """Add a fill or a copy. It belongs to the launch that follows."""
        if len(self._pending) == MOST_STEPS - 1:
            self._end_step()
        self._pending.append(action)

    def add_launch(self, launch: Launch, note: NotedLaunch) -> None:
        """Add a launch."""
        self._pending.append(launch)
        self._launched.append(note)
        if self._choices is None:
            self._end_step()

    def begin_choices(self) -> None:
        """Begin a step with several choices. What was filled or copied before belongs to each."""
        if self._choices is not None:
            raise self.refusal("an autotuner runs within another one{line}")
        self._choices = _Choices(tuple(self._pending))

    def add_choice(self, label: str) -> None:
        """End a choice: what was added since the last one."""
        assert self._choices is not None
        self._choices.done.append(Choice(label[:MOST_CHARS], tuple(self._pending)))
        self._choices.launched += self._launched[:1]
        if len(self._choices.done) > MOST_CHOICES:
            raise self.refusal(
                f"an autotuner has more than {MOST_CHOICES} configurations{{line}}: leave some out, "
                "or prune them by prune_configs_by"
            )
        self.drop_choice()

    def drop_choice(self) -> None:
        """Forget what was added since the last choice."""
        assert self._choices is not None
        self._pending, self._launched = [*self._choices.before], []

    def end_choices(self) -> None:
        """End the step with all choices that were added."""
        choices, self._choices = self._choices, None
        assert choices is not None
        self._pending, self._launched = [], []
        if any(choice.actions for choice in choices.done):
            self._add_step(tuple(choices.done), choices.launched)

    def end(self) -> None:
        """End the function."""
        if self._pending:
            self._end_step()

    def _end_step(self) -> None:
        actions, self._pending = tuple(self._pending), []
        launched, self._launched = self._launched, []
        self._add_step((Choice("", actions),), launched)

    def _add_step(self, choices: tuple[Choice, ...], notes: list[NotedLaunch]) -> None:
        self.steps.append(choices)
        self.notes.append(notes)
        if len(self.steps) > MOST_STEPS:
            raise self.refusal(f"it has more than {MOST_STEPS} steps of launches, fills and copies")
        launches = sum(
            max(sum(isinstance(a, Launch) for a in choice.actions) for choice in step)
            for step in self.steps
        )
        if launches > MOST_LAUNCHES:
            raise self.refusal(
                f"it launches more than {MOST_LAUNCHES} kernels in one call{{line}}, "
                f"and at most {MOST_LAUNCHES} can be verified"
            )


class Pretending(OnCpu):
    """Answers for tensors as if they were on a GPU, and refuses what reads their values."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace
        self.on_gpu = False  # whether the function that runs now was asked for a GPU

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in READING_METHODS and isinstance(args[0], Tensor) and self.trace.is_ours(args[0]):
            raise self.trace.refusal(_reads(func.__name__))
        given = (*args, *(kwargs or {}).values())
        outer, self.on_gpu = self.on_gpu, any(map(_is_gpu, given))
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            self.on_gpu = outer


def _is_gpu(value: Any) -> bool:
    if isinstance(value, str):
        return value.partition(":")[0] == "cuda"
    return isinstance(value, torch.device) and value.type == "cuda"


def _reads(what: str) -> str:
    return (
        f"it reads values of a tensor ({what}){{line}}: launches must not depend on values, "
        "because a plan is recorded without them"
    )


class Tracing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's gap
    """Adds to a trace what torch's operations do."""

    def __init__(self, trace: Trace, pretending: Pretending) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace
        self._pretending = pretending

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and skipping imports torch._dynamo, which takes 2 s."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given: Mapping[str, Any] = kwargs or {}
        name = func._schema.name.partition("::")[2]
        ours = [t for t in (*args, *given.values()) if self._is_ours(t)]
        if func.namespace != "aten":
            return self._custom(func, args, given)
        if func._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        ):  # such as `contiguous`, where torch has not taken it apart itself
            with self:
                return func.decompose(*args, **given)
        if name in ALLOCATES or name in FILLS:
            return self._allocate(func, name, args, given, on_gpu=bool(ours))
        if func.is_view or name == "_unsafe_view":
            return func(*args, **given)
        if name in READS and ours:
            raise self._trace.refusal(_reads(name))
        if name in ("fill_", "zero_"):
            return self._fill_in_place(func, args, given)
        if name == "copy_" and self._is_ours(args[0]):
            return self._copy_in_place(args[0], args[1])
        if name in ("clone", "_to_copy") and ours:
            return self._copied(args[0], given)
        if not (ours or self._pretending.on_gpu or _has_lists_of_tensors(args)):
            return func(*args, **given)  # tensors of the host, which has their values
        raise self._trace.refusal(f"it computes with torch ({func}){{line}}: {ALLOWED}")

    def _is_ours(self, value: Any) -> bool:
        return isinstance(value, Tensor) and self._trace.is_ours(value)

    def _custom(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function of a custom op, such as one of the shipped ops."""
        defined = OPDEFS.get(func._schema.name)
        if defined is None:
            raise self._trace.refusal(f"it computes with torch ({func}){{line}}: {ALLOWED}")
        with self._pretending, self:
            return defined._init_fn(*args, **kwargs)

    def _allocate(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        on_gpu: bool,
    ) -> Any:
        if not (on_gpu or self._pretending.on_gpu):
            return func(*args, **kwargs)
        like = func(*args, **{**kwargs, "device": torch.device("meta"), "pin_memory": False})
        made = self._trace.allocate(like)
        if name in FILLS:
            value = FILLS[name]
            if value is None:
                value = kwargs["fill_value"] if "fill_value" in kwargs else args[-1]
            self._fill(made, value)
        return made

    def _fill_in_place(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        target = args[0]
        if not self._is_ours(target):
            return func(*args, **kwargs)
        value = args[1] if len(args) > 1 else kwargs.get("value", 0)
        if isinstance(value, Tensor):
            if self._is_ours(value):
                self._copy(value.expand(target.shape), target)
                return target
            value = value.item()
        self._fill(target, value)
        return target

    def _fill(self, target: Tensor, value: Any) -> None:
        """Fill a tensor. One that has gaps is written by a copy of one element."""
        if not target.numel():
            return
        data = _bytes_of(value, target.dtype)
        place = self._written(target, "fills")
        if _is_dense(target) and (pattern := _pattern(data)) is not None:
            nbytes, number = pattern
            count = target.numel() * len(data) // nbytes
            self._trace.add(Fill(place, count, nbytes, number))
            return
        one = self._trace.allocate(torch.empty((1,), dtype=target.dtype, device="meta"))
        at = self._trace.place_of(one)
        assert at is not None
        nbytes = min(len(data), max(FILL_BYTES))
        for offset in range(0, len(data), nbytes):
            number = int.from_bytes(data[offset : offset + nbytes], "little")
            there = dataclasses.replace(at, offset=at.offset + offset)
            self._trace.add(Fill(there, 1, nbytes, number))
        self._copy(one.expand(target.shape), target)

    def _copied(self, source: Tensor, kwargs: Mapping[str, Any]) -> Tensor:
        """What `clone` or `to` returns."""
        device = kwargs.get("device")
        if device is not None and device.type == "meta":
            return torch.empty_like(source, device=device)
        like = torch.empty_like(
            source,
            dtype=kwargs.get("dtype") or source.dtype,
            memory_format=kwargs.get("memory_format") or torch.preserve_format,
            device="meta",
        )
        made = self._trace.allocate(like)
        self._copy(source, made)
        return made

    def _copy_in_place(self, target: Tensor, source: Tensor) -> Tensor:
        if self._is_ours(source):
            self._copy(source.expand(target.shape), target)
        elif source.numel() == 1:
            self._fill(target, source.item())
        else:
            raise self._trace.refusal(
                "it copies a tensor that was not made in this call{line}: "
                "a plan has no values of the host"
            )
        return target

    def _copy(self, source: Tensor, target: Tensor) -> None:
        if not target.numel():
            return
        place = self._written(target, "copies to")
        if any(t.is_conj() or t.is_neg() for t in (source, target)):
            raise self._trace.refusal(
                "it copies a lazy conjugate or negative of a tensor{line}: let a kernel compute it"
            )
        begin = self._trace.place_of(source)
        assert begin is not None
        views = [
            View(place, t.dtype, tuple(t.shape), t.stride())
            for place, t in ((begin, source), (place, target))
        ]
        self._trace.add(Copy(*views))

    def _written(self, target: Tensor, verb: str) -> Place:
        place = self._trace.place_of(target)
        assert place is not None
        name = self._trace.regions[place.buffer].buffer.input
        if name:
            raise self._trace.refusal(f"it {verb} the input {name}{{line}}: inputs must not change")
        if any(
            n > 1 and not stride for n, stride in zip(target.shape, target.stride(), strict=True)
        ):
            raise self._trace.refusal(f"it {verb} an expanded tensor{{line}}")
        return place


def _address(t: Tensor) -> int:
    """The address of the first element. `data_ptr` is 0 for tensors without elements."""
    return t.untyped_storage().data_ptr() + int(t.storage_offset()) * t.element_size()


def _has_lists_of_tensors(args: tuple[Any, ...]) -> bool:
    return any(isinstance(t, Tensor) for one in args if isinstance(one, list | tuple) for t in one)


def _is_dense(t: Tensor) -> bool:
    """Whether a tensor covers its memory without gaps, in any order of its dims."""
    size = 1
    for stride, n in sorted((s, n) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1):
        if stride != size:
            return False
        size *= n
    return True


def _bytes_of(value: Any, dtype: torch.dtype) -> bytes:
    return bytes(torch.empty((1,), dtype=dtype).fill_(value).view(torch.uint8).tolist())


def _pattern(data: bytes) -> tuple[int, int] | None:
    """Bytes and value of the element that a fill repeats; None if it has too many bytes."""
    for nbytes in sorted(FILL_BYTES, reverse=True):
        if len(data) % nbytes == 0 and data == data[:nbytes] * (len(data) // nbytes):
            return nbytes, int.from_bytes(data[:nbytes], "little")
    return None
