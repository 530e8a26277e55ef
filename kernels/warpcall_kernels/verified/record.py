"""Records what a host function does in one call as a launch plan, without a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from triton.compiler.errors import CompilationError

from warpcall_kernels.compile.architectures import Architecture
from warpcall_kernels.compile.pretended import GPU, pretending
from warpcall_kernels.execution.outputs import Wrong, own_tensors
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified.declaration import Declaration
from warpcall_kernels.verified.declared import call_declared
from warpcall_kernels.verified.launched import Recorder
from warpcall_kernels.verified.plan import (
    MOST_BUFFERS,
    MOST_CUBIN_BYTES,
    MOST_CUBINS_BYTES,
    Action,
    Choice,
    Copy,
    Fill,
    Launch,
    Place,
    Plan,
    View,
)
from warpcall_kernels.verified.traced import (
    OUTSIDE,
    NotedLaunch,
    NotVerifiable,
    Pretending,
    Trace,
    Tracing,
)

__all__ = ["CannotCompile", "NotVerifiable", "Recording", "record", "record_declared", "trace"]


@dataclass(frozen=True)
class Recording:
    """A launch plan, and what its launches are in the author's source.

    Attributes:
        inputs: shapes and strides by name.
        allocated: shapes and dtypes of the buffers; those of inputs are the inputs themselves.
        notes: the launches of each step, by choice; none where a choice has several.
    """

    plan: Plan
    inputs: Mapping[str, Tensor]
    params: Mapping[str, Any]
    outputs: Mapping[str, Meta]
    allocated: tuple[Tensor, ...]
    notes: tuple[tuple[NotedLaunch, ...], ...]


class CannotCompile(Exception):
    """A kernel cannot be compiled. The text has the line of the source if it is known.

    Attributes:
        error: what Triton raised.
    """

    def __init__(self, error: Exception, line: int | None) -> None:
        lines = [line for line in str(error).splitlines() if line.strip()]
        where = "" if line is None else f"line {line}: "
        super().__init__(f"{where}{type(error).__name__}: {lines[-1].strip() if lines else ''}")
        self.error = error


def record(
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    params: Mapping[str, Any],
    outputs: Mapping[str, Meta],
    target: Architecture,
) -> Plan:
    """The launch plan of one call.

    Args:
        function: takes inputs and parameters by name. It is called once.
        inputs: tensors as `untouched` makes them.
        outputs: shapes and dtypes of what it must return.

    Raises:
        NotVerifiable: it does what no plan can have.
        Exception: whatever it raises itself, such as an error of Triton's compiler.
    """
    return trace(function, inputs, params, outputs, target).plan


def trace(
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    params: Mapping[str, Any],
    outputs: Mapping[str, Meta],
    target: Architecture,
) -> Recording:
    """The launch plan of one call as in `record`, and what is needed to make it a declaration."""
    return _traced(
        lambda _: function(**inputs, **params), _file_of(function), inputs, params, outputs, target
    )


def record_declared(
    module: Any,
    declaration: Declaration,
    inputs: Mapping[str, Tensor],
    params: Mapping[str, Any],
    outputs: Mapping[str, Meta],
    target: Architecture,
    function: Callable[..., Any] | None = None,
) -> Plan:
    """The launch plan of one call that a declaration of launches of Triton kernels describes.

    Args:
        module: has the kernels.
        function: of the author; its parameters that are no inputs of the case are null.

    Raises:
        InvalidDeclaration: the declaration does not fit the kernels or the case.
        NotVerifiable, CannotCompile: as in `record`.
    """

    def call(trace: Trace) -> Any:
        return call_declared(module, declaration, inputs, params, outputs, function, trace)

    file = str(getattr(module, "__file__", ""))
    return _traced(call, file, inputs, params, outputs, target).plan


def _traced(
    call: Callable[[Trace], Any],
    file: str,
    inputs: Mapping[str, Tensor],
    params: Mapping[str, Any],
    outputs: Mapping[str, Meta],
    target: Architecture,
) -> Recording:
    traced = Trace(file)
    for name, tensor in inputs.items():
        traced.add_input(name, tensor)
    recorder = Recorder(target, traced)
    mode = Pretending(traced)
    with torch.no_grad(), recorder.recording(), pretending(target, mode):
        try:
            with Tracing(traced, mode):
                result = call(traced)
        except CompilationError as error:
            where, line = recorder.compile_line or ("", None)
            raise CannotCompile(error, line if where == file else None) from error
        if traced.refused is not None:  # the function may have caught it
            raise traced.refused
        traced.end()
        try:
            parts = own_tensors(result, outputs, GPU, inputs.items())
        except Wrong as error:
            raise NotVerifiable(str(error)) from None
        places = [traced.place_of(part) for part in parts]
    for name, place in zip(outputs, places, strict=True):
        if place is None:
            raise NotVerifiable(f"{name} is {OUTSIDE.replace('{line}', '')}")
        if traced.regions[place.buffer].buffer.input:
            raise NotVerifiable(
                f"{name} lies in the input {traced.regions[place.buffer].buffer.input}"
            )
    whole = Plan(
        target.name,
        tuple(recorder.kernels),
        tuple(region.buffer for region in traced.regions),
        tuple(traced.steps),
        tuple(place for place in places if place is not None),
    )
    numbers = _used(whole)
    plan = _renumbered(whole, numbers)
    _check_limits(plan)
    allocated = tuple(traced.regions[old].kept for old in numbers)
    notes = tuple(
        tuple(replace(one, arguments=_moved(one.arguments, numbers)) for one in step)
        for step in traced.notes
    )
    return Recording(plan, inputs, params, outputs, allocated, notes)


def _file_of(function: Callable[..., Any]) -> str:
    """The file of the author's source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else str(code.co_filename)


