"""The whole OpenAPI description: what FastAPI makes of the routes, and what all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from warpcall import errors
from warpcall_service.auth.authenticator import Authenticator
from warpcall_service.calls.openapi import Program, Tensor
from warpcall_service.extension import Parts
from warpcall_service.http.openapi_parts import REFERENCES, Problem, Schema, problem_responses
from warpcall_service.http.problems import is_oip
from warpcall_service.http.router import schemas_of
from warpcall_service.oip.openapi import (
    InferenceError,
    InferenceRequest,
    InferenceResponse,
    error_responses,
)

# Operations refer to these models by name in `openapi_extra`, where FastAPI does not see them.
MODELS = (
    Problem,
    Tensor,
    Program,
    InferenceRequest,
    InferenceResponse,
    InferenceError,
)
UNUSED = ("HTTPValidationError", "ValidationError")  # FastAPI's form of a 422 response
KEY: Schema = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "wc_<name>_<secret>",
    "description": "An API key, which is needed once the server has any. `x-warpcall-role` is the "
    "role that an operation needs.",
}
SESSION: Schema = {
    "type": "apiKey",
    "in": "cookie",
    "name": "__Host-warpcall",
    "description": "The session of a browser that has logged in; over plain HTTP the cookie is "
    "`warpcall`, and over TLS below a path prefix `__Secure-warpcall`. Requests of other sites' pages are refused.",
}
ANY: list[Schema] = [{"key": []}, {"session": []}]


def describe(
    generated: Mapping[str, Any],
    authenticator: Authenticator,
    answers: Sequence[type[Any]],
    parts: Parts,
) -> Schema:
    """Complete the description that FastAPI generated.

    Args:
        authenticator: knows which paths need no key.
        answers: the models of answers to which routes refer.
    """
    paths = {
        path: {
            method: _with_access(path, operation, authenticator)
            for method, operation in methods.items()
        }
        for path, methods in generated["paths"].items()
    }
    models: Sequence[type[Any]] = (*MODELS, *parts.schemas)
    _, extra = TypeAdapter.json_schemas(
        [(model.__name__, "validation", TypeAdapter(model)) for model in models],
        ref_template=REFERENCES,
    )
    schemas = {**generated["components"]["schemas"], **schemas_of(answers), **extra["$defs"]}
    components = {
        "schemas": {name: schema for name, schema in schemas.items() if name not in UNUSED},
        "securitySchemes": {"key": KEY, "session": SESSION},
    }
    webhooks = {"webhooks": parts.webhooks} if parts.webhooks else {}
    return {**generated, "paths": paths, **webhooks, "components": components, "security": ANY}


def _with_access(path: str, operation: Schema, authenticator: Authenticator) -> Schema:
    """Add the role that an operation needs (see `caller.needs`), and problems of all routes."""
    if authenticator.is_open(path) or authenticator.is_shared(path):
        return {**operation, "x-warpcall-role": "none", "security": []}
    role = operation.get("x-warpcall-role", "call")
    kinds = [errors.Unauthorized, *([errors.Forbidden] if role != "call" else []), errors.Busy]
    if "422" in operation["responses"]:  # FastAPI describes its own form, which no route sends
        kinds.append(errors.InvalidInput)
    describe_problems = error_responses if is_oip(path) else problem_responses
    responses = {**operation["responses"], **describe_problems(kinds)}
    return {**operation, "x-warpcall-role": role, "responses": responses}
