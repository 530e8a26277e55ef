"""Runs Triton's front end once for each kind of operation instead of once for each operation.

When a kernel adds two tensors, Triton's front end checks, promotes and broadcasts their types, and
then asks a builder for values. Under the interpreter it does so each time: 60 us of Python, where
numpy needs 2 us for a small tile. What it asks of the builder depends only on the types of tensors
and on constants. Its calls are therefore recorded when an operation first meets such arguments.
Later they are made again with other tensors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

PLAIN = (int, bool, str, type(None))
_Pick = Callable[[list[Any]], Sequence[Any]]


class _Unknown(Exception):
    """An argument that cannot be part of a key."""


class _Result:
    """A tensor that an operation returns: the place of its handle, and all else that it has."""

    def __init__(self, place: int, tensor: Any) -> None:
        self.place = place
        self.attributes = {name: part for name, part in vars(tensor).items() if name != "handle"}

    def filled(self, handle: Any) -> Any:
        tensor = object.__new__(tl.tensor)
        tensor.__dict__ = {**self.attributes, "handle": handle}
        return tensor


class _Plan:
    """The builder's calls of an operation, which work on a list of values.

    Attributes:
        values: what follows the handles of the arguments in that list: constants, and None for the
            result of each call.
        calls: each the place of its result, a method of the builder, and what picks its arguments.
        result: what the operation returns, with a `_Result` for each tensor.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.calls: list[tuple[int, Callable[..., Any], _Pick]] = []
        self.result: Any = None

    def run(self, handles: list[TensorHandle]) -> Any:
        values = handles + self.values
        for place, method, pick in self.calls:
            values[place] = method(*pick(values))
        result = self.result
        return (
            result.filled(values[result.place])
            if type(result) is _Result
            else _filled(result, values)
        )


