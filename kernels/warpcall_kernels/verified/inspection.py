"""Inspects compiled kernels: refuses what could keep state between launches or reach the host.

A cubin may have only sections that are known here, each of its known kind. So what a newer compiler adds
is refused until someone has looked at it, and nothing hides behind another name.

Two things that live longer than a launch are allowed, because honest kernels need them:
- Constants (`.nv.constant3`): kernels read them with instructions that cannot write. ptxas puts a trap
  where it sees a store through their address.
- Tables of CUDA's math functions, such as 2/pi for `sin`. They lie in writable memory, so only tables
  whose contents are known are allowed.
Both are as the cubin has them whenever the module is loaded again.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from typing import NamedTuple

from warpcall_kernels.compile.architectures import (
    RESERVED_SHARED,
    THREADS,
    Architecture,
    architecture,
    occupancy,
)
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.verified import cubin as elf
from warpcall_kernels.verified.cubin import Cubin, InvalidCubin, Section, Symbol
from warpcall_kernels.verified.plan import FORMATS, POINTER, Kernel, Plan

WRITE, ALLOC, EXECUTE = 1, 2, 4
PROGBITS, STRTAB, RELA, NOTE, REL = 1, 3, 4, 7, 9
NV_INFO, NV_CALLGRAPH, NV_PROTOTYPE = 0x70000000, 0x70000001, 0x70000002
NV_REL_ACTION, NV_COMPAT = 0x7000000B, 0x70000086


class _Rule(NamedTuple):
    """The names of sections, their kinds, and their flags of WRITE, ALLOC and EXECUTE."""

    names: re.Pattern[str]
    kinds: tuple[int, ...]
    flags: int


RULES = tuple(
    _Rule(re.compile(names), kinds, flags)
    for names, kinds, flags in (
        (r"\.shstrtab|\.strtab", (STRTAB,), 0),
        (r"\.symtab", (elf.SYMTAB,), 0),
        (r"\.(nv_)?debug_\w+", (PROGBITS,), 0),
        (r"\.note\.nv\.\w+", (NOTE,), 0),
        (r"\.nv\.info(\..+)?", (NV_INFO,), 0),
        (r"\.nv\.callgraph", (NV_CALLGRAPH,), 0),
        (r"\.nv\.prototype", (NV_PROTOTYPE,), 0),
        (r"\.nv\.rel\.action", (NV_REL_ACTION,), 0),
        (r"\.nv\.compat", (NV_COMPAT,), 0),
        (r"\.rela?\.((nv_)?debug_\w+|text\..+|nv\.constant.+|nv\.global\.init)", (RELA, REL), 0),
        (r"\.text\..+", (PROGBITS,), ALLOC | EXECUTE),
        (r"\.nv\.constant(0\..+|2\..+|3|4)", (PROGBITS,), ALLOC),
        (r"\.nv\.shared\..+", (elf.NOBITS,), ALLOC | WRITE),
        (r"\.nv\.global\.init", (PROGBITS,), ALLOC | WRITE),
    )
)
# For Blackwell ptxas adds the same again in another form of code, Mercury, whose sections have this name
# before their own. Their kinds are others.
MERCURY = re.compile(r"\.nv\.(?:cap)?merc(\..+)")
GLOBALS = re.compile(r"\.nv\.global(\.init|\.uninit)?")
# Symbols that ptxas leaves to the driver: the shared memory that CUDA reserves.
DRIVER_SYMBOLS = re.compile(r"(\.nv\.reservedSmem\.\w+)?")
HOST_CALLS = {
    "vprintf": "prints",
    "__assertfail": "has an assertion",
    "malloc": "allocates memory from the device's heap",
    "free": "frees memory of the device's heap",
}
TEXTURES = (10, 11, 12)  # kinds of symbols: texture, sampler, surface
LAST_SECTION = 0xFF00  # greater numbers mean no section, such as memory that the driver allocates
MOST_TABLES = 1024  # bytes
MOST_PADDING = 16  # bytes between tables
# SHA-256 of the contents, as NVRTC and libdevice have them: of all math functions, in fp32 and fp64. The strings are names of compiler options that libdevice asks about.
TABLES = {
    "af58a7804afd16e4e7a715bd29412e82374ac0eb2196ae5f00fbd5835af8006d": "__cudart_i2opi_f",
    "7ede62875c004cc8c2847b487cb377f75c153593f45bab10b272128e31690cde": "__cudart_i2opi_d",
    "bf6a9587812432cf5649f28013165faa5a19d2ad0f66fd69cbf13096c2ea4263": "__cudart_sin_cos_coeffs",
    "28618dcb0d8ff32bff4d62ee2ec19a7522667bf549227399cd2f958ff4c3efef": "__cudart_sin_cos_coeffs",
    **{
        hashlib.sha256(name.encode() + b"\0").hexdigest(): name
        for name in ("__CUDA_FTZ", "__CUDA_ARCH", "__CUDA_PREC_SQRT", "__CUDA_PREC_DIV")
    },
}


ONCE = (elf.REQNTID, elf.MAX_THREADS, elf.CTA_PER_CLUSTER)


class Refused(Exception):
    """A compiled kernel has what a verified kernel may not have. The text names it."""


def inspect(plan: Plan) -> None:
    """Check the kernels of a plan.

    Raises:
        Refused: one of them may not run as a verified kernel.
    """
    try:
        target = architecture(plan.gpu)
    except InvalidInput as error:
        raise Refused(str(error)) from None
    parsed: dict[bytes, Cubin] = {}  # kernels of one source share their cubin
    for kernel in plan.kernels:
        try:
            if kernel.cubin not in parsed:
                parsed[kernel.cubin] = read(kernel.cubin, target)
            _check_kernel(parsed[kernel.cubin], kernel, target)
        except (InvalidCubin, Refused) as error:
            raise Refused(f"{kernel.name}: {error}") from None


def read(code: bytes, target: Architecture) -> Cubin:
    """Read a cubin, and check what concerns all of its kernels.

    Raises:
        InvalidCubin: it is none.
        Refused: it has what verified kernels may not have.
    """
    cubin = Cubin.parse(code)
    _check_file(cubin, target)
    return cubin


def registers_of(cubin: Cubin, name: str) -> int:
    """Registers of a thread of a kernel; 0 if the cubin does not say."""
    numbers = [i for i, symbol in enumerate(cubin.symbols(), 1) if symbol.name == name]
    counts = [
        struct.unpack("<II", value)
        for number, value in cubin.attributes(".nv.info")
        if number == elf.REGCOUNT and len(value) == 8
    ]
    return max((count for symbol, count in counts if symbol in numbers), default=0)


def _check_file(cubin: Cubin, target: Architecture) -> None:
    """Check what concerns all kernels of a cubin."""
    if cubin.capability != target.capability:
        raise Refused(f"it is compiled for sm_{cubin.capability}, and the GPU is {target.name}")
    symbols = cubin.symbols()
    if cubin.sections[".symtab"].link != cubin.sections[".strtab"].number:
        raise Refused("its symbols have their names in another section than .strtab")
    _check_symbols(symbols)
    for section in cubin.sections.values():
        _check_section(section, [s for s in symbols if s.section == section.number], cubin)
    if ".nv.merc.symtab" in cubin.sections:
        _check_symbols(cubin.symbols(".nv.merc.symtab"))
    if {elf.KPARAM_INFO, *ONCE} & {number for number, _ in cubin.attributes(".nv.info")}:
        raise Refused("its .nv.info has attributes that belong to one kernel")


def _check_section(section: Section, symbols: list[Symbol], cubin: Cubin) -> None:
    mercury = MERCURY.fullmatch(section.name)
    name = mercury[1] if mercury else section.name
    if mercury and name == ".nv.global.init":
        plain = cubin.sections.get(name)
        if plain is None or plain.data != section.data:
            raise Refused(f"its {section.name} differs from its {name}")
    elif GLOBALS.fullmatch(name):
        _check_tables(section, symbols)
    if mercury and re.fullmatch(r"\.nv\.constant\..+", name):
        return
    rule = next((rule for rule in RULES if rule.names.fullmatch(name)), None)
    if rule is None:
        raise Refused(f"it has a section {section.name[:100]}, which verified kernels may not have")
    flags = section.flags & (WRITE | ALLOC | EXECUTE)
    if mercury:
        known = flags & ~rule.flags == 0
    else:
        known = section.kind in rule.kinds and flags == rule.flags
    if not known:
        raise Refused(f"its section {section.name[:100]} has another kind than compilers give it")


def _check_tables(section: Section, symbols: list[Symbol]) -> None:
    """Check that a section with variables in global memory has known tables only."""
    found = sorted(symbols, key=lambda one: one.value)
    end = 0
    names = []
    for one in found:
        if not one.size:
            continue  # the symbol of the section itself
        content = section.data[one.value : one.value + one.size]
        if (
            hashlib.sha256(content).hexdigest() not in TABLES
            or not 0 <= one.value - end < MOST_PADDING
        ):
            names.append(one.name[:100])
        end = one.value + one.size
    if names or section.size > MOST_TABLES or not 0 <= section.size - end < MOST_PADDING:
        named = f" ({', '.join(names[:3])})" if names else ""
        raise Refused(
            f"it has a variable in global memory{named}, which keeps its value from one launch to the "
            "next; pass memory that is allocated in the call, or declare it __constant__"
        )


def _check_symbols(symbols: list[Symbol]) -> None:
    for one in symbols:
        name = one.name[:100]
        if one.kind in TEXTURES:
            raise Refused(
                f"it has a texture or surface reference ({name}); read tensors by pointers"
            )
        if one.section >= LAST_SECTION:
            raise Refused(f"it has a variable that the driver allocates ({name})")
        if one.section == 0 and not DRIVER_SYMBOLS.fullmatch(one.name):
            does = HOST_CALLS.get(one.name, "calls or uses what is not in its file")
            raise Refused(
                f"it {does} ({name}); remove that, because a verified kernel calls nothing outside"
            )


def _check_kernel(cubin: Cubin, kernel: Kernel, target: Architecture) -> None:
    text = cubin.sections.get(f".text.{kernel.name}")
    entries = [s for s in cubin.symbols() if s.name == kernel.name]
    info = cubin.sections.get(f".nv.info.{kernel.name}")
    if text is None or info is None or [s.section for s in entries] != [text.number]:
        raise Refused("its file has no kernel of this name")
    for prefix, section in (".nv.info.", info), (".nv.shared.", None):
        section = section or cubin.sections.get(prefix + kernel.name)
        owners = [
            s.name
            for s in cubin.sections.values()
            if s.name.startswith(prefix) and s.info & 0xFFFFFF == text.number
        ]
        if owners != ([section.name] if section else []):
            raise Refused(f"its {prefix[1:-1]} belongs to another kernel")
    _check_attributes(cubin.attributes(info.name), kernel)
    _check_parameters(cubin, kernel)
    shared = cubin.sections.get(f".nv.shared.{kernel.name}")
    static = 0 if shared is None else shared.size
    if target.capability >= 90:  # there the section includes what CUDA reserves
        static = max(0, static - RESERVED_SHARED)
    needed = static + kernel.shared_bytes
    if needed > target.block_shared_bytes:
        raise Refused(
            f"a block needs {needed} bytes of shared memory, and {target.name} has "
            f"{target.block_shared_bytes}; take smaller tiles or fewer stages"
        )
    registers = registers_of(cubin, kernel.name)
    warps = -(-math.prod(kernel.threads) // THREADS)
    if not occupancy(target, registers, needed, warps).blocks:
        raise Refused(
            f"a block of {math.prod(kernel.threads)} threads with {registers} registers each does "
            f"not fit on a multiprocessor of {target.name}; take fewer threads"
        )


def _check_attributes(attributes: list[tuple[int, bytes]], kernel: Kernel) -> None:
    found: dict[int, bytes] = {}
    for number, value in attributes:
        if number in found and number in ONCE:
            raise Refused("it says twice how it must be launched")
        found[number] = value
    if elf.SYSCALL_OFFSETS in found:
        raise Refused("it calls the driver; remove printf, assert, malloc and free")
    if elf.NEED_CNP_WRAPPER in found or elf.NEED_CNP_PATCH in found:
        raise Refused("it launches kernels from the device; declare these launches instead")
    threads = math.prod(kernel.threads)
    if elf.REQNTID in found and _triple(found[elf.REQNTID]) != kernel.threads:
        wanted = _triple(found[elf.REQNTID])
        raise Refused(
            f"it is compiled for blocks of {_by(wanted)} threads, not {_by(kernel.threads)}"
        )
    if elf.MAX_THREADS in found and threads > (most := math.prod(_triple(found[elf.MAX_THREADS]))):
        raise Refused(f"it is compiled for at most {most} threads in a block, not {threads}")
    if elf.CTA_PER_CLUSTER in found and _triple(found[elf.CTA_PER_CLUSTER]) != kernel.cluster:
        wanted = _triple(found[elf.CTA_PER_CLUSTER])
        raise Refused(
            f"it is compiled for clusters of {_by(wanted)} blocks, not {_by(kernel.cluster)}"
        )


def _check_parameters(cubin: Cubin, kernel: Kernel) -> None:
    taken = [one.nbytes for one in cubin.parameters(kernel.name)]
    given = [8 if kind == POINTER else struct.calcsize(FORMATS[kind]) for kind in kernel.parameters]
    if taken != given:
        raise Refused(
            f"it takes parameters of {_bytes(taken)}, and the launch passes {_bytes(given)}: "
            "check the number, the order and the types of the arguments"
        )


def _triple(value: bytes) -> tuple[int, int, int]:
    if len(value) != 12:
        raise InvalidCubin("an attribute of it has another size")
    x, y, z = struct.unpack("<III", value)
    return x, y, z


def _by(numbers: tuple[int, int, int]) -> str:
    return " x ".join(map(str, numbers))


def _bytes(sizes: list[int]) -> str:
    return f"{', '.join(map(str, sizes))} bytes" if sizes else "no bytes"
