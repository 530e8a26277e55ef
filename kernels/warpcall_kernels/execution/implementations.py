"""The implementations that can be timed: our kernels, torch, torch.compile, and registered ones."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels import Op, ops
from warpcall_kernels.execution.failures import first_line
from warpcall_kernels.execution.outputs import parts_of
from warpcall_kernels.execution.process import RemoteProcess
from warpcall_kernels.execution.spec import JobCase, op_of
from warpcall_kernels.op.declaration import ParamValue
from warpcall_kernels.op.errors import InvalidInput

ENTRY_POINTS = "warpcall_kernels.implementations"
LIMIT = "copy"
KERNELS = "warpcall"

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
        ops: names of the ops that it computes; empty means all. Names with a "/" are of problems.
        tags: remarks on each of its results, such as "interpreted".
        process: where it runs, with the role that it has there; None means in this process, where
            `build` makes its function.
    """

    name: str
    doc: str
    build: Callable[[Op, Mapping[str, ParamValue]], Function]
    ops: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    process: tuple[RemoteProcess, str] | None = None


def shipped() -> tuple[Implementation, ...]:
    """The implementations that this library has for every op; the limit is not one of them."""
    return tuple(_SHIPPED.values())


def implementations(op: Op | str) -> tuple[str, ...]:
    """The names of an op's implementations, and of the limit, a copy of as many bytes.

    It imports the modules of entry points.

    Args:
        op: as in `make_case`.
    """
    _load_entry_points()
    return _names(op_of(op))


def register(implementation: Implementation) -> None:
    """Add an implementation in this process."""
    if implementation.name in (*_known, LIMIT):
        raise InvalidInput("name", f"there is an implementation {implementation.name} already")
    # Only the author of a problem knows whether there is one of that name.
    if unknown := {op for op in implementation.ops if "/" not in op} - set(ops()):
        raise InvalidInput("ops", f"there is no op {', '.join(sorted(unknown))}")
    _known[implementation.name] = implementation


def load(module: str) -> tuple[Implementation, ...]:
    """Register the `IMPLEMENTATIONS` of a module, and return them. Idempotent."""
    found: tuple[Implementation, ...] = tuple(importlib.import_module(module).IMPLEMENTATIONS)
    for implementation in found:
        if _known.get(implementation.name) is not implementation:
            register(implementation)
    return found


def find(op: Op, name: str) -> Implementation:
    """The implementation of that name, with the tags of its results for this op.

    Modules of entry points are imported only if the name is not known without them. One that cannot
    be imported is left out, and the error says so.

    Raises:
        InvalidInput: there is none.
    """
    if name not in _names(op):
        _load_entry_points()
    if name not in _names(op) or name == LIMIT:
        no_kernels = f"; the library has no kernels for {op.name}" if name == KERNELS else ""
        broken = (
            f"; the module {module} cannot be imported: {error}"
            for module, error in _not_loaded.items()
        )
        raise InvalidInput(
            "implementations",
            f"implementations must be of {', '.join(_names(op))}, got {name!r:.60}"
            + "".join((no_kernels, *broken)),
        )
    found = _known[name]
    return replace(found, tags=found.tags + op.tags) if name in _SHIPPED else found


def find_for(case: JobCase, name: str) -> Implementation:
    """As `find`. Those that are made of a problem's reference run in the problem's process."""
    found = find(case.op, name)
    if case.process is None or name not in _SHIPPED:
        return found
    return replace(found, process=(case.process, name))


def remote_implementation(
    name: str, op: str, process: RemoteProcess, tags: tuple[str, ...] = ()
) -> Implementation:
    """An uploaded implementation, which runs in a process of its own.

    Args:
        op: the op that it computes.
    """
    return Implementation(name, "uploaded", _not_here, (op,), tags, (process, ""))


def _not_here(op: Op, params: Mapping[str, ParamValue]) -> Function:
    raise AssertionError("uploaded code never runs in the process that measures")


def _ours(op: Op, params: Mapping[str, ParamValue]) -> Function:
    return lambda **inputs: op.function(**inputs, **params)


def _eager(op: Op, params: Mapping[str, ParamValue]) -> Function:
    def compute(**inputs: Tensor) -> Any:
        result = op.reference(**inputs, **params)
        # The reference may return a view, but a timed call must write its result. On a CPU this
        # code is timed, too, so it is short.
        if isinstance(result, Tensor):
            return _written(result, inputs)
        return tuple(_written(part, inputs) for part in result if part is not None)

    return compute


def _written(part: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """A result in memory of its own."""
    made = part.contiguous()
    address = made.untyped_storage().data_ptr()
    if any(address == t.untyped_storage().data_ptr() for t in inputs.values()):
        return made.clone()
    return made


def _compiled(op: Op, params: Mapping[str, ParamValue]) -> Function:
    torch._dynamo.reset()  # otherwise the ninth case of an op would not be compiled

    def compute(**inputs: Tensor) -> Any:
        result = parts_of(op.reference(**inputs, **params))
        return tuple(part.contiguous() for part in result)

    def copied(**inputs: Tensor) -> Any:
        return tuple(part.clone() for part in compute(**inputs))

    compiled: Function = torch.compile(compute, dynamic=False)
    with_copies: Function = torch.compile(copied, dynamic=False)
    is_own: list[bool] = []

    def call(**inputs: Tensor) -> Any:
        if not is_own:  # whether the compiled code writes its results is known after one call
            addresses = {t.untyped_storage().data_ptr() for t in inputs.values()}
            result = compiled(**inputs)
            is_own.append(all(p.untyped_storage().data_ptr() not in addresses for p in result))
        return compiled(**inputs) if is_own[0] else with_copies(**inputs)

    return call


_SHIPPED = {
    i.name: i
    for i in (
        Implementation(KERNELS, "the kernels of this library", _ours),
        Implementation("torch", "the reference, eager", _eager),
        Implementation("torch.compile", "the reference, compiled for these shapes", _compiled),
    )
}
_known = dict(_SHIPPED)
_loaded: set[str] = set()
_not_loaded: dict[str, str] = {}  # modules of entry points that cannot be imported, and why


def _names(op: Op) -> tuple[str, ...]:
    known = [*_known.values()]  # a thread may register others meanwhile
    found = (i.name for i in known if not i.ops or op.name in i.ops)
    return (*(name for name in found if name != KERNELS or ops().get(op.name) is op), LIMIT)


def _load_entry_points() -> None:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.value not in _loaded:
            _loaded.add(entry.value)
            try:
                load(entry.value)
            except Exception as error:  # noqa: BLE001  # code of others may raise anything
                _not_loaded[entry.value] = first_line(error)