def _pick(places: Sequence[int]) -> _Pick:
    """A function that returns the values at some places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: [values[place] for place in places]


def _filled(result: Any, values: list[Any]) -> Any:
    if type(result) is _Result:
        return result.filled(values[result.place])
    if type(result) is tuple:
        return tuple(_filled(part, values) for part in result)
    return result


class _Recorder:
    """Stands for the builder while an operation is recorded: it makes the calls and notes them.

    Attributes:
        complete: whether what it noted is all that the operation depends on.
    """

    def __init__(self, builder: Any, handles: list[TensorHandle]) -> None:
        self.complete = True
        self._builder = builder
        self._plan = _Plan()
        self._given = len(handles)
        self._places = {id(handle): place for place, handle in enumerate(handles)}
        self._constants: set[int] = set()  # places
        self._kept: list[Any] = []  # what `_places` has the ids of

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._builder, name)
        if not callable(member):
            return member

        def call(*args: Any) -> Any:
            result = member(*args)
            if name.startswith("get_"):
                if isinstance(result, TensorHandle):  # else it is a type
                    self._place_constant(result)
                return result
            self._note_call(member, [self._place(argument) for argument in args], result)
            return result

        return call

    def _note_call(self, method: Callable[..., Any], arguments: list[int], result: Any) -> None:
        place = self._place_new(None, result)
        self._plan.calls.append((place, method, _pick(arguments)))
        if isinstance(result, tuple):  # as of create_split
            for i, part in enumerate(result):
                self._note_call(operator.itemgetter(i), [place], part)
        else:
            self.complete &= result is None or isinstance(result, TensorHandle)

    def _place_new(self, value: Any, known_as: Any) -> int:
        self._plan.values.append(value)
        place = self._given + len(self._plan.values) - 1
        self._places[id(known_as)] = place
        self._kept.append(known_as)
        return place

    def _place_constant(self, value: Any) -> int:
        place = self._place_new(value, value)
        self._constants.add(place)
        return place

    def _place(self, argument: Any) -> int:
        if isinstance(argument, TensorHandle):
            self.complete &= id(argument) in self._places
            return self._places.get(id(argument), 0)
        parts = argument if isinstance(argument, list | tuple) else ()
        self.complete &= not any(isinstance(part, TensorHandle) for part in parts)
        return self._place_constant(argument)

    def note_read(self, tensor: Any) -> None:
        """The front end looks at the value of a tensor; only that of a constant is always equal."""
        self.complete &= tensor.numel.value > 1 or self._place(tensor.handle) in self._constants

    def plan(self, result: Any) -> _Plan | None:
        """What was noted, or None if a plan cannot hold it."""
        self._plan.result = self._noted(result)
        return self._plan if self.complete else None

    def _noted(self, result: Any) -> Any:
        if isinstance(result, tl.tensor):
            return _Result(self._place(result.handle), result)
        if type(result) is tuple:
            return tuple(map(self._noted, result))
        self.complete &= isinstance(result, PLAIN)
        return result


_recorder: _Recorder | None = None


@functools.cache
def replayed(member: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Triton's language as kernels call it: without `_semantic`."""
    plans: dict[Hashable, _Plan | None] = {}
    tensor_type = tl.tensor

    @functools.wraps(member)
    def run(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
        if _semantic is not None and _semantic is not stock.interpreter_semantic:
            return member(*args, **kwargs, _semantic=_semantic)  # a compiler calls it
        if _recorder is not None:  # a part of what is recorded
            return member(*args, **kwargs, _semantic=stock.interpreter_semantic)
        handles: list[TensorHandle] = []
        parts: list[Hashable] = []
        try:
            for value in args:
                if type(value) is tensor_type and type(value.handle) is TensorHandle:  # mostly
                    handles.append(value.handle)
                    parts.append(value.type.name)
                else:
                    parts.append(_key(value, handles))
            for name, value in kwargs.items():
                parts.append((name, _key(value, handles)))
        except _Unknown:
            return member(*args, **kwargs, _semantic=stock.interpreter_semantic)
        # Equal tensors, as in x * x, differ from others, as in x * y.
        if len(handles) == 2:
            parts.append(handles[0] is handles[1])
        elif handles:
            ids = [*map(id, handles)]
            parts += map(ids.index, ids)
        key = tuple(parts)
        if (plan := plans.get(key)) is not None:
            return plan.run(handles)
        if key in plans:  # a plan cannot hold it
            return member(*args, **kwargs, _semantic=stock.interpreter_semantic)
        result, plans[key] = _recorded(member, args, kwargs, handles)
        return result

    return run


def note_read(tensor: Any) -> None:
    """Note that the value of a tensor decides what happens next."""
    if _recorder is not None:
        _recorder.note_read(tensor)


def _recorded(
    member: Callable[..., Any], args: Any, kwargs: Any, handles: list[TensorHandle]
) -> tuple[Any, _Plan | None]:
    global _recorder
    semantic, builder = stock.interpreter_semantic, stock.interpreter_builder
    _recorder = semantic.builder = _Recorder(builder, handles)
    try:
        result = member(*args, **kwargs, _semantic=semantic)
        return result, _recorder.plan(result)
    finally:
        _recorder, semantic.builder = None, builder


def _key(argument: Any, handles: list[TensorHandle]) -> Hashable:
    """What an operation's calls of the builder depend on; the handle of a tensor goes to `handles`."""
    kind = type(argument)
    if kind in PLAIN:
        return kind, argument
    if isinstance(argument, tl.tensor) and isinstance(argument.handle, TensorHandle):
        handles.append(argument.handle)
        return str(argument.type.name)
    if kind is float:
        return kind, argument.hex()  # so that NaN equals itself
    if kind is tl.constexpr:
        return kind, _key(argument.value, handles)
    if isinstance(argument, tl.dtype):
        return kind, argument.name
    if kind in (tuple, list, tl.tuple):
        return kind, *[_key(part, handles) for part in argument]
    if kind is slice:
        return kind, *[_key(p, handles) for p in (argument.start, argument.stop, argument.step)]
    raise _Unknown
