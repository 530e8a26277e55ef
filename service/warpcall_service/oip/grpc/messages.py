"""What requests of gRPC are as requests of HTTP, and what the responses are as messages of gRPC.

The HTTP form of the protocol has the same members in JSON; the bytes of tensors follow the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from warpcall.errors import InvalidInput
from warpcall_service.oip.grpc import inference_pb2 as pb
from warpcall_service.oip.grpc import raw_fields
from warpcall_service.oip.grpc.raw_fields import Bytes, Malformed
from warpcall_service.oip.response import HEADER_LENGTH
from warpcall_service.text import brief

RAW_INPUTS = 7  # number of the field raw_input_contents
RAW_OUTPUTS = 6  # of raw_output_contents
INFER_RESPONSE = 2  # of infer_response
# Which values of `contents` a datatype has, and their dtype. FP16 and BF16 go as raw bytes only.
_CONTENTS = {
    "BOOL": ("bool_contents", np.bool_),
    "INT8": ("int_contents", np.int8),
    "INT16": ("int_contents", np.int16),
    "INT32": ("int_contents", np.int32),
    "INT64": ("int64_contents", np.int64),
    "UINT8": ("uint_contents", np.uint8),
    "UINT16": ("uint_contents", np.uint16),
    "UINT32": ("uint_contents", np.uint32),
    "UINT64": ("uint64_contents", np.uint64),
    "FP32": ("fp32_contents", np.float32),
    "FP64": ("fp64_contents", np.float64),
}
_REGION = "shared_memory_region"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request of HTTP; `body` is in pieces."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Sequence[Bytes] = ()


def parse(kind: type[Message], data: Bytes) -> Any:
    """A message; raises InvalidInput if the bytes are none of this kind."""
    try:
        return kind.FromString(bytes(data))
    except DecodeError:
        raise _no_message(kind.DESCRIPTOR.name) from None


def model_path(name: str, version: str, what: str = "") -> str:
    """The path of a model; raises InvalidInput if it has no name."""
    if not name:
        raise InvalidInput("the name of the model must not be empty", field="model_name")
    versioned = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(name, safe='')}{versioned}{what}"


def infer_request(data: bytes) -> HttpRequest:
    """An inference request.

    Raises:
        InvalidInput: the bytes are no ModelInferRequest, or its inputs have other values than they
            declare.
    """
    try:
        rest, raw = raw_fields.take_out(memoryview(data), RAW_INPUTS)
    except Malformed:
        raise _no_message("ModelInferRequest") from None
    request = parse(pb.ModelInferRequest, rest)
    path = model_path(request.model_name, request.model_version, "/infer")
    pieces = _values(request.inputs, raw)
    inputs = []
    for given in request.inputs:
        parameters = _values_of(given.parameters)
        if given.name in pieces:
            parameters["binary_data_size"] = len(pieces[given.name])
        inputs.append(
            {
                "name": given.name,
                "datatype": given.datatype,
                "shape": [*given.shape],
                "parameters": parameters,
            }
        )
    body: dict[str, Any] = {
        "parameters": {**_values_of(request.parameters), "binary_data_output": True},
        "inputs": inputs,
    }
    if request.outputs:
        body["outputs"] = [
            {"name": wanted.name, "parameters": _values_of(wanted.parameters)}
            for wanted in request.outputs
        ]
    if request.id:
        body["id"] = request.id
    text = json.dumps(body).encode()
    headers = {HEADER_LENGTH: str(len(text)), "content-type": "application/octet-stream"}
    return HttpRequest("POST", path, headers, [text, *pieces.values()])


def infer_response(headers: Mapping[bytes, bytes], body: bytearray) -> list[Bytes]:
    """The ModelInferResponse of a response, in pieces. `body` must not change any more."""
    nbytes = headers.get(HEADER_LENGTH.lower().encode())
    end = len(body) if nbytes is None else int(nbytes)
    response = json.loads(body[:end])
    message = pb.ModelInferResponse(
        model_name=response["model_name"],
        model_version=response["model_version"],
        id=response.get("id", ""),
    )
    raw: list[Bytes] = []
    for given in response["outputs"]:
        output = message.outputs.add(
            name=given["name"], datatype=given["datatype"], shape=given["shape"]
        )
        parameters = given["parameters"]
        size = parameters.pop("binary_data_size", 0)  # 0 in shared memory: clients count these, too
        for name, value in parameters.items():
            _set(output.parameters[name], value)
        raw += raw_fields.field(RAW_OUTPUTS, [memoryview(body)[end : end + size]])
        end += size
    return [message.SerializeToString(), *raw]


def stream_response(response: Sequence[Bytes]) -> list[Bytes]:
    """A ModelStreamInferResponse, in pieces, with a ModelInferResponse."""
    return raw_fields.field(INFER_RESPONSE, response)


def from_json(kind: type[Message], members: Mapping[str, Any]) -> bytes:
    """A message with these members. Those that it does not know are left out."""
    message: Message = ParseDict(members, kind(), ignore_unknown_fields=True)
    data: bytes = message.SerializeToString()
    return data


def _values(inputs: Sequence[Any], raw: Sequence[Bytes]) -> dict[str, Bytes]:
    """The bytes of each input that is not in shared memory."""
    sent = [given for given in inputs if _REGION not in given.parameters]
    if not raw:
        return {given.name: _packed(given) for given in sent}
    if len(raw) != len(sent):
        raise InvalidInput(
            "raw_input_contents must have the bytes of each input that is not in shared memory: "
            f"{len(sent)}, got {len(raw)}",
            field="raw_input_contents",
        )
    for given in inputs:
        if given.HasField("contents"):
            raise InvalidInput(
                f"{brief(given.name)} must have no contents beside raw_input_contents",
                field=given.name,
            )
    return dict(zip((given.name for given in sent), raw, strict=True))


def _packed(given: Any) -> bytes:
    """The bytes of the values that an input has in `contents`."""
    if given.datatype not in _CONTENTS:
        raise InvalidInput(
            f"{brief(given.name)} must be in raw_input_contents: {brief(given.datatype)} has no "
            "values in contents",
            field=given.name,
        )
    member, dtype = _CONTENTS[given.datatype]
    for descriptor, _ in given.contents.ListFields():
        if descriptor.name != member:
            raise InvalidInput(
                f"{given.datatype} values must be in {member}, {brief(given.name)} has "
                f"{descriptor.name}",
                field=given.name,
            )
    try:
        return np.array([*getattr(given.contents, member)], dtype).tobytes()
    except OverflowError:
        raise InvalidInput(
            f"{brief(given.name)} must have values of {given.datatype}, one is out of its range",
            field=given.name,
        ) from None


def _values_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidInput(f"the parameter {brief(name)} must have a value", field=name)
        values[name] = getattr(parameter, choice)
    return values


def _set(parameter: Any, value: str | int) -> None:
    if isinstance(value, str):
        parameter.string_param = value
    else:
        parameter.int64_param = value


def _no_message(kind: str) -> InvalidInput:
    return InvalidInput(f"the message must be a {kind} of protobuf", field="body")
