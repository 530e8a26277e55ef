"""Checks and decodes the JSON of an inference request of the Open Inference Protocol.

{"id": "7", "parameters": {"dims": "1,0", "binary_data_output": true},
 "inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size":
 24}}], "outputs": [{"name": "out", "parameters": {"binary_data": true}}]}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warpcall import wire
from warpcall.dtypes import OIP_DATATYPES
from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo
from warpcall_service.formats.params import Params, from_json, from_text
from warpcall_service.text import brief

WHAT = "the request"  # in messages

_CODES = {datatype: code for code, datatype in OIP_DATATYPES.items()}
_MEMBERS = frozenset({"id", "model_name", "model_version", "parameters", "inputs", "outputs"})
_SHARED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
_HINTS = frozenset({"content_type"})  # written by some clients for their own use; ignored


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes in a shared memory region."""

    region: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class RequestInput:
    """An input, with one source of its values.

    Attributes:
        data: the values in the JSON, or an array of them.
        binary: whether the values follow the JSON as bytes.
        shared: where they lie in shared memory.
    """

    info: TensorInfo
    data: object = None
    binary: bool = False
    shared: Span | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """An output that the request names, and where it goes.

    Attributes:
        binary: as bytes after the JSON of the response.
        shared: to shared memory. If neither is set, it goes into the JSON.
    """

    name: str
    binary: bool
    shared: Span | None


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded inference request.

    Attributes:
        parameters: of the op; those of the protocol are removed.
        outputs: None means all outputs.
        binary: whether outputs go as bytes after the JSON unless they say otherwise.
        timeout_s: seconds that the client waits; None means no limit of its own.
    """

    id: str | None
    parameters: Mapping[str, str | int | float | bool]
    inputs: tuple[RequestInput, ...]
    outputs: tuple[RequestOutput, ...] | None
    binary: bool
    timeout_s: float | None


def decode_request(text: bytes) -> InferRequest:
    """Parse and check the JSON. NaN and Infinity are allowed, because tritonclient writes them.

    Raises:
        InvalidInput: the JSON is no inference request; the message names the tensor or member at
            fault.
    """
    return check_request(from_json(text, WHAT, constants=True))


def check_request(body: Mapping[str, Any]) -> InferRequest:
    """Check the parsed JSON of a request; raises as `decode_request`."""
    for member in body:
        if member not in _MEMBERS:
            raise _bad(f"a request has {', '.join(sorted(_MEMBERS))}, got {brief(member)}", member)
    request_id = body.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise _bad(f"id must be a string, got {brief(request_id)}", "id")
    parameters = _parameters(body, "the request")
    binary = _flag(parameters, "binary_data_output", "the request") or False
    inputs = tuple(_input(entry) for entry in _list(body, "inputs"))
    _refuse_repeats("inputs", [given.info.name for given in inputs])
    outputs = None
    if body.get("outputs"):
        outputs = tuple(_output(entry, binary) for entry in _list(body, "outputs"))
        _refuse_repeats("outputs", [wanted.name for wanted in outputs])
    timeout_us = _count(parameters, "timeout", "the request")
    timeout_s = timeout_us * 1e-6 if timeout_us else None
    return InferRequest(request_id, parameters, inputs, outputs, binary, timeout_s)


def params_of(request: InferRequest, op: Mapping[str, Any]) -> Params:
    """The parameters of a request, with texts converted to the kinds that `op` declares."""
    texts = {name: v for name, v in request.parameters.items() if isinstance(v, str)}
    return {**request.parameters, **from_text(texts.items(), op)}


def shared_spans(request: InferRequest) -> list[Span]:
    """The ranges of shared memory that a request names."""
    named = [given.shared for given in request.inputs]
    named += [wanted.shared for wanted in request.outputs or ()]
    return [span for span in named if span is not None]


def _input(entry: object) -> RequestInput:
    name, given = _named(entry, "an input", {"name", "shape", "datatype", "parameters", "data"})
    wire.check_name(name)
    for member in ("shape", "datatype"):
        if member not in given:
            raise _bad(f"{name} must have a {member}, it has none", name)
    datatype, shape = given["datatype"], given["shape"]
    if datatype == "BYTES":
        raise _bad(f"{name} must be numbers or BOOL, this server takes no BYTES", name)
    info = wire.check_tensor(name, datatype, shape, _CODES, "datatype")
    parameters = _parameters(given, name)
    binary_nbytes = _count(parameters, "binary_data_size", name)
    shared = _span(parameters, name)
    _refuse_rest(parameters, _HINTS, "binary_data_size", name)
    data = given.get("data")
    if (data is not None) + (binary_nbytes is not None) + (shared is not None) != 1:
        raise _bad(
            f"{name} must have one of data, the parameter binary_data_size, and the parameter "
            "shared_memory_region",
            name,
        )
    if data is not None and datatype == "BF16":
        raise _bad(f"{name} is BF16, which comes as binary data or in shared memory only", name)
    declared_nbytes = binary_nbytes if shared is None else shared.nbytes
    if binary_nbytes is not None and declared_nbytes != info.nbytes:
        raise _bad(
            f"{name} of shape {shape} and datatype {datatype} has {info.nbytes} bytes, "
            f"its binary_data_size is {declared_nbytes}",
            name,
        )
    if shared is not None and shared.nbytes < info.nbytes:
        raise _bad(
            f"{name} of shape {shape} and datatype {datatype} has {info.nbytes} bytes, "
            f"its shared_memory_byte_size is {shared.nbytes}",
            name,
        )
    return RequestInput(info, data, binary_nbytes is not None, shared)


def _output(entry: object, binary: bool) -> RequestOutput:
    name, given = _named(entry, "an output", {"name", "parameters"})
    parameters = _parameters(given, name)
    asked = _flag(parameters, "binary_data", name)
    shared = _span(parameters, name)
    _refuse_rest(parameters, frozenset(), "binary_data", name)
    if shared is not None and asked:
        raise _bad(f"{name} goes as binary data or to shared memory, not both", name)
    return RequestOutput(name, shared is None and (binary if asked is None else asked), shared)


def _named(entry: object, what: str, members: set[str]) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise _bad(f"{what} must be an object with a name, got {brief(entry)}")
    name: str = entry["name"]
    for member in entry:
        if member not in members:
            raise _bad(f"{name} has {', '.join(sorted(members))}, got {brief(member)}", name)
    return name, entry


def _list(body: Mapping[str, Any], member: str) -> list[object]:
    entries = body.get(member)
    if not isinstance(entries, list) or len(entries) > wire.MAX_TENSORS:
        raise _bad(
            f"{member} must be a list of at most {wire.MAX_TENSORS} tensors, got {brief(entries)}",
            member,
        )
    return entries


def _parameters(owner: Mapping[str, Any], name: str) -> dict[str, str | int | float | bool]:
    """A copy of the parameters, from which callers remove those that they know."""
    given = owner.get("parameters")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise _bad(f"the parameters of {name} must be an object, got {brief(given)}", "parameters")
    for key, value in given.items():
        if not isinstance(value, str | int | float):
            raise _bad(
                f"{key} of {name} must be a string, a number or a boolean (a list of integers "
                f'as "1,0"), got {brief(value)}',
                key,
            )
    return dict(given)


def _flag(parameters: dict[str, Any], key: str, name: str) -> bool | None:
    value = parameters.pop(key, None)
    if value is not None and not isinstance(value, bool):
        raise _bad(f"{key} of {name} must be true or false, got {brief(value)}", name)
    return value


def _count(parameters: dict[str, Any], key: str, name: str) -> int | None:
    value = parameters.pop(key, None)
    if value is not None and (type(value) is not int or not 0 <= value < 1 << 63):
        raise _bad(f"{key} of {name} must be an integer from 0, got {brief(value)}", name)
    return value


def _span(parameters: dict[str, Any], name: str) -> Span | None:
    given = [parameters.get(key) for key in _SHARED]
    if given == [None, None, None]:
        return None
    region = parameters.pop(_SHARED[0], None)
    nbytes = _count(parameters, _SHARED[1], name)
    offset = _count(parameters, _SHARED[2], name)
    if not isinstance(region, str) or nbytes is None:
        raise _bad(
            f"{name} in shared memory must have {_SHARED[0]}, a string, and {_SHARED[1]}", name
        )
    return Span(region, offset or 0, nbytes)


def _refuse_rest(parameters: Mapping[str, Any], but: frozenset[str], known: str, name: str) -> None:
    for key in parameters:
        if key not in but:
            allowed = ", ".join((known, *_SHARED))
            raise _bad(f"{name} takes the parameters {allowed}, got {brief(key)}", name)


def _refuse_repeats(member: str, names: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise _bad(f"{member} must name each tensor once, {brief(name)} came twice", name)


def _bad(message: str, field: str = "body") -> InvalidInput:
    return InvalidInput(message, field=field)
