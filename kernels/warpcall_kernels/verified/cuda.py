"""Makes launch plans of a source in CUDA C++ and its declaration."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch

from warpcall_kernels.compile.architectures import Architecture
from warpcall_kernels.op.declaration import Meta, ParamValue
from warpcall_kernels.op.errors import listed
from warpcall_kernels.verified.cubin import CTA_PER_CLUSTER, Cubin
from warpcall_kernels.verified.declaration import (
    Argument,
    Constant,
    Declaration,
    DeclaredLaunch,
    InvalidDeclaration,
    Scope,
    bit_pattern,
    facts,
)
from warpcall_kernels.verified.expressions import InvalidExpression, Names
from warpcall_kernels.verified.inspection import Refused, inspect, read
from warpcall_kernels.verified.nvrtc import CudaCompileError, compile_source
from warpcall_kernels.verified.plan import (
    FLOATS,
    FORMATS,
    MOST_CUBINS_BYTES,
    MOST_KERNELS,
    POINTER,
    Action,
    Buffer,
    Choice,
    Fill,
    Kernel,
    Launch,
    Place,
    Plan,
)
from warpcall_kernels.verified.plan import Argument as Passed

__all__ = ["CudaCompileError", "check_source", "plan_of_source"]


class Layout(Protocol):
    """How an input lies in memory: as `BufferLayout` of the package `execution` says it."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def span(self) -> int: ...


class _Compiled(NamedTuple):
    """The kernels of one configuration."""

    scope: Scope
    cubin: bytes
    actions: list[tuple[Kernel, Launch] | Fill]


def plan_of_source(
    source: str,
    declaration: Declaration,
    inputs: Mapping[str, Layout | None],
    params: Mapping[str, ParamValue],
    outputs: Mapping[str, Meta],
    target: Architecture,
    folders: tuple[str, ...] = (),
) -> Plan:
    """The launch plan of one case.

    Each configuration is compiled with its integers as macros, and becomes a choice. One that cannot be
    compiled or launched is left out, as in an autotuner, unless all are such.

    Args:
        inputs: None for an optional input that the case has not.
        folders: where files of the author lie that the source includes.

    Raises:
        CudaCompileError: the source cannot be compiled.
        InvalidDeclaration: the declaration does not fit the op, the case or the kernels.
        Refused: a kernel may not run as a verified one.
    """
    names: dict[str, Any] = {
        name: None if one is None else facts(one.shape, one.dtype, one.strides)
        for name, one in inputs.items()
    }
    names |= {name: facts(one.shape, one.dtype) for name, one in outputs.items()}
    names |= params
    scopes = [*declaration.scopes(names)]
    buffers = _Buffers(inputs, outputs, scopes)

    def compiled(scope: Scope) -> _Compiled:
        cubin = compile_source(source, scope.constants, target, folders)
        return _Compiled(scope, cubin, _actions(declaration, scope, cubin, buffers, target))

    found = _first_or_all(compiled, scopes)
    kernels: dict[Kernel, int] = {}
    choices = []
    for one in found:
        actions: list[Action] = []
        for action in one.actions:
            if isinstance(action, Fill):
                actions.append(action)
                continue
            kernel, launch = action
            number = kernels.setdefault(kernel, len(kernels))
            actions.append(
                Launch(number, launch.grid, launch.arguments, launch.early, launch.cooperative)
            )
        choices.append(Choice(one.scope.label, tuple(actions)))
    if len(kernels) > MOST_KERNELS or sum(len(one.cubin) for one in kernels) > MOST_CUBINS_BYTES:
        raise InvalidDeclaration(
            f"configurations: together they have {len(kernels)} kernels, of which there may be {MOST_KERNELS}, "
            f"and {MOST_CUBINS_BYTES >> 20} MiB of code; declare fewer"
        )
    return Plan(target.name, tuple(kernels), buffers.all, (tuple(choices),), buffers.outputs)


def check_source(
    source: str, declaration: Declaration, target: Architecture, folders: tuple[str, ...] = ()
) -> None:
    """Compile a source, and check that it has the kernels that its declaration launches.

    Args:
        folders: as of `plan_of_source`.

    Raises:
        CudaCompileError: the source cannot be compiled.
        InvalidDeclaration: the declaration does not fit the kernels.
        Refused: a kernel may not run as a verified one.
    """

    def check(constants: Mapping[str, Constant]) -> None:
        parsed = read(compile_source(source, constants, target, folders), target)
        for launch in declaration.launches:
            _check_launch(launch, parsed)

    _first_or_all(check, declaration.configurations or ({},))


def _first_or_all(function: Any, given: Sequence[Any]) -> list[Any]:
    """What a function returns for those that it does not fail for. If it fails for all, the first failure."""

    def result(one: Any) -> Any:
        try:
            return function(one)
        except (CudaCompileError, Refused) as error:
            return error

    with ThreadPoolExecutor(min(len(given), len(os.sched_getaffinity(0)))) as pool:
        results = [*pool.map(result, given)]
    found = [one for one in results if not isinstance(one, Exception)]
    if not found:
        raise results[0]
    return found


