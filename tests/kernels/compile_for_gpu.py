"""Compiles every kernel that the ops' cases would launch, on a machine without a GPU.

    python -m tests.kernels.compile_for_gpu > report.json
    python -m tests.kernels.compile_for_gpu --all 90 --few 89 --few 100 isin > report.json

It needs a process of its own, without TRITON_INTERPRET, as `warpcall-server warm` does. Kernels
that are in Triton's cache are not compiled again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from warpcall_kernels import Op, ops
from warpcall_kernels.compile.warm import compiling
from warpcall_kernels.op.cases import Case
from warpcall_kernels.op.driver_launch import FORMATS, POINTER_BYTES, WARP, parameters_of
from warpcall_kernels.verified.inspection import Refused, inspect
from warpcall_kernels.verified.plan import POINTER, Kernel, Plan

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One compiled kernel: the first case that launches it, and the resources of a block."""

    op: str
    case: str
    kernel: str
    constants: str
    warps: int
    registers: int  # a thread
    stack_bytes: int  # a thread; spilled registers lie there
    shared_bytes: int  # a block
    packed_bytes: list[int]  # of each parameter, as a launch by the driver packs it
    parameter_bytes: list[int]  # the same by the PTX
    refused: str  # why it may not run as a verified kernel; empty if it may


class Compiler:
    """Collects kernels, each of them once."""

    def __init__(self) -> None:
        self.found: dict[str, Compiled] = {}
        self.now: tuple[Op, Case] | None = None

    def note(self, compiled: Any) -> None:
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
            packed_bytes=[*map(_packed_bytes, parameters_of(source.signature))],
            parameter_bytes=_parameter_bytes(compiled.asm["ptx"], compiled.metadata.name),
            refused=_refused(compiled),
        )


def _refused(compiled: Any) -> str:
    metadata = compiled.metadata
    kernel = Kernel(
        metadata.name,
        compiled.asm["cubin"],
        tuple(POINTER if p[0] == POINTER else p for p in parameters_of(compiled.src.signature)),
        (WARP * metadata.num_warps, 1, 1),
        metadata.shared,
        (metadata.num_ctas, 1, 1),
    )
    try:
        inspect(Plan(f"sm_{metadata.target.arch}", (kernel,), (), (), ()))
    except Refused as error:
        return str(error)
    return ""


def _packed_bytes(kind: str) -> int:
    return POINTER_BYTES if kind.startswith("*") else struct.calcsize(FORMATS[kind])


def _parameter_bytes(ptx: str, kernel: str) -> list[int]:
    """The bytes of each parameter of a kernel."""
    declared = re.search(rf"\.entry {kernel}\((.*?)\)", ptx, re.DOTALL)
    assert declared is not None
    return [int(bits) // 8 for bits in re.findall(r"\.param \.[bfsu](\d+)", declared[1])]


def _resources(cubin: bytes) -> tuple[int, int]:
    """The registers and the bytes of stack of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        printed = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", printed)
    if found is None:
        raise RuntimeError(f"cuobjdump printed no registers: {printed}")
    return int(found[1]), int(found[2])


def cases(*, few: bool, names: Sequence[str] = ()) -> Iterator[tuple[Op, Case]]:
    """Yield all cases, or two large ones of each op; of the ops with these names, or of all."""
    for op in (op for op in ops().values() if not names or op.name in names):
        own = [case for case in op.cases if case.size == "large"][:2] if few else op.cases
        yield from ((op, case) for case in own)


def main() -> None:
    """Write a JSON report of the kernels and of the failures to stdout, by capability."""
    parser = argparse.ArgumentParser()
    add = functools.partial(parser.add_argument, type=int, action="append", metavar="CAPABILITY")
    add(
        "--all",
        default=[],
        help="compile all cases for this GPU; by default for 90, which is sm_90",
    )
    add("--few", default=[], help="compile two large cases of each op for it")
    parser.add_argument("ops", nargs="*", metavar="OP", help="names of ops; by default all")
    given = parser.parse_args()
    if not given.few:
        given.all = given.all or [90]
    reports = {
        capability: report(capability, list(cases(few=few, names=given.ops)))
        for few, capabilities in ((False, given.all), (True, given.few))
        for capability in capabilities
    }
    json.dump(reports, sys.stdout)


def report(capability: int, pairs: Sequence[tuple[Op, Case]]) -> dict[str, Any]:
    """The kernels of these calls, compiled for a GPU, and the calls that failed."""
    compiler = Compiler()
    failed: list[str] = []
    with compiling(compiler.note, capability):
        for op, case in pairs:
            compiler.now = (op, case)
            try:
                op.function(**case.metas(), **op.check_params(case.params))
            except Exception as error:  # noqa: BLE001  # a report of all failures beats the first
                failed.append(f"{op.name} {case.name}: {type(error).__name__}: {error}")
    kernels = [dataclasses.asdict(k) for k in compiler.found.values()]
    return {"kernels": kernels, "failed": failed}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
