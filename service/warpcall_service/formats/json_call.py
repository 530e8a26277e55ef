"""A call as one JSON object, for small tensors and for requests written by hand:

{"inputs": {"x": {"dtype": "F32", "shape": [2, 3], "data": [[1, 2, 3], [4, 5, 6]]}},
 "params": {"dims": [1, 0]}}

A tensor can also be a list of its values, such as [[1, 2], [3, 4]]. It gets the shape of its nesting
and the dtype that numpy chooses for such a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpcall import wire
from warpcall.dtypes import DTYPES, dtype_code, dtype_name
from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo
from warpcall_service.formats import json_values
from warpcall_service.formats.params import Params, check_entries, from_json
from warpcall_service.lanes.arena_memory import copy_in_chunks
from warpcall_service.text import brief

WHAT = "body"  # in messages

CODES = {dtype.name: dtype.code for dtype in DTYPES}


@dataclass(frozen=True, slots=True)
class JsonCall:
    """The tensors and parameters of a JSON body.

    Attributes:
        tensors: as `wire.lay_out` places them.
        arrays: their values by name, flat.
        dtypes: by name, the dtypes that were chosen for plain lists.
    """

    tensors: tuple[TensorInfo, ...]
    arrays: dict[str, json_values.Array]
    params: Params
    dtypes: dict[str, str]

    async def write(self, target: memoryview) -> None:
        """Copy the tensors' bytes to their places in `target`."""
        for info in self.tensors:
            source = self.arrays[info.name].view(np.uint8).data
            await copy_in_chunks(target[info.begin : info.end], source)


def decode(text: bytes) -> JsonCall:
    """Read and check a JSON body.

    Raises:
        InvalidInput: the body is not such an object; the message names the tensor or member at
        fault.
    """
    return check_call(from_json(text, WHAT))


def check_call(body: Mapping[str, Any]) -> JsonCall:
    """Check a parsed body; raises as `decode`."""
    for member in body:
        if member not in ("inputs", "params"):
            raise InvalidInput(
                f"the body must have inputs and params, got {brief(member)}", field="body"
            )
    inputs, params = body.get("inputs", {}), body.get("params", {})
    if not isinstance(inputs, dict) or len(inputs) > wire.MAX_TENSORS:
        raise InvalidInput(
            f"inputs must map at most {wire.MAX_TENSORS} names to tensors, got {brief(inputs)}",
            field="inputs",
        )
    if not isinstance(params, dict):
        raise InvalidInput(f"params must map names to values, got {brief(params)}", field="params")
    for name, value in params.items():
        if isinstance(value, list):
            check_entries(name, len(value))
    tensors = {name: _tensor(name, entry) for name, entry in inputs.items()}
    infos = {name: info for name, (info, _) in tensors.items()}
    arrays = {name: json_values.to_array(data, info) for name, (info, data) in tensors.items()}
    dtypes = {name: infos[name].dtype for name, entry in inputs.items() if isinstance(entry, list)}
    return JsonCall(wire.lay_out(infos.values()), arrays, params, dtypes)


def _tensor(name: str, entry: Any) -> tuple[TensorInfo, object]:
    """What a tensor is, and its values as JSON or as an array."""
    wire.check_name(name)
    if isinstance(entry, list):
        array, shape = json_values.plain_array(entry, name)
        return wire.check_tensor(name, array.dtype.name, shape, CODES), array
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data"}:
        raise InvalidInput(
            f"{name} must be a list of values, or have dtype, shape and data, got {brief(entry)}",
            field=name,
        )
    return wire.check_tensor(name, _dtype_name(entry["dtype"]), entry["shape"], CODES), entry[
        "data"
    ]


def _dtype_name(given: Any) -> Any:
    """The name in numpy of a dtype in any spelling; any other value as it is."""
    return dtype_name(str(dtype_code(given))) if isinstance(given, str) else given
