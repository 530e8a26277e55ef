"""Kernels compiled before anyone calls: what the ops' cases and common calls launch.

Launchers are called on "meta" tensors (no memory, any size) while `JITFunction.run` compiles and does
not launch. Triton keeps what it compiled in its cache by source, arguments, options and target, not by
device: what was compiled for sm_90 without a GPU is found on an H200.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from triton import AsyncCompileMode, FutureKernel
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from warpcall_kernels import Op, ops
from warpcall_kernels.op.cases import Case

# A case in one dtype of a line stands for the others.
COMMON = (
    (torch.float32, torch.float16, torch.bfloat16),
    (torch.int32, torch.int64),
    (torch.bool, torch.uint8),
)


class Elsewhere:
    """A CUDA driver with one device that can be compiled for and not launched on."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True)
class Warmed:
    """What `warm` did: kernels in all, those of them that Triton's cache did not have, and failures."""

    kernels: int
    compiled: int
    failed: tuple[str, ...]


def warm(
    capability: int | None = None, threads: int = 0, calls: Iterable[tuple[Op, Case]] | None = None
) -> Warmed:
    """Compile what is not in Triton's cache yet.

    Args:
        capability: of the GPU, 90 for 9.0; None: of the current device, onto which the kernels are
            then loaded, so that their first call takes no longer than the second.
        calls: whose kernels; all of `cases()` if not given.
        threads: that compile at a time; 0: one for each CPU. Triton lets Python's lock go meanwhile.
    """
    kernels: list[Any] = []
    hits: list[bool] = []
    failed: dict[str, None] = {}  # in order, each once
    todo = list(
        cases() if calls is None else calls
    )  # now: modules imported below would get their kernels interpreted
    with (
        ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool,
        compiling(kernels.append, capability),
        _listening(lambda **told: hits.append(told["cache_hit"])),
    ):
        with AsyncCompileMode(pool, ignore_errors=True):
            for op, case in todo:
                with _noting(failed, f"{op.name} {case.name}"):
                    op.function(**case.metas(), **op.check_params(case.params))
        found: dict[str, Any] = {}
        for kernel in kernels:
            with _noting(failed, "a kernel"):
                done = kernel.result() if isinstance(kernel, FutureKernel) else kernel
                found[done.hash] = done
        if capability is None:
            for told in pool.map(_load, found.values()):
                failed |= told
    return Warmed(len(found), hits.count(False), tuple(failed))


def _load(kernel: Any) -> dict[str, None]:
    """Give it to the device; what failed."""
    failed: dict[str, None] = {}
    with _noting(failed, kernel.name):
        kernel.run  # noqa: B018  # a property: the first look loads
    return failed


@contextmanager
def _noting(failed: dict[str, None], what: str) -> Iterator[None]:
    """One failure is told, and the others go on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # whatever a compiler or driver raises
        failed[f"{what}: {type(error).__name__}: {error}"] = None


def cases() -> Iterator[tuple[Op, Case]]:
    """All cases and common calls of all ops, each in all common dtypes that the op takes."""
    for op in ops().values():
        for case in (*op.cases, *op.common):
            yield from ((op, variant) for variant in _in_common_dtypes(op, case))


def _in_common_dtypes(op: Op, case: Case) -> Iterator[Case]:
    allowed = {declared.name: declared.dtypes for declared in op.inputs}
    own = dict.fromkeys(sample.dtype for sample in case.inputs.values())
    lines = [next((line for line in COMMON if dtype in line), (dtype,)) for dtype in own]
    for chosen in itertools.product(*lines):
        to = dict(zip(own, chosen, strict=True))
        inputs = {
            name: replace(sample, dtype=to[sample.dtype]) for name, sample in case.inputs.items()
        }
        if all(sample.dtype in allowed[name] for name, sample in inputs.items()):
            yield replace(case, inputs=inputs)


@contextmanager
def compiling(on_kernel: Callable[[Any], object], capability: int | None = None) -> Iterator[None]:
    """Within it launchers compile, and launch nothing; each kernel is handed to `on_kernel`.

    Args:
        capability: of the GPU to compile for, from now on: this process can launch no more. None:
            the current device's.
    """
    run, interpret = JITFunction.run, triton.knobs.runtime.interpret

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        on_kernel(run(kernel, *args, grid=grid, warmup=True, **kwargs))

    if capability is not None:
        triton.runtime.driver.set_active(Elsewhere(capability))
    JITFunction.run = compile_only
    triton.knobs.runtime.interpret = True  # so that launchers take the kernel's road for "meta"
    try:
        yield
    finally:
        JITFunction.run = run
        triton.knobs.runtime.interpret = interpret


@contextmanager
def _listening(listener: Callable[..., None]) -> Iterator[None]:
    before = triton.knobs.compilation.listener
    triton.knobs.compilation.listener = listener
    try:
        yield
    finally:
        triton.knobs.compilation.listener = before
