"""The OpenAPI description: the plain routes as FastAPI knows them, and one path for each op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warpcall import errors, wire
from warpcall.dtypes import ITEMSIZE
from warpcall_service.auth.authenticator import OPEN
from warpcall_service.formats import npy
from warpcall_service.formats.media_types import FORM, JSON
from warpcall_service.http.openapi_parts import (
    ANSWER_HEADERS,
    BINARY,
    CALL_HEADERS,
    CALL_PROBLEMS,
    Schema,
    problem_responses,
)
from warpcall_service.http.problems import is_oip
from warpcall_service.oip import openapi


def describe(
    plain: Mapping[str, Any], ops: Iterable[Mapping[str, Any]], others: Mapping[str, Schema]
) -> Schema:
    """The whole description.

    Args:
        plain: what FastAPI generates for the routes it serves.
        ops: the catalog's entries.
        others: operations by method, by path, that FastAPI does not serve either.
    """
    paths: Schema = dict(plain["paths"])
    for op in ops:
        paths[f"/v1/kernels/{op['name']}"] = {"post": _operation(op)}
    paths |= openapi.paths([errors.NotFound, errors.Forbidden, *CALL_PROBLEMS])
    for path, methods in others.items():
        paths[path] = {**methods, **paths.get(path, {})}
    for path, methods in paths.items():
        paths[path] = {
            method: _with_access(path, operation) for method, operation in methods.items()
        }
    components: Schema = dict(plain.get("components", {}))
    components["schemas"] = {
        **components.get("schemas", {}),
        "Problem": _PROBLEM,
        "InferenceError": openapi.ERROR_SCHEMA,
        "Tensor": _TENSOR,
    }
    components["securitySchemes"] = {"key": _KEY}
    return {**plain, "paths": paths, "components": components, "security": [{"key": []}]}


def _with_access(path: str, operation: Schema) -> Schema:
    """An operation with the role that it needs, as `callers.needs` left it, and what else may come."""
    if path in OPEN:
        return {**operation, "x-warpcall-role": "none", "security": []}
    role = operation.get("x-warpcall-role", "call")
    kinds = [errors.Unauthorized, *([errors.Forbidden] if role != "call" else []), errors.Busy]
    describe_problems = openapi.error_responses if is_oip(path) else problem_responses
    responses = {**describe_problems(kinds), **operation["responses"]}
    return {**operation, "x-warpcall-role": role, "responses": responses}


def _operation(op: Mapping[str, Any]) -> Schema:
    outputs = [output["name"] for output in op["outputs"]]
    answers: Schema = {wire.MEDIA_TYPE: {"schema": BINARY}}
    if len(outputs) == 1:
        answers[npy.MEDIA_TYPE] = {"schema": BINARY}
    answers[JSON] = {"schema": _json_answer(outputs)}
    return {
        "operationId": op["name"],
        "tags": ["calls"],
        "summary": op["summary"],
        "description": _description(op),
        "parameters": [*(_query(param) for param in op["params"]), *CALL_HEADERS],
        "requestBody": {
            "required": True,
            "content": {
                wire.MEDIA_TYPE: {"schema": BINARY},
                FORM: {"schema": _form(op)},
                JSON: {"schema": _json_call(op)},
            },
        },
        "responses": {
            "200": {"description": "The outputs", "headers": ANSWER_HEADERS, "content": answers},
            **problem_responses(CALL_PROBLEMS),
        },
    }


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


def _form(op: Mapping[str, Any]) -> Schema:
    files = {i["name"]: {**BINARY, "description": i["doc"]} for i in op["inputs"]}
    texts = {p["name"]: {"type": "string", "description": p["doc"]} for p in op["params"]}
    return {
        "type": "object",
        "properties": {**files, **texts},
        "required": [i["name"] for i in op["inputs"] if not i["optional"]],
    }


def _json_call(op: Mapping[str, Any]) -> Schema:
    tensor = {"$ref": "#/components/schemas/Tensor"}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["inputs"],
        "properties": {
            "inputs": {
                "type": "object",
                "additionalProperties": False,
                "required": [i["name"] for i in op["inputs"] if not i["optional"]],
                "properties": {i["name"]: tensor for i in op["inputs"]},
            },
            "params": {
                "type": "object",
                "additionalProperties": False,
                "properties": {p["name"]: p["schema"] for p in op["params"]},
            },
        },
    }


def _json_answer(outputs: list[str]) -> Schema:
    tensor = {"$ref": "#/components/schemas/Tensor"}
    return {
        "type": "object",
        "required": ["outputs"],
        "properties": {
            "outputs": {"type": "object", "properties": {name: tensor for name in outputs}},
            "stored": {"type": "object", "description": "outputs that stay on the device"},
        },
    }


_KEY: Schema = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "wc_<name>_<secret>",
    "description": "an API key, once the server has any; x-warpcall-role says which role it needs",
}

_PROBLEM: Schema = {
    "type": "object",
    "description": "RFC 9457 problem details",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": f"{errors.TYPE_PREFIX}<code>"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong, what is allowed, what came"},
        "field": {
            "type": "string",
            "description": "the tensor, parameter, header or query item at fault",
        },
        "request_id": {"type": "string"},
    },
}

_TENSOR: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["dtype", "shape", "data"],
    "properties": {
        "dtype": {"type": "string", "enum": list(ITEMSIZE)},
        "shape": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "maxItems": wire.MAX_DIMS,
        },
        "data": {
            "description": "values, flat or nested as the shape says; what JSON cannot say as the "
            'strings "NaN", "Infinity", "-Infinity"; a complex number as [real, imaginary]',
        },
    },
}
