"""Writes the JSON of responses: short texts at once, long ones in pieces and one at a time."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warpcall.wire import TensorInfo
from warpcall_service.admission import Admission
from warpcall_service.formats import json_values
from warpcall_service.lanes.arena_memory import copy_in_chunks

INLINE_VALUES = 2048  # as many values are written at once, within 1 ms

Allocate = Callable[[int], Awaitable[memoryview]]  # allocates so many bytes


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """The bytes of a response: `head` on the heap, then `data` in the arena."""

    head: bytes
    data: memoryview


@dataclass(frozen=True, slots=True)
class JsonWriter:
    """Writes the JSON of one response.

    Attributes:
        admission: admits one long text on the heap at a time.
        allocate: allocates the memory for a long text.
        dtypes: by name, the dtypes that were chosen for inputs without one, which the response says.
    """

    admission: Admission
    user: str
    allocate: Allocate
    dtypes: Mapping[str, str] = field(default_factory=dict)

    async def write(
        self,
        document: Mapping[str, Any],
        infos: Sequence[TensorInfo],
        tensors: memoryview,
        *,
        compact: bool = False,
    ) -> ResponseBody:
        """Write a document with the values of tensors.

        Args:
            document: for each tensor it has an object whose member `data` is None, and no other.
            infos: the tensors, in the order of these objects.
            tensors: the bytes of all tensors.
            compact: without spaces after separators.
        """
        pieces = _pieces(document, infos, tensors, compact)
        if sum(math.prod(info.shape) for info in infos) <= INLINE_VALUES:
            return ResponseBody("".join(pieces).encode(), tensors[:0])
        async with self.admission.admitted(self.user, len(tensors)):
            text = bytearray()
            for piece in pieces:
                text += piece.encode()
                await asyncio.sleep(0)
            target = await self.allocate(len(text))
            await copy_in_chunks(target, memoryview(text))
        return ResponseBody(b"", target)


def _pieces(
    document: Mapping[str, Any], infos: Sequence[TensorInfo], tensors: memoryview, compact: bool
) -> Iterator[str]:
    separators = (",", ":") if compact else (", ", ": ")
    text = json.dumps(document, allow_nan=False, separators=separators)
    # No text in the document contains this, because its quotation marks would be escaped.
    before, *behind = text.split(f'"data"{separators[1]}null')
    yield before
    for info, rest in zip(infos, behind, strict=True):
        yield f'"data"{separators[1]}'
        yield from json_values.pieces(tensors[info.begin : info.end], info, separators)
        yield rest
