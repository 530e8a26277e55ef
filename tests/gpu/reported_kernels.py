"""Prints as JSON what compile reports say of kernels, and what CUDA says of them once they are loaded.

    python -m tests.gpu.reported_kernels

Kernels of two large cases of each op are launched on the GPU, and then compiled for a report.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction

from tests.kernels.compile_for_gpu import cases
from warpcall_kernels.compile.architectures import ARCHITECTURES
from warpcall_kernels.compile.launches import LaunchRecorder

CUDA = ctypes.CDLL("libcuda.so.1")


def resident_blocks(compiled: Any) -> int:
    """Blocks of a loaded kernel that CUDA says fit on a multiprocessor."""
    found = ctypes.c_int()
    error = CUDA.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(found),
        ctypes.c_void_p(compiled.function),
        ctypes.c_int(compiled.metadata.num_warps * 32),
        ctypes.c_size_t(compiled.metadata.shared),
    )
    assert error == 0, error
    return found.value


def loaded(few: list[Any]) -> dict[str, Any]:
    """What CUDA says of each kernel that the calls launch."""
    found: dict[str, Any] = {}
    run = JITFunction.run

    def record(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = run(kernel, *args, **kwargs)
        found[_key(compiled)] = {
            "registers": compiled.n_regs,
            "spilled_words": compiled.n_spills,
            "resident_blocks": resident_blocks(compiled),
        }
        return compiled

    JITFunction.run = record
    try:
        for op, case in few:
            op.function(**case.tensors("cuda"), **op.check_params(case.params))
    finally:
        JITFunction.run = run
    return found


def _key(compiled: Any) -> str:
    constants = sorted((path, str(value)) for path, value in compiled.src.constants.items())
    signature = sorted(compiled.src.signature.items())
    multiples = sorted(map(str, compiled.src.attrs.items()))
    name, warps = compiled.metadata.name, compiled.metadata.num_warps
    return repr((name, warps, constants, signature, multiples))


def main() -> None:
    """Write the pairs, and the seconds that the reports took."""
    few = list(cases(few=True))
    seen = loaded(few)
    major, minor = torch.cuda.get_device_capability()
    recorder = LaunchRecorder(ARCHITECTURES[f"sm_{major}{minor}"])
    begin = time.perf_counter()
    with recorder.recording():
        triton.knobs.runtime.interpret = True  # for tensors on the device "meta"
        for op, case in few:
            op.function(**case.metas(), **op.check_params(case.params))
    keys = [_key(one.compiled) for one in recorder._launched.values()]
    pairs = [
        {
            "kernel": kernel.name,
            "report": {
                "registers": kernel.resources.registers,
                "stack_bytes": kernel.resources.stack_bytes,
                "resident_blocks": kernel.occupancy.blocks,
            },
            "cuda": seen.get(key),
        }
        for key, kernel in zip(keys, recorder.kernels(), strict=True)
    ]
    json.dump({"seconds": time.perf_counter() - begin, "pairs": pairs}, sys.stdout)


if __name__ == "__main__":
    main()
