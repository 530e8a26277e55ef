"""The implementations that can be timed: our kernels, torch, torch.compile, and registered ones."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels import Op, ops
from warpcall_kernels.op.declaration import ParamValue
from warpcall_kernels.op.errors import InvalidInput

ENTRY_POINTS = "warpcall_kernels.implementations"
LIMIT = "copy"

Function = Callable[..., Any]


@dataclass(frozen=True)
class Implementation:
    """One way to compute an op.

    Args:
        name: the name that users write.
        doc: one line of description.
        build: makes a function from the op and its checked parameters. The function takes the
            inputs by name and returns the outputs as the op's function does. It compiles at its
            first call.
        ops: names of the ops that it computes; empty means all.
        tags: remarks on each of its results, such as "interpreted".
    """

    name: str
    doc: str
    build: Callable[[Op, Mapping[str, ParamValue]], Function]
    ops: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


def implementations(op_name: str) -> tuple[str, ...]:
    """The names of an op's implementations, and of the limit, a copy of as many bytes."""
    found = (i.name for i in _registry().values() if not i.ops or op_name in i.ops)
    return (*found, LIMIT)


def registered() -> tuple[Implementation, ...]:
    """All implementations in this process, the shipped ones first; the limit is not one of them."""
    return tuple(_registry().values())


def register(implementation: Implementation) -> None:
    """Add an implementation in this process."""
    if implementation.name in (*_known, LIMIT):
        raise InvalidInput("name", f"there is an implementation {implementation.name} already")
    if unknown := set(implementation.ops) - set(ops()):
        raise InvalidInput("ops", f"there is no op {', '.join(sorted(unknown))}")
    _known[implementation.name] = implementation


def load(module: str) -> None:
    """Register the `IMPLEMENTATIONS` of a module. Idempotent."""
    for implementation in importlib.import_module(module).IMPLEMENTATIONS:
        if _known.get(implementation.name) is not implementation:
            register(implementation)


def find(op_name: str, name: str) -> Implementation:
    """The implementation of that name. Raises InvalidInput if there is none."""
    if name not in implementations(op_name) or name == LIMIT:
        raise InvalidInput(
            "implementations",
            f"implementations must be of {', '.join(implementations(op_name))}, got {name!r:.60}",
        )
    return _registry()[name]


def outputs_of(result: Any) -> tuple[Tensor, ...]:
    """A function's result as a tuple of tensors, without those that are None."""
    parts = result if isinstance(result, tuple | list) else (result,)
    return tuple(part for part in parts if part is not None)


def _ours(op: Op, params: Mapping[str, ParamValue]) -> Function:
    return lambda **inputs: op.function(**inputs, **params)


def _eager(op: Op, params: Mapping[str, ParamValue]) -> Function:
    def compute(**inputs: Tensor) -> Any:
        result = op.reference(**inputs, **params)
        # The reference may return a view, but a timed call must write its result. On a CPU this
        # code is timed, too, so it is short.
        if isinstance(result, Tensor):
            return result.contiguous()
        return tuple(part.contiguous() for part in result if part is not None)

    return compute


def _compiled(op: Op, params: Mapping[str, ParamValue]) -> Function:
    torch._dynamo.reset()  # otherwise the ninth case of an op would not be compiled
    function: Function = torch.compile(_eager(op, params), dynamic=False)
    return function


_known = {
    i.name: i
    for i in (
        Implementation("warpcall", "the kernels of this library", _ours),
        Implementation("torch", "the reference, eager", _eager),
        Implementation("torch.compile", "the reference, compiled for these shapes", _compiled),
    )
}
_loaded: set[str] = set()


def _registry() -> Mapping[str, Implementation]:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.value not in _loaded:
            _loaded.add(entry.value)
            load(entry.value)
    return _known
