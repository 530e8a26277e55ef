"""Compile reports: what the Triton kernels of an implementation need on a GPU, and their texts.

The server compiles for an architecture and needs no GPU. The SDK returns these types, and the server
builds its answers and its OpenAPI from them: this module is the only list of their fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from warpcall._extras.tables import Table
from warpcall.jobs import Payload

TextName = Literal["ttir", "ttgir", "ptx", "sass"]
"""A text of a kernel: Triton's two intermediate representations, PTX, and the machine code."""

TEXT_NAMES: tuple[TextName, ...] = get_args(TextName)
ARCHITECTURES = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""The architectures that the server can compile for."""
GPU = "sm_90"
"""The architecture that kernels are compiled for by default."""
ADDRESS = re.compile(r"/\*[0-9a-f]{4,}\*/ +")  # before an instruction of machine code


@dataclass(frozen=True, kw_only=True)
class KernelText(Payload):
    """A text of a kernel."""

    text: str
    """The text, or its first lines if it is long."""
    nbytes: int
    """Size of the whole text in bytes of UTF-8."""
    cut: bool
    """Whether lines are missing at the end of `text`."""

    def __repr__(self) -> str:
        return f"KernelText of {self.nbytes:,} bytes{', cut' * self.cut}: see text"


@dataclass(frozen=True, kw_only=True)
class KernelReport(Payload):
    """A Triton kernel, compiled for the architecture with the arguments of its launch."""

    name: str
    """Name of the kernel."""
    config: str
    """Configuration of the autotuner; empty if the kernel has none. There is a report for each
    configuration that the autotuner would time."""
    launches: int
    """How often it is launched in one call of the implementation."""
    grid: list[int]
    """Programs along three axes, of the first launch."""
    arguments: dict[str, str]
    """Triton's type of each argument that is no constant, and whether it is a multiple of 16."""
    constants: dict[str, str]
    """Value of each constant (`tl.constexpr`, and arguments that are 1 or None), as text."""
    registers: int
    """Registers of a thread."""
    spill_store_bytes: int
    """Bytes that a thread writes because it has too few registers."""
    spill_load_bytes: int
    """Bytes that a thread reads because it has too few registers."""
    stack_bytes: int
    """Bytes of stack of a thread."""
    static_shared_bytes: int
    """Shared memory of a block that the kernel declares itself, in bytes."""
    dynamic_shared_bytes: int
    """Shared memory of a block that the launch asks for, in bytes."""
    warps: int
    """Warps of a block."""
    stages: int
    """Stages of Triton's software pipeline."""
    ctas: int
    """Blocks of a cluster."""
    resident_blocks: int
    """Blocks that fit on a multiprocessor at a time; 0 means that the kernel cannot be launched."""
    resident_warps: int
    """Warps of these blocks."""
    max_warps: int
    """Warps that the architecture allows on a multiprocessor."""
    limited_by: list[str]
    """Why no further block fits: "registers", "shared memory", "warps" or "blocks"."""
    texts: dict[str, KernelText]
    """The texts that were asked for, by TextName."""

    @property
    def occupancy(self) -> float:
        """The theoretical occupancy: `resident_warps` as a share of `max_warps`."""
        return self.resident_warps / self.max_warps

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, static and dynamic."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    @property
    def label(self) -> str:
        """The name, with the configuration of the autotuner if there is one."""
        return f"{self.name} ({self.config})" if self.config else self.name

    def comparable_lines(self, name: TextName) -> list[str]:
        """Lines of a text, as they are compared with those of another version.

        Machine code comes without addresses: with one more instruction all addresses after it would
        differ. Jumps lead to labels.
        """
        lines = self.texts[name].text.expandtabs().splitlines()
        return [ADDRESS.sub("", line) for line in lines] if name == "sass" else lines


@dataclass(frozen=True, kw_only=True, repr=False)
class CompileReport(Table, Payload):
    """What the kernels need that an implementation launches in one case."""

    SHOWN: ClassVar = (
        "kernel", "registers", "spills", "stack", "shared", "warps", "stages", "occupancy",
    )  # fmt: skip

    op: str
    """Name of the op, "user/name" of a problem."""
    implementation: str | None
    """Name of the implementation, an uploaded one with its version; null for source that came with
    the request."""
    case: str
    """Key of the case, such as "permute x=F32[8,8] dims=1,0"."""
    gpu: str
    """The architecture, such as "sm_90"."""
    triton: str
    """Version of Triton."""
    ptxas: str
    """Version of NVIDIA's assembler."""
    kernels: list[KernelReport]
    """The kernels in the order of their first launches; empty if it launches no Triton kernel."""
    failures: list[str]
    """Configurations of autotuners that cannot be compiled, with the reason. An autotuner leaves
    them out."""
    stopped: str
    """Why the implementation ended early, with the line: launches after that are missing. Empty if
    it ran to its end."""

    def to_rows(self) -> list[dict[str, object]]:
        """A row for each kernel, without its texts."""
        return [
            {
                "kernel": one.label,
                "registers": one.registers,
                "spills": one.spill_store_bytes + one.spill_load_bytes,
                "stack": one.stack_bytes,
                "shared": one.shared_bytes,
                "warps": one.warps,
                "stages": one.stages,
                "occupancy": one.occupancy,
            }
            for one in self.kernels
        ]


def paired(
    new: CompileReport, old: CompileReport
) -> list[tuple[KernelReport | None, KernelReport | None]]:
    """The kernels of `new`, each with that of `old` with its name and configuration, in their order.

    A kernel without another one has None in its place; those of `old` are the last. If each report
    has one kernel, these are a pair, whatever their names are.
    """
    left = list(old.kernels)
    found: list[tuple[KernelReport | None, KernelReport | None]] = []
    for one in new.kernels:
        same = [k for k in left if (k.name, k.config) == (one.name, one.config)]
        if not same and len(old.kernels) == len(new.kernels) == 1:
            same = left
        found.append((one, same[0] if same else None))
        if same:
            left.remove(same[0])
    return [*found, *((None, one) for one in left)]
