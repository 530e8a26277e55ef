"""Keeps answers of checks within a limit on their memory, and makes compile reports of them."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from warpcall.compile_reports import CompileReport
from warpcall_bench.uploads.answers import (
    MAX_TEXT_BYTES,
    CompileAnswer,
    KernelAnswer,
    PackedText,
    one_line,
)
from warpcall_service.formats.payloads import checked

A = TypeVar("A")

KERNEL_BYTES = 4 << 10  # that a kernel takes without its texts, some 1 KiB


class AnswerCache(Generic[A]):
    """Answers by their key. Those that were not used for the longest time are dropped.

    Args:
        most_bytes: of all answers together.
        nbytes_of: the bytes that an answer takes, about.
    """

    def __init__(self, most_bytes: int, nbytes_of: Callable[[A], int]) -> None:
        self._most_bytes = most_bytes
        self._nbytes_of = nbytes_of
        self._nbytes = 0
        self._kept: OrderedDict[str, A] = OrderedDict()

    def find(self, key: str) -> A | None:
        """The answer that was kept under a key."""
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, key: str, answer: A) -> None:
        """Keep an answer, and drop others that there is no room for."""
        if key not in self._kept:
            self._kept[key] = answer
            self._nbytes += self._nbytes_of(answer)
        while self._nbytes > self._most_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._nbytes -= self._nbytes_of(dropped)


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


def nbytes_of(answer: CompileAnswer) -> int:
    """The bytes that an answer takes: its texts, which stay compressed, and the rest."""
    kernels = answer.kernels or ()
    texts = sum(len(text.packed) for one in kernels for text in one.texts.values())
    return texts + KERNEL_BYTES * (1 + len(kernels))
