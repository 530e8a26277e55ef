"""Prints as JSON what compile reports say of the library's kernels, and what cuobjdump says of them.

    python -m tests.kernels.compile_reports.with_cuobjdump

It needs a process of its own, without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
import triton
from triton import knobs

from tests.kernels.compile_for_gpu import cases
from warpcall_kernels import ops
from warpcall_kernels.compile.architectures import ARCHITECTURES
from warpcall_kernels.compile.launches import LaunchRecorder

USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")


def cuobjdump(cubin: bytes) -> dict[str, int]:
    """What cuobjdump says of a kernel. Static shared memory includes what CUDA reserves, from sm_90 on."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found = USAGE.search(printed)
    assert found is not None, printed
    return dict(
        zip(("registers", "stack_bytes", "shared_bytes"), map(int, found.groups()), strict=True)
    )


def reports(name: str, few: list[Any]) -> list[dict[str, Any]]:
    """What both say of the kernels of some calls, compiled for one architecture."""
    recorder = LaunchRecorder(ARCHITECTURES[name])
    with recorder.recording():
        triton.knobs.runtime.interpret = True
        for op, case in few:
            op.function(**case.metas(), **op.check_params(case.params))
    cubins = [one.compiled.asm["cubin"] for one in recorder._launched.values()]
    return [
        {
            "gpu": name,
            "kernel": kernel.name,
            "report": kernel.resources._asdict(),
            "cuobjdump": cuobjdump(cubin),
            "occupancy": kernel.occupancy._asdict(),
            "texts": {text: one.nbytes for text, one in kernel.texts.items()},
            "ttir": kernel.texts["ttir"].text,
        }
        for kernel, cubin in zip(recorder.kernels(), cubins, strict=True)
    ]


def main() -> None:
    """Write the reports of a large case of each op for an H200, and of one call for all others."""
    found = reports("sm_90", list({op.name: (op, case) for op, case in cases(few=True)}.values()))
    permute = ops()["permute"]
    for name in ARCHITECTURES:
        found += reports(name, [(permute, permute.cases[0])])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
