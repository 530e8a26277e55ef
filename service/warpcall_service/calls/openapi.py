"""The OpenAPI description of the routes that move tensors: calls, programs, stored tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from warpcall import wire
from warpcall.dtypes import ITEMSIZE
from warpcall_service.calls import programs
from warpcall_service.formats import npy
from warpcall_service.formats.media_types import FORM, JSON
from warpcall_service.http.openapi_parts import (
    BINARY,
    CALL_PROBLEMS,
    REQUEST_ID,
    SECONDS,
    TIMEOUT,
    Model,
    Schema,
    parameter,
    problem_responses,
    ref,
)

Name = Annotated[str, Field(pattern=f"^{programs.NAME.pattern}$")]
Source = Annotated[str, Field(pattern=f"^{programs.SOURCE.pattern}$")]


class _Closed(Model):
    """An object without further members."""

    model_config = ConfigDict(extra="forbid")


class Tensor(_Closed):
    """A tensor in JSON."""

    dtype: str = Field(json_schema_extra={"enum": list(ITEMSIZE)})
    shape: list[Annotated[int, Field(ge=0)]] = Field(max_length=wire.MAX_DIMS)
    data: Any = Field(
        description="The values, flat or nested as the shape says. Values that are no JSON numbers "
        'are the strings "NaN", "Infinity" and "-Infinity". A complex number is [real, imaginary].'
    )


class Step(_Closed):
    """One op of a program."""

    name: Name
    op: str = Field(description="the name of a kernel")
    inputs: dict[str, Source] = Field(
        description="by the op's name of each input: the name of a tensor of the call, the name of "
        "an earlier step that has one output, or `step.output`"
    )
    params: dict[str, Any] = Field(default_factory=dict)


class Program(_Closed):
    """Several ops in one request; `outputs` says by name which results are answered."""

    steps: list[Step] = Field(min_length=1, max_length=programs.MAX_STEPS)
    outputs: dict[Name, Source] = Field(min_length=1, max_length=wire.MAX_TENSORS)


TTL = parameter(
    wire.TTL_HEADER, "seconds after its last use until a stored tensor is deleted", **SECONDS
)
DEVICE = parameter(wire.DEVICE_HEADER, "the device that runs the call, such as `cuda:0`")
CALL_HEADERS = (
    parameter(wire.TENSORS_HEADER, "inputs that are stored tensors, such as `x=photo, mask=m`"),
    parameter(
        wire.STORE_HEADER,
        "outputs to store on the device, and their ids, such as `out=y`; `*=y` stores all of them, "
        "as `y.out` and so on",
    ),
    *(TTL, DEVICE, TIMEOUT, REQUEST_ID),
)
RESPONSE_HEADERS = {
    "X-Request-Id": "the name of this request",
    "X-Warpcall-Device": "the device that ran the call",
    "Server-Timing": "milliseconds of each stage: queue, h2d (copy to the device), kernel, d2h "
    "(copy back), and compile (part of kernel) of a call that compiled a kernel",
}
_ID = parameter(
    "id", "a stored tensor", "path", type="string", pattern=f"^{wire.TENSOR_ID.pattern}$"
)
# A tensor of a request.
_GIVEN: Schema = {
    "anyOf": [
        ref(Tensor),
        {
            "type": "array",
            "description": "The values, nested as the shape is, with the dtype that numpy chooses "
            "for such a list. A response in JSON says it in `dtypes`.",
        },
    ]
}
_GIVEN_TENSORS: Schema = {"type": "object", "additionalProperties": _GIVEN}
_TENSORS: Schema = {"type": "object", "additionalProperties": ref(Tensor)}
_DTYPES: Schema = {
    "type": "object",
    "description": "by name, the dtypes of inputs that came as plain lists",
    "additionalProperties": {"type": "string"},
}
_STORED: Schema = {
    "type": "object",
    "description": "the tensors that are now stored on the device, by name",
    "additionalProperties": {"$ref": "#/components/schemas/TensorModel"},
}


def op_parts(op: Mapping[str, Any]) -> dict[str, Any]:
    """What declares the calls of an op to FastAPI."""
    required = [i["name"] for i in op["inputs"] if not i["optional"]]
    inputs = {i["name"]: _GIVEN for i in op["inputs"]}
    files = {i["name"]: {**BINARY, "description": i["doc"]} for i in op["inputs"]}
    texts = {p["name"]: {"type": "string", "description": p["doc"]} for p in op["params"]}
    return {
        "operation_id": op["name"],
        "summary": op["summary"],
        "description": _description(op),
        "responses": _responses([output["name"] for output in op["outputs"]]),
        "openapi_extra": _request(
            [*map(_query, op["params"]), *CALL_HEADERS],
            {"type": "object", "properties": {**files, **texts}, "required": required},
            _closed(
                {"inputs": {**_closed(inputs), "required": required}},
                {"params": _closed({}, {p["name"]: p["schema"] for p in op["params"]})},
            ),
        ),
    }


def program_parts() -> dict[str, Any]:
    """What declares the route of programs to FastAPI."""
    text = {wire.PROGRAM_KEY: {"type": "string"}}
    return {
        "operation_id": "run_program",
        "summary": "Run several ops in one request",
        "description": "The whole program is checked before any of it runs. Results that only other "
        f"steps use stay on the device. The program is the parameter `{wire.PROGRAM_KEY}`.",
        "responses": _responses(),
        "openapi_extra": _request(
            CALL_HEADERS,
            {"type": "object", "properties": text, "additionalProperties": BINARY},
            _closed(
                {"params": _closed({wire.PROGRAM_KEY: ref(Program)})}, {"inputs": _GIVEN_TENSORS}
            ),
        ),
    }


def put_parts(*, one: bool) -> dict[str, Any]:
    """What declares a route that stores tensors to FastAPI: `one` of the id in the path, or more."""
    return {
        "operation_id": "put_tensor" if one else "put_tensors",
        "summary": "Store a tensor on a device" if one else "Store tensors, under new ids",
        "responses": _with_problems(
            "The stored tensors", {JSON: {"schema": _members({"stored": _STORED})}}
        ),
        "openapi_extra": _request(
            [*([_ID] if one else []), TTL, DEVICE, TIMEOUT, REQUEST_ID],
            {"type": "object", "additionalProperties": BINARY},
            _closed({"inputs": _GIVEN_TENSORS}),
        ),
    }


def get_parts() -> dict[str, Any]:
    """What declares the route that reads a stored tensor to FastAPI."""
    return {
        "operation_id": "get_tensor",
        "summary": "Read a stored tensor",
        "responses": _responses(),
        "openapi_extra": {"parameters": [_ID, TIMEOUT, REQUEST_ID]},
    }


def _request(parameters: Sequence[Schema], form: Schema, json: Schema) -> Schema:
    """The parameters of an operation, and a body of tensors in each of the formats."""
    schemas = {wire.MEDIA_TYPE: BINARY, FORM: form, JSON: json}
    content = {media: {"schema": schema} for media, schema in schemas.items()}
    return {
        "parameters": list(parameters),
        "requestBody": {"required": True, "content": content},
    }


def _responses(outputs: Sequence[str] = ()) -> dict[int | str, Schema]:
    """A response with tensors in each of the formats; without their names, any tensors."""
    named: Schema = {"type": "object", "properties": {name: ref(Tensor) for name in outputs}}
    optional = {"stored": _STORED, "dtypes": _DTYPES}
    json = _members({"outputs": named if outputs else _TENSORS}, optional)
    npy_too = {npy.MEDIA_TYPE: {"schema": BINARY}} if len(outputs) <= 1 else {}
    return _with_problems(
        "The outputs", {wire.MEDIA_TYPE: {"schema": BINARY}, **npy_too, JSON: {"schema": json}}
    )


def _with_problems(description: str, content: Schema) -> dict[int | str, Schema]:
    headers = {
        name: {"schema": {"type": "string"}, "description": text}
        for name, text in RESPONSE_HEADERS.items()
    }
    success = {"description": description, "headers": headers, "content": content}
    return {"200": success, **problem_responses(CALL_PROBLEMS)}


def _members(required: Schema, optional: Schema | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def _closed(required: Schema, optional: Schema | None = None) -> Schema:
    return {**_members(required, optional), "additionalProperties": False}


def _description(op: Mapping[str, Any]) -> str:
    lines = [op["description"], "", f"Equivalent to: `{op['equivalent']}`"]
    if op["limits"]:
        lines += ["", op["limits"]]
    lines += ["", "Inputs:", ""]
    for i in op["inputs"]:
        optional = ", optional" if i["optional"] else ""
        lines.append(
            f"- `{i['name']}` {i['shape']}{optional}: {i['doc']} ({', '.join(i['dtypes'])})"
        )
    lines += ["", "Outputs:", ""]
    for o in op["outputs"]:
        when = f" ({o['when']})" if o["when"] else ""
        lines.append(f"- `{o['name']}` {o['shape']}: {o['doc']}{when}")
    return "\n".join(lines)


def _query(param: Mapping[str, Any]) -> Schema:
    described: Schema = {
        "name": param["name"],
        "in": "query",
        # A required one may also come in the body (params in JSON, in the safetensors metadata, or
        # as a part of the form), so the query as such never needs it.
        "required": False,
        "description": param["doc"],
        "schema": {k: v for k, v in param["schema"].items() if k != "description"},
    }
    if param["kind"] == "ints":
        described |= {"style": "form", "explode": False}
    return described
