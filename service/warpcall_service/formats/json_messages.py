"""Messages between the server and its JSON process, on a stream socket.

A message is the two lengths of `LENGTHS`, a head in JSON, then data. Requests by their `kind`:

- "call": the data are the JSON body of a call. The head of the reply has `tensors` (name, dtype, shape,
  begin, end) and `params`, its data are the bytes of the tensors.
- "infer": the data are the JSON of an inference request. The head of the reply has `request`, which is
  that JSON without the values of its tensors, and `tensors`, whose bytes are the data.
- "write": the head has a `document` and its `holes`, the data are the bytes of tensors. The
  data of the reply are the document as JSON text, with the tensors' values in the holes.

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
    """Where in a document the values of a tensor go.

    Attributes:
        path: keys and positions that lead to the object whose `data` they are.
        info: the tensor; `begin` and `end` in the data of the message.
    """

    path: tuple[str | int, ...]
    info: TensorInfo


def encode_tensor(info: TensorInfo) -> TensorRecord:
    """A tensor as JSON has it."""
    return info.name, info.dtype, info.shape, info.begin, info.end


def decode_tensor(tensor: TensorRecord) -> TensorInfo:
    """The tensor that `encode_tensor` wrote."""
    name, dtype, shape, begin, end = tensor
    return TensorInfo(name, dtype, tuple(shape), begin, end)


def arrays_of(tensors: Iterable[TensorInfo], data: memoryview) -> dict[str, Array]:
    """The tensors whose bytes are in `data`, flat, by name."""
    return {t.name: json_values.of_bytes(data[t.begin : t.end], t) for t in tensors}


def fill(document: Any, holes: Iterable[Hole], data: memoryview, compact: bool) -> str:
    """The text of a document with the values of tensors in its holes."""
    for path, info in holes:
        place = document
        for key in path:
            place = place[key]
        place["data"] = json_values.to_json(data[info.begin : info.end], info)
    separators = (",", ":") if compact else None
    return json.dumps(document, allow_nan=False, separators=separators)


def count_of(holes: Iterable[Hole]) -> int:
    """How many values are to be written."""
    return sum(math.prod(hole.info.shape) for hole in holes)


def encode_head(head: Mapping[str, Any]) -> bytes:
    """The head of a message as JSON."""
    return json.dumps(head, separators=(",", ":")).encode()
