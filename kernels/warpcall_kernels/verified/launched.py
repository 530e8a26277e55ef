"""Takes the launches of Triton kernels in place of a GPU, and adds them to a trace.

Triton itself binds the arguments, evaluates the grid, applies heuristics and compiles. Only its driver
is another one: whoever loads a kernel gets its cubin, and whoever launches it is noted.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.compiler.errors import CompilationError
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from warpcall_kernels.compile.architectures import Architecture
from warpcall_kernels.compile.launches import line_of
from warpcall_kernels.compile.warm import CompileOnlyDriver, Utilities
from warpcall_kernels.op import launch as op_launch
from warpcall_kernels.op.driver_launch import SCRATCH, WARP, passed
from warpcall_kernels.verified.plan import (
    FORMATS,
    MOST_GRID,
    MOST_KERNELS,
    POINTER,
    Argument,
    Kernel,
    Launch,
    Triple,
)
from warpcall_kernels.verified.traced import OUTSIDE, NotedLaunch, NotVerifiable, Trace

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
REGISTERS = re.compile(rb"\x04\x2f\x08\x00.{4}(.{4})", re.DOTALL)  # EIATTR_REGCOUNT of .nv.info
MOST_THREADS = 1024
_current: Recorder | None = None


class _Binary(NamedTuple):
    """What a kernel is "loaded" as."""

    name: str
    cubin: bytes


class Recorder:
    """Collects the kernels of a plan, and adds launches to a trace.

    Attributes:
        compile_line: file and line of the last kernel that could not be compiled; None if unknown.
    """

    def __init__(self, target: Architecture, trace: Trace) -> None:
        self.kernels: list[Kernel] = []
        self.compile_line: tuple[str, int] | None = None
        self._target = target
        self._trace = trace
        self._configuration: Mapping[str, Any] | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context in which launches go to the trace."""
        global _current
        before = Autotuner.run, JITFunction.run, op_launch.Launch.__call__, _current
        run = JITFunction.run

        def choosing(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            return self._choose(tuner, args, kwargs)

        def running(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return run(kernel, *args, **kwargs)
            except CompilationError as error:
                self.compile_line = line_of(error, kernel)
                raise

        def launching(self: op_launch.Launch, *tensors: Tensor | None) -> None:
            self.by_triton(*tensors)  # a repeated launch would bypass Triton

        use_driver(self._target)
        Autotuner.run, JITFunction.run = choosing, running
        op_launch.Launch.__call__ = launching  # type: ignore[method-assign]
        op_launch.take_metas(True)  # what launchers ask about the device is of the architecture
        _current = self
        try:
            yield
        finally:
            Autotuner.run, JITFunction.run = before[:2]
            op_launch.Launch.__call__, _current = before[2:]  # type: ignore[method-assign]
            op_launch.take_metas(False)

    def add(
        self, binary: _Binary, source: Any, metadata: Any, grid: Triple, values: tuple[Any, ...]
    ) -> None:
        """Add a launch.

        Args:
            source: of the compiled kernel, with its signature.
            values: of all arguments, in the kernel's order.
        """
        if not all(grid):
            return  # Triton launches nothing
        name, signature = binary.name, source.signature
        scratch = metadata.global_scratch_size or metadata.profile_scratch_size
        if scratch:
            raise self._trace.refusal(
                f"{name} needs scratch memory that Triton allocates{{line}}, which a verified kernel "
                "cannot have: use pointers in place of tensor descriptors that it makes itself"
            )
        if any(str(kind).startswith(("tensordesc", "nvTmaDesc")) for kind in signature.values()):
            raise self._trace.refusal(
                f"{name} gets a tensor descriptor{{line}}, which cannot be verified yet: "
                "pass the tensor and its strides"
            )
        programs, clusters = grid, int(metadata.num_ctas)
        grid = (grid[0] * clusters, grid[1], grid[2])
        if any(n > most for n, most in zip(grid, MOST_GRID, strict=True)):
            raise self._trace.refusal(
                f"the grid of {name} is {grid}{{line}}, and CUDA allows at most {MOST_GRID}"
            )
        kinds = tuple(signature.values())
        arguments, parameters = self._arguments(name, kinds, source.fn.arg_names, values)
        kernel = Kernel(
            name,
            binary.cubin,
            (*parameters, *(POINTER for _ in SCRATCH)),
            (WARP * int(metadata.num_warps), 1, 1),
            int(metadata.shared),
            (clusters, 1, 1),
        )
        launch = Launch(
            self._number(kernel),
            grid,
            (*arguments, *(None for _ in SCRATCH)),
            early=bool(metadata.launch_pdl),
            cooperative=bool(metadata.launch_cooperative_grid),
        )
        self._trace.add_launch(launch, self._note(source, metadata, programs, values))

    def _note(
        self, source: Any, metadata: Any, grid: Triple, values: tuple[Any, ...]
    ) -> NotedLaunch:
        jit = source.fn
        noted: dict[str, Any] = {}
        for name, value in zip(jit.arg_names, values, strict=True):
            plain = getattr(value, "value", value)  # of a constexpr
            if hasattr(value, "data_ptr"):
                plain = self._trace.place(value.data_ptr())
            noted[name] = plain
        name, computed = _exported(jit)
        return NotedLaunch(
            kernel=jit.fn.__name__,
            name=name,
            own=jit.fn.__code__.co_filename == self._trace.file,
            grid=grid,
            arguments=noted,
            constants=frozenset(p.name for p in jit.params if p.is_constexpr),
            computed=computed,
            defaults={p.name: p.default for p in jit.params if p.has_default},
            options={
                name: int(value)
                for name in OPTIONS
                if (value := getattr(metadata, name, None)) is not None
            },
            configuration=self._configuration,
        )

    def _number(self, kernel: Kernel) -> int:
        """The number of a kernel in the plan. Equal ones are one."""
        if kernel in self.kernels:
            return self.kernels.index(kernel)
        if len(self.kernels) == MOST_KERNELS:
            raise self._trace.refusal(
                f"it compiles more than {MOST_KERNELS} different kernels{{line}}, counted by "
                "configuration: leave configurations of its autotuners out"
            )
        self.kernels.append(kernel)
        return len(self.kernels) - 1

    def _arguments(
        self, kernel: str, kinds: tuple[Any, ...], names: list[str], values: tuple[Any, ...]
    ) -> tuple[list[Argument], list[str]]:
        """The arguments that become parameters, and their types."""
        labels = tuple(_labels(kind, name) for kind, name in zip(kinds, names, strict=True))
        arguments, parameters = [], []
        for kind, name, value in zip(
            passed(kinds, kinds), passed(kinds, labels), passed(kinds, values), strict=True
        ):
            argument, parameter = self._argument(f"{name} of {kernel}", str(kind), value)
            arguments.append(argument)
            parameters.append(parameter)
        return arguments, parameters

    def _argument(self, what: str, kind: str, value: Any) -> tuple[Argument, str]:
        if kind.startswith(POINTER):
            address = value.data_ptr() if hasattr(value, "data_ptr") else int(value or 0)
            if not address:
                return None, POINTER
            place = self._trace.place(address)
            if place is None:
                raise self._trace.refusal(f"{what} is {OUTSIDE}")
            return place, POINTER
        if kind == "bf16":
            bits = torch.tensor(float(value), dtype=torch.bfloat16).view(torch.uint16)
            return int(bits), "u16"
        if kind in ("fp32", "f32"):
            return ctypes.c_float(value).value, "fp32"
        if kind == "fp16":
            return float(torch.tensor(float(value), dtype=torch.float16)), kind
        if kind == "fp64":
            return float(value), kind
        if kind not in FORMATS:
            raise self._trace.refusal(f"{what} has the type {kind}{{line}}, which no plan has")
        number = int(value)
        if kind[1:] == "64" and self._trace.place(number) is not None:
            raise self._trace.refusal(
                f"{what} is the address of a tensor as a number{{line}}: pass the tensor"
            )
        return int(bool(number)) if kind in ("i1", "u1") else number, kind

    def _choose(self, tuner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make each configuration that an autotuner would time a choice.

        Its reset_to_zero, restore_value, pre_hook and post_hook are not carried out: Triton calls
        these while it times configurations only. A configuration's own pre_hook belongs to each call.
        """
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs
        compiled, failed, done = None, None, False
        self._trace.begin_choices()
        try:
            for config in configs:
                self._configuration = chosen = config.all_kwargs()
                try:
                    if config.pre_hook is not None:
                        config.pre_hook({**tuner.nargs, **kwargs, **chosen})
                    compiled = tuner.fn.run(*args, **kwargs, **chosen)
                except (CompilationError, OutOfResources, PTXASError) as error:
                    failed = failed or error
                    self._trace.drop_choice()
                else:
                    done = True
                    self._trace.add_choice(str(config) if len(configs) > 1 else "")
        finally:
            self._configuration, tuner.nargs = None, None
            self._trace.end_choices()
        if not done and failed is not None:
            raise failed
        return compiled


class _Driver(CompileOnlyDriver):
    """A driver that loads no kernel, and has launches recorded."""

    def __init__(self, target: Architecture) -> None:
        super().__init__(target.capability)
        self._architecture = target

    def get_current_device(self) -> int:
        return self._architecture.capability  # Triton keeps compiled kernels by device

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        """What Triton asks about the device."""
        return torch.cuda

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What launches a kernel."""
        return functools.partial(_launch, source, metadata)

    @functools.cached_property
    def utils(self) -> Utilities:
        return _Loading(self._architecture)


class _Loading(Utilities):
    def load_binary(
        self, name: str, cubin: bytes, shared_bytes: int, device: int
    ) -> tuple[Any, Any, int, int, int]:
        """A kernel, and its registers, spills and the most threads of a block."""
        binary = _Binary(name, cubin)
        found = REGISTERS.search(cubin)
        registers = 0 if found is None else struct.unpack("<I", found[1])[0]
        return binary, binary, registers, 0, MOST_THREADS


def _launch(source: Any, metadata: Any, *given: Any) -> None:
    """A launch as Triton's launcher gets it: the grid, the stream, the kernel, hooks, arguments."""
    x, y, z, _, binary, _, _, _, _, *values = given
    if _current is None:
        raise NotVerifiable(
            f"{binary.name} is launched outside of the call, such as when the file is imported"
        )
    _current.add(binary, source, metadata, (int(x), int(y), int(z)), tuple(values))


@functools.cache
def _driver_of(target: Architecture) -> _Driver:
    return _Driver(target)


def use_driver(target: Architecture) -> None:
    """Let Triton compile for an architecture. This process launches nothing afterwards."""
    triton.runtime.driver.set_active(_driver_of(target))


def _exported(jit: Any) -> tuple[str, frozenset[str]]:
    """The name under which its module has a kernel, and the arguments that heuristics compute."""
    for name, value in jit.fn.__globals__.items():
        computed: set[str] = set()
        while isinstance(value, Autotuner | Heuristics):
            if isinstance(value, Heuristics):
                computed |= set(value.values)
            value = value.fn
        if value is jit:
            return name, frozenset(computed)
    return jit.fn.__name__, frozenset()


def _labels(kind: Any, name: str) -> Any:
    """Names of the parts of an argument."""
    if isinstance(kind, tuple):
        return tuple(_labels(part, f"{name}[{i}]") for i, part in enumerate(kind))
    return name
