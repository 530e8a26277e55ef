"""Cubins of kernels in PTX, which say what no compiler of a language would write."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from triton.backends.nvidia.compiler import get_ptxas

from warpcall_kernels.verified.plan import Kernel, Plan, Triple

HEAD = """
.version {version}
.target {target}
.address_size 64
{globals}
.visible .entry k({parameters}) {directives} {{
    .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<16>; .reg .f32 %f<8>;
    ld.param.u64 %d1, [p0];
    {body}
    ret;
}}
"""


@functools.cache
def cubin(
    body: str = "st.global.u64 [%d1], %d1;",
    *,
    declarations: str = "",
    directives: str = "",
    parameters: tuple[str, ...] = ("u64",),
    target: str = "sm_90a",
    relocatable: bool = False,
) -> bytes:
    """The cubin of a kernel `k`, whose first parameter is a pointer in %d1.

    Args:
        body: its instructions. Registers are %p0 to %p3, %r0 to %r15, %d0 to %d15, %f0 to %f7.
        declarations: before the kernel, such as of variables.
        directives: of the kernel, such as ".reqntid 64".
    """
    kinds = [kind if "{}" in kind else f"{kind} {{}}" for kind in parameters]
    declared = ", ".join(f".param .{kind.format(f'p{n}')}" for n, kind in enumerate(kinds))
    capability = int(target[3:].rstrip("af"))
    text = HEAD.format(
        version="8.8" if capability >= 100 else "8.0",
        target=target,
        globals=declarations,
        parameters=declared,
        directives=directives,
        body=body,
    )
    with tempfile.TemporaryDirectory() as name:
        source, made = Path(name, "k.ptx"), Path(name, "k.cubin")
        source.write_text(text)
        command = [get_ptxas(capability).path, f"--gpu-name={target}", source, "-o", made]
        if relocatable:
            command.append("--compile-only")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return made.read_bytes()


def plan_of(
    cubin: bytes,
    *,
    name: str = "k",
    parameters: tuple[str, ...] = ("*",),
    threads: Triple = (32, 1, 1),
    shared_bytes: int = 0,
    cluster: Triple = (1, 1, 1),
    gpu: str = "sm_90",
) -> Plan:
    """A plan with this kernel only."""
    kernel = Kernel(name, cubin, parameters, threads, shared_bytes, cluster)
    return Plan(gpu, (kernel,), (), (), ())