class _Buffers:
    """The buffers of a plan: inputs, outputs and scratch memory, which all configurations share."""

    def __init__(
        self,
        inputs: Mapping[str, Layout | None],
        outputs: Mapping[str, Meta],
        scopes: Sequence[Scope],
    ) -> None:
        self._numbers: dict[str, int] = {}
        made: list[Buffer] = []
        for name, layout in inputs.items():
            if layout is not None:
                self._numbers[name] = len(made)
                made.append(Buffer(name, layout.span * layout.dtype.itemsize))
        self.outputs = tuple(Place(len(made) + n, 0) for n in range(len(outputs)))
        sizes = {name: meta.nbytes for name, meta in outputs.items()}
        for name in scopes[0].scratch:
            sizes[name] = max(one.scratch[name].nbytes for one in scopes)
        for name, nbytes in sizes.items():
            self._numbers[name] = len(made)
            made.append(Buffer("", nbytes))
        self.all = tuple(made)

    def place(self, name: str) -> Place:
        """The first element of a tensor."""
        return Place(self._numbers[name], 0)


def _actions(
    declaration: Declaration, scope: Scope, code: bytes, buffers: _Buffers, target: Architecture
) -> list[tuple[Kernel, Launch] | Fill]:
    parsed = Cubin.parse(code)
    actions: list[tuple[Kernel, Launch] | Fill] = []
    for name, scratch in scope.scratch.items():
        if scratch.fill is not None and scratch.nbytes:
            value, nbytes = bit_pattern(scratch.fill, scratch.dtype)
            actions.append(Fill(buffers.place(name), scratch.nbytes // nbytes, nbytes, value))
    kernels = []
    for launch in declaration.launches:
        _check_launch(launch, parsed)
        cluster = launch.cluster_of(scope.names)
        if cluster == (1, 1, 1):
            cluster = _own_cluster(parsed, launch.kernel)
        kernel = Kernel(
            launch.kernel,
            code,
            tuple(one.kind for one in launch.arguments),
            launch.block_of(scope.names),
            launch.shared_bytes_of(scope.names),
            cluster,
        )
        kernels.append(kernel)
        arguments = tuple(
            _passed(one, f"{launch.member}.arguments[{number}]", scope.names, buffers)
            for number, one in enumerate(launch.arguments)
        )
        grid = launch.grid_of(scope.names)
        actions.append((kernel, Launch(0, grid, arguments, launch.early, launch.cooperative)))
    inspect(Plan(target.name, tuple(kernels), (), (), ()))
    return actions


def _check_launch(launch: DeclaredLaunch, cubin: Cubin) -> None:
    """Check that the kernel is there, and takes such arguments."""
    if not launch.for_cuda:
        raise InvalidDeclaration(f"{launch.member} lacks block, the threads of a block")
    kernels = cubin.kernels()
    if launch.kernel not in kernels:
        mangled = [name for name in kernels if launch.kernel in name]
        why = 'declare it as `extern "C" __global__`' if mangled else f"there are {listed(kernels)}"
        raise InvalidDeclaration(
            f"{launch.member}.kernel: the source has no kernel {launch.kernel}; {why}"
        )
    taken = [one.nbytes for one in cubin.parameters(launch.kernel)]
    if len(taken) != len(launch.arguments):
        raise InvalidDeclaration(
            f"{launch.member}.arguments: {launch.kernel} takes {len(taken)}, and {len(launch.arguments)} are declared"
        )
    for number, (nbytes, one) in enumerate(zip(taken, launch.arguments, strict=True)):
        given = struct.calcsize(FORMATS[one.kind])
        if nbytes != given:
            kind = "a pointer" if one.kind == POINTER else one.kind
            raise InvalidDeclaration(
                f"{launch.member}.arguments[{number}]: {launch.kernel} takes {nbytes} bytes here, and "
                f"{kind} has {given}"
            )


def _own_cluster(cubin: Cubin, kernel: str) -> tuple[int, int, int]:
    """The cluster that a kernel is compiled for by `__cluster_dims__`."""
    for number, value in cubin.attributes(f".nv.info.{kernel}"):
        if number == CTA_PER_CLUSTER and len(value) == 12:
            x, y, z = struct.unpack("<III", value)
            return x, y, z
    return 1, 1, 1


def _passed(one: Argument, member: str, names: Names, buffers: _Buffers) -> Passed:
    try:
        value = one.value.value(names)
        if one.kind == POINTER:
            name = one.value.tensor(names)
            if name is None and value is not None:
                raise InvalidDeclaration(
                    f"{member}: {one.value.text} is no tensor; a number has its type, "
                    f'as in {{"i32": "{one.value.text}"}}'
                )
            return None if name is None else buffers.place(name)
        if one.kind in FLOATS:
            number = float(one.value.number(names))
            struct.pack(FORMATS[one.kind], number)
            return number
        if isinstance(value, bool):
            return int(value)
        bits = int(one.kind[1:])
        signed = one.kind[0] == "i" and bits > 1
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return one.value.integer(names, low, high)
    except InvalidExpression as error:
        raise InvalidDeclaration(f"{member}: {error}") from None
    except OverflowError:
        raise InvalidDeclaration(f"{member}: {number} is too large for {one.kind}") from None
