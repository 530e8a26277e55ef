"""GPU architectures that kernels can be compiled for, and the blocks that fit on a multiprocessor."""

from __future__ import annotations

from typing import NamedTuple

import torch

from warpcall_kernels.op.errors import InvalidInput, brief, listed

KIB = 1 << 10
REGISTERS = 64 * KIB  # of a multiprocessor, of 32 bits each
REGISTER_UNIT = 256  # registers are allocated to a warp in multiples of this
WARP_UNIT = 4  # a multiprocessor has four parts, each with a quarter of the registers
SHARED_UNIT = 128  # bytes; shared memory is allocated to a block in multiples of this
RESERVED_SHARED = KIB  # bytes of each block that CUDA uses itself
THREADS = 32  # of a warp


class Architecture(NamedTuple):
    """What an architecture can hold, and a typical GPU of it.

    The numbers are those of the table "Technical Specifications per Compute Capability" in the CUDA
    C++ Programming Guide.

    Attributes:
        capability: compute capability, 90 for 9.0.
        warps: the most warps on a multiprocessor.
        blocks: the most blocks on a multiprocessor.
        shared_bytes: shared memory of a multiprocessor.
        device: name of the GPU that code asks about, such as for its number of multiprocessors.
        multiprocessors: how many this GPU has.
    """

    capability: int
    warps: int
    blocks: int
    shared_bytes: int
    device: str
    multiprocessors: int

    @property
    def name(self) -> str:
        """The name, such as "sm_90"."""
        return f"sm_{self.capability}"

    @property
    def block_shared_bytes(self) -> int:
        """Shared memory that a block may have."""
        return self.shared_bytes - RESERVED_SHARED


ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture(80, 64, 32, 164 * KIB, "NVIDIA A100", 108),
        Architecture(86, 48, 16, 100 * KIB, "NVIDIA A40", 84),
        Architecture(87, 48, 16, 164 * KIB, "NVIDIA Jetson AGX Orin", 16),
        Architecture(89, 48, 24, 100 * KIB, "NVIDIA L40S", 142),
        Architecture(90, 64, 32, 228 * KIB, "NVIDIA H200", 132),
        Architecture(100, 64, 32, 228 * KIB, "NVIDIA B200", 148),
        Architecture(103, 64, 32, 228 * KIB, "NVIDIA B300", 148),
        Architecture(120, 48, 24, 100 * KIB, "NVIDIA RTX PRO 6000 Blackwell", 188),
    )
}


class Occupancy(NamedTuple):
    """How many blocks and warps of a kernel a multiprocessor can hold at a time.

    Attributes:
        warps: of the blocks that fit.
        max_warps: that the architecture allows.
        blocks: 0 means that the kernel cannot be launched.
        limited_by: what allows no further block: "registers", "shared memory", "warps", "blocks".
    """

    warps: int
    max_warps: int
    blocks: int
    limited_by: list[str]


def architecture(name: object) -> Architecture:
    """The architecture of a name such as "sm_90". Raises InvalidInput if there is none."""
    found = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidInput("gpu", f"gpu must be one of {listed(ARCHITECTURES)}, got {brief(name)}")
    return found


def architecture_of(device: torch.device | str) -> str:
    """The name of the architecture of a GPU of this process, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def of_capability(capability: int) -> Architecture:
    """The architecture of this compute capability, or one with the least shared memory if it is not known."""
    least = min(ARCHITECTURES.values(), key=lambda one: one.shared_bytes)
    return ARCHITECTURES.get(f"sm_{capability}", least)


def occupancy(target: Architecture, registers: int, shared_bytes: int, warps: int) -> Occupancy:
    """The theoretical occupancy, as NVIDIA's occupancy calculator (`cuda_occupancy.h`) computes it.

    Args:
        registers: of a thread.
        shared_bytes: of a block, static and dynamic.
        warps: of a block.
    """
    of_warp = _rounded_up(max(registers, 1) * THREADS, REGISTER_UNIT)
    of_block = _rounded_up(shared_bytes + RESERVED_SHARED, SHARED_UNIT)
    with_registers = REGISTERS // of_warp // WARP_UNIT * WARP_UNIT
    most = {
        "registers": with_registers // warps,
        "shared memory": target.shared_bytes // of_block,
        "warps": target.warps // warps,
        "blocks": target.blocks,
    }
    blocks = min(most.values())
    limited_by = [name for name, number in most.items() if number == blocks]
    return Occupancy(blocks * warps, target.warps, blocks, limited_by)


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
