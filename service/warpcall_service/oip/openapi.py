"""What OpenAPI says of the Open Inference Protocol beyond the routes: inference, and errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warpcall.errors import Problem

Schema = dict[str, Any]

ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/InferenceError"}}}


def error_responses(kinds: Iterable[type[Problem]]) -> dict[int | str, Schema]:
    """The answers that such problems give here, as an operation's `responses`."""
    return {
        str(kind.status): {"description": f"{kind.title} ({kind.code})", "content": ERROR}
        for kind in kinds
    }


def paths(kinds: Iterable[type[Problem]]) -> Schema:
    """The two paths of inference, which FastAPI does not serve; `kinds` of problems may come."""
    responses = {
        "200": {
            "description": "The outputs",
            "headers": {"Inference-Header-Content-Length": _LENGTH["schema_only"]},
            "content": {"application/json": {"schema": _RESPONSE}, **_BINARY},
        },
        **error_responses(kinds),
    }
    operation = {
        "tags": ["open inference protocol"],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _REQUEST}, **_BINARY},
        },
        "responses": responses,
    }
    return {
        f"/v2/models/{{name}}{version}/infer": {
            "post": {
                **operation,
                "operationId": f"infer{'_version' if version else ''}",
                "summary": "Run a model.",
                "description": _DESCRIPTION,
                "parameters": [_LENGTH["parameter"], *map(_in_path, names)],
            }
        }
        for version, names in (("", ["name"]), ("/versions/{version}", ["name", "version"]))
    }


def _in_path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


_DESCRIPTION = (
    "Tensors come as JSON; as bytes after it (then the header says how long the JSON is, and each "
    "such input has the parameter `binary_data_size`); or in shared memory. Parameters of the op "
    'are members of `parameters`, lists of integers as "1,0" or as an INT64 input.'
)
_BINARY: Schema = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_LENGTH: Schema = {
    "schema_only": {
        "schema": {"type": "integer"},
        "description": "bytes of the JSON, if more follow",
    },
    "parameter": {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "required": False,
        "description": "bytes of the JSON, if more follow",
        "schema": {"type": "integer", "minimum": 0},
    },
}
_PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
_SHAPE: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_REQUEST: Schema = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": _PARAMETERS,
        "inputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "shape", "datatype"],
                "properties": {
                    "name": {"type": "string"},
                    "shape": _SHAPE,
                    "datatype": {"type": "string"},
                    "parameters": _PARAMETERS,
                    "data": {"type": "array"},
                },
            },
        },
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": _PARAMETERS},
            },
        },
    },
}
_RESPONSE: Schema = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "outputs": {"type": "array", "items": {"type": "object"}},
    },
}
ERROR_SCHEMA: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string", "description": "what is wrong, what is allowed, what came"}
    },
}