def _check_limits(plan: Plan) -> None:
    if len(plan.buffers) > MOST_BUFFERS:
        raise NotVerifiable(
            f"it uses {len(plan.buffers)} inputs and allocations, at most {MOST_BUFFERS}"
        )
    for kernel in plan.kernels:
        if len(kernel.cubin) > MOST_CUBIN_BYTES:
            raise NotVerifiable(
                f"{kernel.name} has {len(kernel.cubin)} bytes of machine code, "
                f"at most {MOST_CUBIN_BYTES}"
            )
    together = sum(len(kernel.cubin) for kernel in plan.kernels)
    if together > MOST_CUBINS_BYTES:
        raise NotVerifiable(
            f"its kernels have {together} bytes of machine code together, counted by "
            f"configuration, at most {MOST_CUBINS_BYTES}: leave configurations out"
        )


def _used(plan: Plan) -> dict[int, int]:
    """New numbers of the inputs, and of the allocations that something uses."""
    used = {place.buffer for place in plan.outputs}
    for step in plan.steps:
        used |= {place.buffer for c in step for a in c.actions for place in _places(a)}
    kept = [i for i, b in enumerate(plan.buffers) if b.input or i in used]
    return {old: new for new, old in enumerate(kept)}


def _moved(arguments: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    return {
        name: Place(numbers[value.buffer], value.offset) if isinstance(value, Place) else value
        for name, value in arguments.items()
    }


def _renumbered(plan: Plan, numbers: Mapping[int, int]) -> Plan:
    """A plan with the buffers that have new numbers."""

    def moved(place: Place) -> Place:
        return Place(numbers[place.buffer], place.offset)

    def view(one: View) -> View:
        return replace(one, place=moved(one.place))

    def action(one: Action) -> Action:
        if isinstance(one, Launch):
            arguments = tuple(moved(a) if isinstance(a, Place) else a for a in one.arguments)
            return replace(one, arguments=arguments)
        if isinstance(one, Fill):
            return replace(one, place=moved(one.place))
        return Copy(view(one.source), view(one.target))

    return replace(
        plan,
        buffers=tuple(plan.buffers[old] for old in numbers),
        steps=tuple(
            tuple(Choice(c.label, tuple(map(action, c.actions))) for c in step)
            for step in plan.steps
        ),
        outputs=tuple(map(moved, plan.outputs)),
    )


def _places(action: Action) -> list[Place]:
    if isinstance(action, Launch):
        return [a for a in action.arguments if isinstance(a, Place)]
    if isinstance(action, Fill):
        return [action.place]
    return [action.source.place, action.target.place]
