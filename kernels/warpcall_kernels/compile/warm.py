"""Compiles ahead of their first call the kernels that the ops' cases and common calls launch.

Launchers are called on "meta" tensors, which have any size and no memory, while `JITFunction.run`
is replaced by a function that compiles and does not launch. The key of Triton's cache is made of
source, arguments, options and target, and not of the device. So an H200 finds what was compiled for
sm_90 on a machine without a GPU.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from triton import AsyncCompileMode, FutureKernel
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from warpcall_kernels import Op, ops
from warpcall_kernels.compile.architectures import REGISTERS, THREADS, Architecture, of_capability
from warpcall_kernels.op import launch
from warpcall_kernels.op.cases import Case

# A case in one dtype of a group is compiled in all dtypes of that group.
DTYPE_GROUPS = (
    (torch.float32, torch.float16, torch.bfloat16),
    (torch.int32, torch.int64),
    (torch.bool, torch.uint8),
)


class CompileOnlyDriver:
    """Replaces Triton's CUDA driver: one device that kernels are compiled for and never run on.

    What it says of the device is that of a typical GPU of its architecture.
    """

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    @functools.cached_property
    def utils(self) -> Utilities:
        return Utilities(of_capability(self._target.arch))


class Utilities:
    """The part of a driver that is asked about devices."""

    def __init__(self, target: Architecture) -> None:
        self._target = target

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self._target.block_shared_bytes,
            "max_num_regs": REGISTERS,
            "multiprocessor_count": self._target.multiprocessors,
            "warpSize": THREADS,
        }


@dataclass(frozen=True)
class Warmed:
    """What `warm` did: how many kernels there are, how many it had to compile, and the failures."""

    kernels: int
    compiled: int
    failed: tuple[str, ...]


def warm(
    capability: int | None = None,
    threads: int = 0,
    calls: Iterable[tuple[Op, Case]] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, count: None,
) -> Warmed:
    """Compile the kernels that are not in Triton's cache yet.

    Args:
        capability: compute capability to compile for, such as 90 for 9.0. None means that of the
            current device; then the kernels are also loaded onto it, so that their first call takes
            no longer than the second.
        threads: how many kernels to compile at a time; 0 means one for each CPU. Triton releases
            the interpreter lock while it compiles.
        calls: the calls whose kernels to compile; None means all of `cases()`.
        on_progress: called with how many kernels were compiled or found, and how many there are.
    """
    kernels: list[Any] = []
    hits: list[bool] = []
    failed: dict[str, None] = {}  # an ordered set
    todo = list(cases() if calls is None else calls)
    with (
        ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool,
        compiling(kernels.append, capability),
        _listening(lambda **event: hits.append(event["cache_hit"])),
    ):
        with AsyncCompileMode(pool, ignore_errors=True):
            for op, case in todo:
                with _recording(failed, f"{op.name} {case.name}"):
                    op.function(**case.metas(), **op.check_params(case.params))
            futures = dict.fromkeys(k.future for k in kernels if isinstance(k, FutureKernel))
            for done, _ in enumerate(as_completed(futures), 1):
                on_progress(done, len(futures))
        found: dict[str, Any] = {}
        for kernel in kernels:
            with _recording(failed, "a kernel"):
                compiled = kernel.result() if isinstance(kernel, FutureKernel) else kernel
                found[compiled.hash] = compiled
        if capability is None:
            for failures in pool.map(_load, found.values()):
                failed |= failures
    return Warmed(len(found), hits.count(False), tuple(failed))


def load_call(op: Op, case: Case) -> tuple[str, ...]:
    """Load the kernels of one call onto the current device, and return the failures.

    Kernels that Triton's cache has need some 10 ms. Others would be compiled here. Nothing may be
    launched meanwhile, by any thread.
    """
    kernels: list[Any] = []
    failed: dict[str, None] = {}
    with compiling(kernels.append), _recording(failed, f"{op.name} {case.name}"):
        op.function(**case.metas(), **op.check_params(case.params))
    for kernel in kernels:
        failed |= _load(kernel)
    return tuple(failed)


def _load(kernel: Any) -> dict[str, None]:
    """Load a kernel onto the current device and return the failures."""
    failed: dict[str, None] = {}
    with _recording(failed, kernel.name):
        kernel.run  # noqa: B018  # a property that loads the kernel when it is first read
    return failed


@contextmanager
def _recording(failed: dict[str, None], what: str) -> Iterator[None]:
    """Record an exception in `failed` instead of raising it, so that compilation goes on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # whatever a compiler or driver raises
        failed[f"{what}: {type(error).__name__}: {error}"] = None


def cases() -> Iterator[tuple[Op, Case]]:
    """Yield cases and common calls of all ops, each in all dtypes of its group that fit the op."""
    for op in ops().values():
        for case in (*op.cases, *op.common):
            yield from ((op, variant) for variant in _in_common_dtypes(op, case))


def _in_common_dtypes(op: Op, case: Case) -> Iterator[Case]:
    allowed = {declared.name: declared.dtypes for declared in op.inputs}
    own = dict.fromkeys(sample.dtype for sample in case.inputs.values())
    lines = [next((line for line in DTYPE_GROUPS if dtype in line), (dtype,)) for dtype in own]
    for chosen in itertools.product(*lines):
        to = dict(zip(own, chosen, strict=True))
        inputs = {
            name: replace(sample, dtype=to[sample.dtype]) for name, sample in case.inputs.items()
        }
        if all(sample.dtype in allowed[name] for name, sample in inputs.items()):
            yield replace(case, inputs=inputs)


@contextmanager
def compiling(on_kernel: Callable[[Any], object], capability: int | None = None) -> Iterator[None]:
    """A context in which launchers compile and launch nothing, and pass kernels to `on_kernel`.

    Args:
        on_kernel: called with each kernel, or with its future under `AsyncCompileMode`.
        capability: compute capability to compile for. This process can launch nothing afterwards.
            None means that of the current device.
    """
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        on_kernel(run(kernel, *args, grid=grid, warmup=True, **kwargs))

    if capability is not None:
        triton.runtime.driver.set_active(CompileOnlyDriver(capability))
    JITFunction.run = compile_only
    launch.take_metas(True)
    try:
        yield
    finally:
        JITFunction.run = run
        launch.take_metas(False)


@contextmanager
def _listening(listener: Callable[..., None]) -> Iterator[None]:
    before = triton.knobs.compilation.listener
    triton.knobs.compilation.listener = listener
    try:
        yield
    finally:
        triton.knobs.compilation.listener = before
