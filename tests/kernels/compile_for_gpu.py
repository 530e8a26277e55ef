"""Compiles for sm_90, without a GPU, every kernel that the ops' cases would launch.

    python -m tests.kernels.compile_for_gpu --seconds 75 > report.json

Runs without TRITON_INTERPRET, so in a process of its own. The public functions are called on "meta"
tensors (no memory, any size) with `JITFunction.run` replaced by one that compiles and does not launch.
What Triton compiled before, it finds in its cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from warpcall_kernels import Op, ops
from warpcall_kernels._cases import Case

TARGET = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One kernel as compiled: for which case first, and what a block of it takes."""

    op: str
    case: str
    kernel: str
    constants: str
    warps: int
    registers: int  # a thread
    stack_bytes: int  # a thread; what spills lies there
    shared_bytes: int  # a block


class FakeDriver:
    """A CUDA driver with one sm_90 device that can be compiled for and not launched on."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiler:
    """Collects each kernel that is launched while it is installed, once, compiled."""

    def __init__(self) -> None:
        self.found: dict[str, Compiled] = {}
        self.now: tuple[Op, Case] | None = None

    def install(self) -> None:
        compile_only = JITFunction.run

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            triton.knobs.runtime.interpret = False
            try:
                compiled = compile_only(kernel, *args, grid=grid, warmup=True, **kwargs)
            finally:
                triton.knobs.runtime.interpret = True
            self._note(compiled)
            return compiled

        triton.runtime.driver.set_active(FakeDriver())
        JITFunction.run = run
        triton.knobs.runtime.interpret = True  # launchers take the kernel's road off the GPU too

    def _note(self, compiled: Any) -> None:
        if compiled.hash in self.found or self.now is None:
            return
        op, case = self.now
        registers, stack = _resources(compiled.asm["cubin"])
        source = compiled.src
        constants = {source.fn.arg_names[path[0]]: v for path, v in source.constants.items()}
        self.found[compiled.hash] = Compiled(
            op=op.name,
            case=case.name,
            kernel=compiled.metadata.name,
            constants=" ".join(f"{k}={v}" for k, v in constants.items() if k.isupper()),
            warps=compiled.metadata.num_warps,
            registers=registers,
            stack_bytes=stack,
            shared_bytes=compiled.metadata.shared,
        )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    if found is None:
        raise RuntimeError(f"cuobjdump told no registers: {told}")
    return int(found[1]), int(found[2])


def in_turns() -> Iterator[tuple[Op, Case]]:
    """All cases, large ones first, one of each op in turn, so that a short run sees every op."""
    for size in ("large", "small"):
        lists = [[(op, c) for c in op.cases if c.size == size] for op in ops().values()]
        for turn in itertools.zip_longest(*lists):
            yield from (pair for pair in turn if pair is not None)


def main() -> None:
    """Write a JSON report: the kernels, what failed, and how many cases there was no time for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=75.0, help="start no case after this time")
    seconds = parser.parse_args().seconds
    pairs = list(in_turns())
    compiler = Compiler()
    compiler.install()
    failed: list[str] = []
    skipped = 0
    begin = time.monotonic()
    for op, case in pairs:
        if time.monotonic() - begin > seconds:
            skipped += 1
            continue
        compiler.now = (op, case)
        try:
            op.function(**case.metas(), **op.check_params(case.params))
        except Exception as error:  # noqa: BLE001  # a report of all failures beats the first
            failed.append(f"{op.name} {case.name}: {type(error).__name__}: {error}")
    kernels = [dataclasses.asdict(k) for k in compiler.found.values()]
    json.dump({"kernels": kernels, "failed": failed, "skipped": skipped}, sys.stdout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
