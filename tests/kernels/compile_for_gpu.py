"""Compiles, without a GPU, every kernel that the ops' cases would launch, with its shipped tiles.

    python -m tests.kernels.compile_for_gpu > report.json
    python -m tests.kernels.compile_for_gpu --capability 100 --few > report.json

Runs without TRITON_INTERPRET, so in a process of its own. The public functions are called on "meta"
tensors (no memory, any size) with `JITFunction.run` replaced by one that compiles and does not launch.
What Triton compiled before, it finds in its cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from warpcall_kernels import Op, ops
from warpcall_kernels._cases import Case

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
    """A CUDA driver with one device that can be compiled for and not launched on."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiler:
    """Collects each kernel that is launched while it is installed, once, compiled."""

    def __init__(self) -> None:
        self.found: dict[str, Compiled] = {}
        self.now: tuple[Op, Case] | None = None

    def install(self, capability: int = 90) -> None:
        """From now on compile for a GPU of that compute capability, 90 for 9.0."""
        compile_only = JITFunction.run

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            triton.knobs.runtime.interpret = False
            try:
                compiled = compile_only(kernel, *args, grid=grid, warmup=True, **kwargs)
            finally:
                triton.knobs.runtime.interpret = True
            self._note(compiled)
            return compiled

        triton.runtime.driver.set_active(FakeDriver(capability))
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


def cases(*, few: bool) -> Iterator[tuple[Op, Case]]:
    """All cases, or two large ones of each op."""
    for op in ops().values():
        own = [case for case in op.cases if case.size == "large"][:2] if few else op.cases
        yield from ((op, case) for case in own)


def main() -> None:
    """Write a JSON report: the kernels, and what failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--capability", type=int, default=90, help="of the GPU: 90 is sm_90")
    parser.add_argument("--few", action="store_true", help="two large cases of each op, not all")
    given = parser.parse_args()
    pairs = list(cases(few=given.few))
    compiler = Compiler()
    compiler.install(given.capability)
    failed: list[str] = []
    for op, case in pairs:
        compiler.now = (op, case)
        try:
            op.function(**case.metas(), **op.check_params(case.params))
        except Exception as error:  # noqa: BLE001  # a report of all failures beats the first
            failed.append(f"{op.name} {case.name}: {type(error).__name__}: {error}")
    kernels = [dataclasses.asdict(k) for k in compiler.found.values()]
    json.dump({"kernels": kernels, "failed": failed}, sys.stdout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
