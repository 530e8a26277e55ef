"""Compile reports that were made, within a limit on their memory."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import OrderedDict
from collections.abc import Collection

from warpcall.compile_reports import CompileReport
from warpcall_bench.uploads.answers import (
    MAX_TEXT_BYTES,
    CompileAnswer,
    KernelAnswer,
    PackedText,
    one_line,
)
from warpcall_service.formats.payloads import checked

KERNEL_BYTES = 4 << 10  # that a kernel takes without its texts, some 1 KiB


class ReportCache:
    """Answers by their key. Those that were not used for the longest time are dropped.

    Args:
        most_bytes: of texts, which stay compressed, and of the rest.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._nbytes = 0
        self._kept: OrderedDict[str, CompileAnswer] = OrderedDict()

    def find(self, key: str) -> CompileAnswer | None:
        """The answer that was kept under a key."""
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, key: str, answer: CompileAnswer) -> None:
        """Keep an answer, and drop others that there is no room for."""
        if key not in self._kept:
            self._kept[key] = answer
            self._nbytes += _size(answer)
        while self._nbytes > self._most_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._nbytes -= _size(dropped)


class InvalidText(Exception):
    """A text that no honest process could have sent."""


def report_of(
    answer: CompileAnswer, op: str, implementation: str | None, gpu: str, texts: Collection[str]
) -> CompileReport:
    """An answer as a report with the texts that are asked for.

    Raises:
        InvalidText: one of these texts is missing or not valid.
    """
    kernels = [_kernel(one, texts) for one in answer.kernels or ()]
    fields = answer.model_dump(exclude={"error", "field", "kernels"})
    about = {"op": op, "implementation": implementation, "gpu": gpu, "kernels": kernels}
    return checked(CompileReport, {**fields, **about})


def _kernel(kernel: KernelAnswer, texts: Collection[str]) -> dict[str, object]:
    if not {*texts} <= kernel.texts.keys():
        raise InvalidText
    found = {name: _unpacked(text) for name, text in kernel.texts.items() if name in texts}
    return {**kernel.model_dump(exclude={"texts"}), "texts": found}


def _unpacked(packed: PackedText) -> dict[str, object]:
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(
            base64.b64decode(packed.packed, validate=True), MAX_TEXT_BYTES + 1
        )
        text = content.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        raise InvalidText from None
    if len(content) > MAX_TEXT_BYTES:
        raise InvalidText
    lines = "\n".join(_printable(line) for line in text.split("\n"))
    return {"text": lines, "nbytes": packed.nbytes, "cut": len(content) < packed.nbytes}


def _printable(line: str) -> str:
    """A line in which only tabs are left of what is not printable."""
    return line if line.isprintable() else "\t".join(map(one_line, line.split("\t")))


def _size(answer: CompileAnswer) -> int:
    kernels = answer.kernels or ()
    texts = sum(len(text.packed) for one in kernels for text in one.texts.values())
    return texts + KERNEL_BYTES * (1 + len(kernels))
