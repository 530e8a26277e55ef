"""Messages between the server and its JSON process, on a stream socket.

A message is the two lengths of `LENGTHS`, a head in JSON, then data. Requests by their `kind`:

- "call": the data are the JSON body of a call. The head of the reply has `tensors` (name, dtype,
  shape, begin, end) and `params`. Its data are the bytes of the tensors.
- "infer": the data are the JSON of an inference request. The head of the reply has `request`, which
  is that JSON without the values of its tensors, and `tensors`, whose bytes are the data.
- "write": the head has a `document` and its `holes`, the data are the bytes of tensors. The data of
  the reply are the document as JSON text, with the tensors' values in the holes.

A head with `problem` instead says what is wrong with the JSON.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from warpcall.wire import TensorInfo
from warpcall_service.formats import json_values
from warpcall_service.formats.json_values import Array

LENGTHS = struct.Struct("<IQ")  # bytes of the head, bytes of the data
# Both sides parse a head at once: this many bytes take the server at most 4 ms.
MAX_HEAD_BYTES = 128 << 10

TensorRecord = tuple[str, str, Sequence[int], int, int]


class Hole(NamedTuple):
    """A place in a JSON document for the values of a tensor.

    Attributes:
        path: keys and positions that lead to an object; the values become its member `data`.
        info: the tensor; `begin` and `end` are offsets in the data of the message.
    """

    path: tuple[str | int, ...]
    info: TensorInfo


def encode_tensor(info: TensorInfo) -> TensorRecord:
    """A tensor as an entry of a head."""
    return info.name, info.dtype, info.shape, info.begin, info.end


def decode_tensor(tensor: TensorRecord) -> TensorInfo:
    """The inverse of `encode_tensor`."""
    name, dtype, shape, begin, end = tensor
    return TensorInfo(name, dtype, tuple(shape), begin, end)


def arrays_of(tensors: Iterable[TensorInfo], data: memoryview) -> dict[str, Array]:
    """Arrays over the bytes of tensors in `data`, flat, by name."""
    return {t.name: json_values.of_bytes(data[t.begin : t.end], t) for t in tensors}


def fill(document: Any, holes: Iterable[Hole], data: memoryview, compact: bool) -> str:
    """Put the values of tensors into the holes of a document; returns its text.

    Args:
        compact: without spaces after separators.
    """
    for path, info in holes:
        node = document
        for key in path:
            node = node[key]
        node["data"] = json_values.to_json(data[info.begin : info.end], info)
    separators = (",", ":") if compact else None
    return json.dumps(document, allow_nan=False, separators=separators)


def count_of(holes: Iterable[Hole]) -> int:
    """The number of values in all holes."""
    return sum(math.prod(hole.info.shape) for hole in holes)


def encode_head(head: Mapping[str, Any]) -> bytes:
    """The head of a message as JSON."""
    return json.dumps(head, separators=(",", ":")).encode()
