"""Makes the call that a declaration of launches of Triton kernels describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton.compiler.errors import CompilationError
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from warpcall_kernels.compile.pretended import GPU
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.errors import listed
from warpcall_kernels.verified.declaration import (
    Declaration,
    DeclaredLaunch,
    InvalidDeclaration,
    Scope,
    facts,
)
from warpcall_kernels.verified.expressions import DTYPES, InvalidExpression, Value
from warpcall_kernels.verified.traced import Trace

TYPES = {
    code: getattr(tl, str(dtype).removeprefix("torch.").replace("bool", "int1"))
    for code, dtype in DTYPES.items()
}


def call_declared(
    module: Any,
    declaration: Declaration,
    inputs: Mapping[str, Tensor],
    params: Mapping[str, Any],
    outputs: Mapping[str, Meta],
    function: Callable[..., Any] | None,
    trace: Trace,
) -> tuple[Tensor, ...]:
    """Allocate outputs and scratch memory, and launch with each configuration as a choice.

    All launches of a configuration are one choice, because they share scratch memory whose size may
    depend on it.

    Raises:
        InvalidDeclaration: the declaration does not fit the kernels or the case.
    """
    if declaration.for_cuda:
        raise InvalidDeclaration("launches: a kernel in Triton has no block: num_warps sets it")
    names: dict[str, Value] = {n: facts(t.shape, t.dtype, t.stride()) for n, t in inputs.items()}
    names |= {name: facts(meta.shape, meta.dtype) for name, meta in outputs.items()}
    names |= params
    for name in _parameters(function):
        names.setdefault(name, None)  # an optional input that the case has not
    made = {name: torch.empty(m.shape, dtype=m.dtype, device=GPU) for name, m in outputs.items()}
    failed: Exception | None = None
    done = False
    trace.begin_choices()
    try:
        for scope in declaration.scopes(names):
            tensors = {**inputs, **made, **_scratch(scope)}
            try:
                for launch in declaration.launches:
                    _launch(module, launch, scope, tensors)
            except (CompilationError, OutOfResources, PTXASError) as error:
                failed = failed or error
                trace.drop_choice()
            else:
                done = True
                trace.add_choice(scope.label)
    finally:
        trace.end_choices()
    if not done and failed is not None:
        raise failed
    return tuple(made.values())


def _parameters(function: Callable[..., Any] | None) -> list[str]:
    """The names of the parameters of the author's function."""
    try:
        return [] if function is None else [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        return []


def _scratch(scope: Scope) -> dict[str, Tensor]:
    made = {}
    for name, (shape, dtype, fill) in scope.scratch.items():
        made[name] = torch.empty(shape, dtype=dtype, device=GPU)
        if fill is not None:
            made[name].fill_(fill)
    return made


def _launch(
    module: Any, launch: DeclaredLaunch, scope: Scope, tensors: Mapping[str, Tensor]
) -> None:
    kernel = _kernel(module, launch)
    taken = {parameter.name: parameter for parameter in _jit(kernel).params}
    known = {*taken} - (set(kernel.values) if isinstance(kernel, Heuristics) else set())
    given: dict[str, Any] = {}
    for argument in launch.arguments:
        if argument.name not in known:
            raise InvalidDeclaration(
                f"{launch.member}.arguments: {launch.kernel} has no parameter {argument.name}, "
                f"it has {listed(name for name in taken if name in known)}"
            )
        try:
            given[argument.name] = _value(argument.value, scope, tensors)
        except InvalidExpression as error:
            where = f"{launch.member}.arguments.{argument.name}"
            raise InvalidDeclaration(f"{where}: {error}") from None
    for name in known:
        if name not in given and name in scope.constants:
            given[name] = scope.constants[name]
        elif name not in given and not taken[name].has_default:
            raise InvalidDeclaration(f"{launch.member}.arguments lacks {name} of {launch.kernel}")
    options: dict[str, Any] = {
        name: value for name, value in launch.options_of(scope.names).items() if name not in given
    }
    if launch.early:
        options["launch_pdl"] = True
    if launch.cooperative:
        options["launch_cooperative_grid"] = True
    kernel.run(grid=launch.grid_of(scope.names), warmup=False, **given, **options)


def _value(expression: Any, scope: Scope, tensors: Mapping[str, Tensor]) -> Any:
    name = expression.tensor(scope.names)
    if name is not None:
        return tensors[name]
    value = expression.value(scope.names)
    return TYPES.get(value, value) if isinstance(value, str) else value


def _kernel(module: Any, launch: DeclaredLaunch) -> Any:
    """The kernel of a launch, without its autotuner: the declaration has the configurations."""
    found = getattr(module, launch.kernel, None)
    while isinstance(found, Autotuner):
        found = found.fn
    if not isinstance(found, JITFunction | Heuristics):
        raise InvalidDeclaration(
            f"{launch.member}.kernel: the source has no triton.jit function {launch.kernel}"
        )
    return found


def _jit(kernel: Any) -> Any:
    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    return kernel
