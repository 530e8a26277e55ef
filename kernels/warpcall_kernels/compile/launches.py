"""Records the launches of Triton kernels: on a GPU, or compiled for one that need not be there.

Without a GPU a launch compiles its kernel and leaves the outputs as they were allocated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.compiler.errors import CompilationError
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import PTXASError
from triton.runtime.jit import JITFunction

from warpcall_kernels.compile.architectures import KIB, Architecture, Occupancy, occupancy
from warpcall_kernels.compile.resources import Resources, resources, sass
from warpcall_kernels.compile.warm import CompileOnlyDriver
from warpcall_kernels.op.launch import Launch

MAX_KERNELS = 32
MAX_ARGUMENTS = 128  # of a kernel in a report
MAX_CHARS = 200  # of a value, a type, a name or a configuration
MAX_TEXT_BYTES = 256 * KIB
MAX_TEXTS_BYTES = 2 * KIB * KIB  # of all kernels together
TEXTS = ("ttir", "ttgir", "ptx", "sass")  # the last one is disassembled
# Lines that define locations in the source, and what refers to them. Locations may be nested.
_PART = r'[^()"]|"[^"]*"'
_NESTED = rf"\((?:{_PART}|\((?:{_PART})*+\))*+\)"
LOCATIONS = re.compile(rf"^#loc.*\n| loc\((?:{_PART}|{_NESTED})*+\)", re.MULTILINE)


class TooManyKernels(Exception):
    """A function launched more different kernels than a report has."""


@dataclass(frozen=True)
class KernelText:
    """A text of a kernel: at most MAX_TEXT_BYTES of its `nbytes` bytes, in whole lines."""

    text: str
    nbytes: int


@dataclass(frozen=True)
class LaunchedKernel:
    """One kernel that was compiled, and what it needs.

    Attributes:
        config: of the autotuner, as text; empty without one.
        grid: programs along three axes, of the first launch.
        launches: how often it was launched.
        arguments: type of each argument that is not a constant, and whether it is a multiple of 16.
        constants: value of each constant, as text.
        shared_bytes: of a block, static and dynamic.
    """

    name: str
    config: str
    grid: tuple[int, ...]
    launches: int
    arguments: Mapping[str, str]
    constants: Mapping[str, str]
    resources: Resources
    shared_bytes: int
    warps: int
    stages: int
    ctas: int
    occupancy: Occupancy
    texts: Mapping[str, KernelText]


@dataclass
class _Launched:
    compiled: Any
    config: str
    grid: tuple[int, ...]
    launches: int = 1


class LaunchRecorder:
    """Compiles what is launched within `recording`, or notes it within `observing`, each kernel once.

    Attributes:
        failures: of configurations of autotuners that cannot be compiled, and would not be chosen.
        error_line: file and line of the last kernel that could not be compiled; None if unknown.
    """

    def __init__(self, target: Architecture) -> None:
        self.failures: list[str] = []
        self.error_line: tuple[str, int] | None = None
        self._target = target
        self._launched: dict[tuple[str, str], _Launched] = {}
        self._config = ""
        self._tuner: Any = None  # the autotuner that launches its kernel now
        self._timing = False  # whether it times its configurations

    def __len__(self) -> int:
        return len(self._launched)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context in which launches compile for the architecture. This process launches nothing
        afterwards.
        """
        run, tune = JITFunction.run, Autotuner.run

        def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            try:
                compiled = run(kernel, *args, grid=grid, warmup=True, **kwargs)
            except CompilationError as error:
                self.error_line = line_of(error, kernel)
                raise
            if compiled is not None:
                self._note(compiled, _evaluated(kernel, grid, args, kwargs))
            return compiled

        def compile_all(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            return self._compile_configs(tuner, args, kwargs)

        triton.runtime.driver.set_active(_Driver(self._target.capability))
        triton.knobs.compilation.always_compile = True  # a cached entry may lack its texts
        JITFunction.run, Autotuner.run = compile_only, compile_all
        try:
            yield
        finally:
            JITFunction.run, Autotuner.run = run, tune

    @contextmanager
    def observing(self) -> Iterator[None]:
        """A context in which launches run as usual, on a GPU of the architecture.

        Of an autotuner only the configuration that it chooses counts. Kernels are compiled anew,
        because a cached one may lack its texts.
        """
        run, tune, bench, ours = JITFunction.run, Autotuner.run, Autotuner._bench, Launch.__call__

        def noting(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            compiled = run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            if compiled is not None and not warmup and not self._timing:
                chosen = getattr(self._tuner, "best_config", None)
                self._config = "" if chosen is None else str(chosen)[:MAX_CHARS]
                self._note(compiled, _evaluated(kernel, grid, args, kwargs))
            return compiled

        def tuning(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            outer, self._tuner = self._tuner, tuner
            try:
                return tune(tuner, *args, **kwargs)
            finally:
                self._tuner = outer

        def timing(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            self._timing = True
            try:
                return bench(tuner, *args, **kwargs)
            finally:
                self._timing = False

        def launching(self: Launch, *tensors: Tensor | None) -> None:
            self.by_triton(*tensors)  # a repeated launch would bypass Triton

        JITFunction.run, Autotuner.run, Autotuner._bench = noting, tuning, timing
        Launch.__call__ = launching  # type: ignore[method-assign]
        try:
            with triton.knobs.compilation.scope():
                triton.knobs.compilation.always_compile = True
                triton.knobs.compilation.store_binary_only = False
                yield
        finally:
            JITFunction.run, Autotuner.run, Autotuner._bench = run, tune, bench
            Launch.__call__ = ours  # type: ignore[method-assign]

    def kernels(self) -> list[LaunchedKernel]:
        """What was launched, in the order of the first launches.

        Raises:
            ToolFailed: a tool of CUDA does not say what a kernel needs.
        """
        capability, launched = self._target.capability, [*self._launched.values()]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            needs = pool.map(lambda one: resources(one.compiled, capability), launched)
            codes = pool.map(lambda one: sass(one.compiled.asm["cubin"]), launched)
            left = MAX_TEXTS_BYTES
            found = []
            for one, needed, code in zip(launched, needs, codes, strict=True):
                # Locations would be half of the text of Triton's representations, and differ
                # between versions of a source whose kernels are equal.
                whole = {
                    name: LOCATIONS.sub("", str(one.compiled.asm[name])) for name in TEXTS[:-1]
                }
                texts = {}
                for name, text in {**whole, TEXTS[-1]: code}.items():
                    texts[name] = _cut(text, min(MAX_TEXT_BYTES, left))
                    left -= len(texts[name].text.encode())
                found.append(_described(one, self._target, needed, texts))
        return found

    def _note(self, compiled: Any, grid: tuple[int, ...]) -> None:
        key = (compiled.hash, self._config)
        if key in self._launched:
            self._launched[key].launches += 1
            return
        if len(self._launched) == MAX_KERNELS:
            raise TooManyKernels(f"it launches more than {MAX_KERNELS} different kernels")
        self._launched[key] = _Launched(compiled, self._config, grid)

    def _compile_configs(self, tuner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compile each configuration that the autotuner would time, and return the last kernel."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs
        compiled = None
        try:
            for config in configs:
                self._config = str(config)[:MAX_CHARS]
                chosen = config.all_kwargs()
                if config.pre_hook is not None:
                    config.pre_hook({**tuner.nargs, **kwargs, **chosen})
                try:
                    compiled = tuner.fn.run(*args, **kwargs, **chosen)
                except (CompilationError, PTXASError) as error:
                    self._fail(error)
        finally:
            self._config, tuner.nargs = "", None
        return compiled

    def _fail(self, error: Exception) -> None:
        if len(self.failures) < MAX_KERNELS:
            message = " ".join(str(error).split())[:MAX_CHARS]
            self.failures.append(f"{self._config}: {type(error).__name__}: {message}")


class _Driver(CompileOnlyDriver):
    """A driver for code that also asks which device is the current one."""

    def get_current_device(self) -> int:
        return int(self._target.arch)  # Triton keeps compiled kernels by device

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def _evaluated(
    kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[int, ...]:
    """The numbers of programs of a launch along three axes."""
    if callable(grid):
        defaults = {p.name: p.default for p in kernel.params if p.has_default}
        grid = grid({**defaults, **dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
    return (*(int(number) for number in grid), 1, 1, 1)[:3]


def line_of(error: CompilationError, kernel: Any) -> tuple[str, int] | None:
    """The file and the line that a kernel could not be compiled for; None if it is in another one.

    Triton counts lines from the `def` of the function.
    """
    while isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    number = getattr(error.node, "lineno", None)
    if number is None or error.src != kernel.src:
        return None
    head = next(i for i, line in enumerate(kernel.raw_src) if line.lstrip().startswith("def "))
    return kernel.fn.__code__.co_filename, kernel.starting_line_number + head + number - 1


def _described(
    one: _Launched, target: Architecture, needs: Resources, texts: Mapping[str, KernelText]
) -> LaunchedKernel:
    source, metadata = one.compiled.src, one.compiled.metadata
    names = source.fn.arg_names
    multiples = {
        path[0] for path, found in source.attrs.items() if ["tt.divisibility", 16] in found
    }
    arguments = {
        name: f"{type_}, multiple of 16" if number in multiples else type_
        for number, (name, type_) in enumerate(source.signature.items())
        if str(type_) != "constexpr"
    }
    constants = {
        ".".join((names[path[0]], *map(str, path[1:]))): repr(getattr(value, "value", value))
        for path, value in source.constants.items()
    }
    shared = int(metadata.shared) + needs.static_shared_bytes
    return LaunchedKernel(
        name=str(metadata.name)[:MAX_CHARS],
        config=one.config,
        grid=one.grid,
        launches=one.launches,
        arguments=_bounded(arguments),
        constants=_bounded(constants),
        resources=needs,
        shared_bytes=shared,
        warps=int(metadata.num_warps),
        stages=int(metadata.num_stages),
        ctas=int(metadata.num_ctas),
        occupancy=occupancy(target, needs.registers, shared, int(metadata.num_warps)),
        texts=texts,
    )


def _bounded(values: Mapping[str, object]) -> dict[str, str]:
    shown = list(values.items())[:MAX_ARGUMENTS]
    return {str(name)[:MAX_CHARS]: str(value)[:MAX_CHARS] for name, value in shown}


def _cut(text: str, most: int) -> KernelText:
    """The first lines of a text that have at most `most` bytes together."""
    encoded = text.encode(errors="backslashreplace")
    kept = encoded if len(encoded) <= most else encoded[: encoded.rfind(b"\n", 0, max(0, most)) + 1]
    return KernelText(kept.decode(), len(encoded))
