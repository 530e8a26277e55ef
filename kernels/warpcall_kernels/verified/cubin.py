"""Reads cubins, the ELF files of compiled kernels, which may come from a stranger.

Only what `inspection.py` asks is read: headers, symbols and attributes. Each read is bounded by the
file, and nothing in it is followed, decompressed or run. A library for ELF files would do these.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
ET_EXEC, EM_CUDA = 2, 190
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
# Where the flags of a cubin have the compute capability, by what its header calls the operating system:
# compilers up to CUDA 12.8 write the first one for GPUs before Blackwell, newer ones the second.
CAPABILITY_SHIFTS = {0x33: 0, 0x41: 8}
SYMTAB, NOBITS = 2, 8
MOST_SECTIONS = 2048  # a kernel has some 20
MOST_SYMBOLS = 16384
MOST_NAME = 8192  # characters: names of C++ templates are long
# Attributes of a kernel in `.nv.info`, as `cuobjdump -elf` names them.
MAX_THREADS = 0x05
REQNTID = 0x10
KPARAM_INFO = 0x17
CBANK_PARAM_SIZE = 0x19
NEED_CNP_WRAPPER, NEED_CNP_PATCH = 0x1F, 0x20
REGCOUNT = 0x2F
CTA_PER_CLUSTER = 0x3D
SYSCALL_OFFSETS = 0x46
WITH_BYTES = 4  # the format of an attribute whose value follows it; others have 16 bits


class InvalidCubin(Exception):
    """A file that no compiler of NVIDIA makes for one GPU. The text says what is wrong."""


@dataclass(frozen=True)
class Section:
    """A section: its number and header, and its bytes, of which NOBITS has none."""

    number: int
    name: str
    kind: int
    flags: int
    size: int
    link: int
    info: int
    data: bytes = field(repr=False)


class Symbol(NamedTuple):
    """A symbol: the section that it is in is 0 for one that the file does not define."""

    name: str
    kind: int
    section: int
    value: int
    size: int


class Parameter(NamedTuple):
    """Where a parameter of a kernel lies in its argument memory."""

    ordinal: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Cubin:
    """The parts of a cubin.

    Attributes:
        capability: compute capability that its code is for, 90 for sm_90 and sm_90a.
        sections: by name, without the first one, which is empty in each ELF file.
    """

    capability: int
    sections: Mapping[str, Section]

    @classmethod
    def parse(cls, data: bytes) -> Cubin:
        """Read a cubin.

        Raises:
            InvalidCubin: it is none.
        """
        if data[: len(MAGIC)] != MAGIC or len(data) < HEADER.size:
            raise InvalidCubin("it is no ELF file of 64 bits")
        ident, kind, machine, _, _, _, begin, flags, _, _, _, entry, count, names = (
            HEADER.unpack_from(data)
        )
        if machine != EM_CUDA or ident[7] not in CAPABILITY_SHIFTS:
            raise InvalidCubin("it is no ELF file for NVIDIA GPUs that is known here")
        if kind != ET_EXEC:
            raise InvalidCubin("it is not linked: compile it without relocatable device code")
        if entry != SECTION.size or not 0 < count <= MOST_SECTIONS or names >= count:
            raise InvalidCubin(f"its table of sections is wrong, or has more than {MOST_SECTIONS}")
        if begin + count * entry > len(data):
            raise InvalidCubin("its table of sections ends behind the file")
        headers = [SECTION.unpack_from(data, begin + n * entry) for n in range(count)]
        name_table = _content(data, headers[names])
        sections: dict[str, Section] = {}
        for number, header in enumerate(headers[1:], 1):
            name = _name(name_table, header[0])
            if name in sections:
                raise InvalidCubin(f"it has two sections {name}")
            sections[name] = Section(
                number,
                name,
                header[1],
                header[2],
                header[5],
                header[6],
                header[7],
                _content(data, header),
            )
        return cls(flags >> CAPABILITY_SHIFTS[ident[7]] & 0xFF, sections)

    def symbols(self, table: str = ".symtab", names: str = ".strtab") -> list[Symbol]:
        """The symbols of a table, without the first one, which is empty in each ELF file."""
        if table not in self.sections or names not in self.sections:
            raise InvalidCubin("it has no symbols")
        data, texts = self.sections[table].data, self.sections[names].data
        if len(data) % SYMBOL.size or len(data) > MOST_SYMBOLS * SYMBOL.size:
            raise InvalidCubin(f"its table of symbols is wrong, or has more than {MOST_SYMBOLS}")
        return [
            Symbol(_name(texts, name), info & 15, section, value, size)
            for name, info, _, section, value, size in SYMBOL.iter_unpack(data[SYMBOL.size :])
        ]

    def attributes(self, section: str) -> list[tuple[int, bytes]]:
        """The attributes in a section `.nv.info` or `.nv.info.KERNEL`: numbers and values."""
        data = self.sections[section].data if section in self.sections else b""
        found, at = [], 0
        while at < len(data):
            if at + 4 > len(data):
                raise InvalidCubin(f"{section} ends within an attribute")
            form, number, length = struct.unpack_from("<BBH", data, at)
            value = data[at + 2 : at + 4]
            at += 4
            if form == WITH_BYTES:
                value = data[at : at + length]
                at += length
            if at > len(data):
                raise InvalidCubin(f"{section} ends within an attribute")
            found.append((number, value))
        return found

    def kernels(self) -> list[str]:
        """The names of its kernels."""
        prefix = ".nv.info."
        return sorted(name[len(prefix) :] for name in self.sections if name.startswith(prefix))

    def parameters(self, kernel: str) -> list[Parameter]:
        """The parameters of a kernel in their order. They lie behind each other."""
        found = []
        for number, value in self.attributes(f".nv.info.{kernel}"):
            if number == KPARAM_INFO:
                if len(value) != 12:
                    raise InvalidCubin("it describes a parameter in an unknown way")
                _, ordinal, offset, rest = struct.unpack("<IHHI", value)
                found.append(Parameter(ordinal, offset, rest >> 18))
        found.sort()
        end = 0
        for position, one in enumerate(found):
            if one.ordinal != position or one.offset < end:
                raise InvalidCubin("its parameters are not numbered, or overlap")
            end = one.offset + one.nbytes
        return found


def _content(data: bytes, header: tuple[int, ...]) -> bytes:
    offset, size = header[4], header[5]
    if header[1] == NOBITS:
        return b""
    if offset + size > len(data):
        raise InvalidCubin("a section ends behind the file")
    return data[offset : offset + size]


def _name(texts: bytes, begin: int) -> str:
    end = texts.find(b"\0", begin, begin + MOST_NAME + 1)
    if end < 0:
        raise InvalidCubin(f"a name does not end, or has more than {MOST_NAME} characters")
    try:
        return texts[begin:end].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidCubin("a name is not ASCII") from None
