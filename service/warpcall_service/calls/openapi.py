"""The part of the OpenAPI description on programs, and on tensors that go to a device and back."""

from __future__ import annotations

from typing import Any

from warpcall import wire
from warpcall_service.calls import programs
from warpcall_service.formats import npy
from warpcall_service.formats.media_types import FORM, JSON
from warpcall_service.http.openapi_parts import (
    ANSWER_HEADERS,
    BINARY,
    CALL_HEADERS,
    CALL_PROBLEMS,
    DEVICE,
    REQUEST_ID,
    TIMEOUT,
    TTL,
    Schema,
    problem_responses,
)

_TENSOR: Schema = {"$ref": "#/components/schemas/Tensor"}
_TENSORS: Schema = {"type": "object", "additionalProperties": _TENSOR}
_NAME: Schema = {"type": "string", "pattern": f"^{programs.NAME.pattern}$"}
_SOURCE: Schema = {"type": "string", "pattern": f"^{programs.SOURCE.pattern}$"}
_PROGRAM: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["steps", "outputs"],
    "properties": {
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": programs.MAX_STEPS,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "op", "inputs"],
                "properties": {
                    "name": _NAME,
                    "op": {"type": "string", "description": "a kernel"},
                    "inputs": {
                        "type": "object",
                        "additionalProperties": _SOURCE,
                        "description": "for each input a tensor of the call, an earlier step with "
                        "one output, or `step.output`",
                    },
                    "params": {"type": "object"},
                },
            },
        },
        "outputs": {
            "type": "object",
            "minProperties": 1,
            "maxProperties": wire.MAX_TENSORS,
            "propertyNames": _NAME,
            "additionalProperties": _SOURCE,
        },
    },
}
_ID: Schema = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{wire.TENSOR_ID.pattern}$"},
}
_KEPT: Schema = {
    "type": "object",
    "required": ["stored"],
    "properties": {
        "stored": {
            "type": "object",
            "additionalProperties": {"$ref": "#/components/schemas/TensorModel"},
        }
    },
}


def _answer(description: str, content: Schema) -> dict[int | str, Schema]:
    return {
        "200": {"description": description, "headers": ANSWER_HEADERS, "content": content},
        **problem_responses(CALL_PROBLEMS),
    }


def _put(operation: str, summary: str, **more: Any) -> Schema:
    json_tensors = {"type": "object", "required": ["inputs"], "properties": {"inputs": _TENSORS}}
    return {
        "operationId": operation,
        "tags": ["tensors"],
        "summary": summary,
        "parameters": [*more.get("parameters", ()), TTL, DEVICE, TIMEOUT, REQUEST_ID],
        "requestBody": {
            "required": True,
            "content": {
                wire.MEDIA_TYPE: {"schema": BINARY},
                FORM: {"schema": {"type": "object", "additionalProperties": BINARY}},
                JSON: {"schema": {**json_tensors, "additionalProperties": False}},
            },
        },
        "responses": _answer("What is kept, by name", {JSON: {"schema": _KEPT}}),
    }


_BYTES: Schema = {media: {"schema": BINARY} for media in (wire.MEDIA_TYPE, npy.MEDIA_TYPE)}
_JSON_ANSWER: Schema = {
    JSON: {"schema": {"type": "object", "properties": {"outputs": _TENSORS, "stored": {}}}}
}

PATHS: dict[str, Schema] = {
    "/v1/programs": {
        "post": {
            "operationId": "run_program",
            "tags": ["programs"],
            "summary": "Run several ops in one request",
            "description": "All of it is checked before anything runs; what is in between stays "
            f"on the device. The program is the parameter `{wire.PROGRAM_KEY}`.",
            "parameters": list(CALL_HEADERS),
            "requestBody": {
                "required": True,
                "content": {
                    wire.MEDIA_TYPE: {"schema": BINARY},
                    FORM: {
                        "schema": {
                            "type": "object",
                            "properties": {wire.PROGRAM_KEY: {"type": "string"}},
                            "additionalProperties": BINARY,
                        }
                    },
                    JSON: {
                        "schema": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["params"],
                            "properties": {
                                "inputs": _TENSORS,
                                "params": {
                                    "type": "object",
                                    "additionalProperties": False,
                                    "required": [wire.PROGRAM_KEY],
                                    "properties": {wire.PROGRAM_KEY: _PROGRAM},
                                },
                            },
                        }
                    },
                },
            },
            "responses": _answer("The outputs", {**_BYTES, **_JSON_ANSWER}),
        }
    },
    "/v1/tensors": {"put": _put("put_tensors", "Leave tensors on a device, under new ids")},
    "/v1/tensors/{id}": {
        "put": _put("put_tensor", "Leave a tensor on a device", parameters=[_ID]),
        "get": {
            "operationId": "get_tensor",
            "tags": ["tensors"],
            "summary": "A copy of a tensor that is on a device",
            "parameters": [_ID, TIMEOUT, REQUEST_ID],
            "responses": _answer("The tensor", {**_BYTES, **_JSON_ANSWER}),
        },
    },
}
