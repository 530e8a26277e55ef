"""What a compiled kernel needs: registers, spills, stack, shared memory, and its texts.

Triton's wheel has the tools of CUDA that say it, so no GPU is needed.
"""

from __future__ import annotations

import re
import shutil
import subprocess  # nosec B404
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from triton import knobs
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

REGISTERS = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
STACK = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", re.ASCII
)
UNKNOWN_GPU = "Cannot decode architecture"  # as nvdisasm says it
TOOL_S = 60.0


class Resources(NamedTuple):
    """What `ptxas -v` says of a kernel; bytes of stack and spills are those of a thread."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int


class ToolFailed(Exception):
    """A tool of CUDA failed, or printed nothing that is understood."""


def resources(compiled: Any, capability: int) -> Resources:
    """What a kernel needs. ptxas compiles its PTX again, with the options that Triton gave it.

    Triton drops what ptxas printed the first time.

    Args:
        compiled: a `triton.compiler.CompiledKernel` for NVIDIA GPUs.
        capability: of the GPU that it was compiled for.

    Raises:
        ToolFailed: ptxas does not say it.
    """
    options = ["-v", "-lineinfo", "--regAllocOptLevel=2"]
    if not compiled.metadata.enable_fp_fusion:
        options.append("--fmad=false")
    if extra := compiled.metadata.ptx_options:
        options += extra.split(" ")
    architecture = sm_arch_from_capability(capability)
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder, "kernel.ptx")
        ptx.write_text(compiled.asm["ptx"])
        command = [get_ptxas(capability).path, *options, f"--gpu-name={architecture}", str(ptx)]
        printed = _output([*command, "-o", str(Path(folder, "kernel.cubin"))], stderr=True)
    return parse_ptxas(printed)


def parse_ptxas(printed: str) -> Resources:
    """The resources in what `ptxas -v` prints about a kernel, whose functions are all inlined."""
    registers, stack = REGISTERS.search(printed), STACK.search(printed)
    if registers is None or stack is None:
        raise ToolFailed(f"ptxas printed no registers: {printed[:200]}")
    shared = SHARED.search(printed)
    frame, stores, loads = map(int, stack.groups())
    static = 0 if shared is None else int(shared[1])
    return Resources(int(registers[1]), frame, stores, loads, static)


def sass(cubin: bytes) -> str:
    """The machine code of a kernel as text, or a comment that says why it cannot be had.

    Triton 3.6 compiles for GPUs that its own nvdisasm does not know. The one of a CUDA toolkit on
    this machine may know them.

    Raises:
        ToolFailed: nvdisasm fails for another reason.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        # The analysis of the data flow changes nothing in the text and takes a quarter of the time.
        options = ("-c", "-ndf", file.name)
        try:
            return _output([knobs.nvidia.nvdisasm.path, *options])
        except ToolFailed as error:
            if UNKNOWN_GPU not in str(error):
                raise
            reason = str(error)
        if newer := shutil.which("nvdisasm"):
            try:
                return _output([newer, *options])
            except ToolFailed as error:
                reason = str(error)
    return f"// There is no text of the machine code: {reason.strip()}\n"


def _output(command: Sequence[str], *, stderr: bool = False) -> str:
    """What a tool prints. Its path is that of Triton's wheel."""
    try:
        done = subprocess.run(  # noqa: PLW1510  # nosec B603
            command, capture_output=True, text=True, timeout=TOOL_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolFailed(f"{Path(command[0]).name}: {error}") from None
    if done.returncode:
        raise ToolFailed(f"{Path(command[0]).name}: {done.stderr[:500]}")
    return done.stderr if stderr else done.stdout
