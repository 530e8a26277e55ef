"""The whole OpenAPI description: what FastAPI makes of the routes, and what all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from warpcall import errors
from warpcall.monitors import MonitorNotification
from warpcall_service.auth.authenticator import is_open, is_shared
from warpcall_service.calls.openapi import Program, Tensor
from warpcall_service.compile_reports.models import CompileRequest
from warpcall_service.formats.media_types import JSON
from warpcall_service.http.openapi_parts import Problem, Schema, parameter, problem_responses
from warpcall_service.http.problems import is_oip
from warpcall_service.jobs.models import JobChange, JobRequest
from warpcall_service.monitors import sender
from warpcall_service.monitors.models import MonitorChange, MonitorRequest
from warpcall_service.oip.openapi import (
    InferenceError,
    InferenceRequest,
    InferenceResponse,
    error_responses,
)
from warpcall_service.shares.models import ShareRequest
from warpcall_service.uploads.models import ProblemUpload, UploadRequest

# Operations refer to these models by name in `openapi_extra`, where FastAPI does not see them.
MODELS = (
    Problem,
    Tensor,
    Program,
    JobChange,
    CompileRequest,
    JobRequest,
    MonitorChange,
    MonitorRequest,
    ShareRequest,
    UploadRequest,
    ProblemUpload,
    InferenceRequest,
    InferenceResponse,
    InferenceError,
)
REFERENCES = "#/components/schemas/{model}"
WEBHOOKS: Schema = {
    "monitor": {
        "post": {
            "operationId": "notify",
            "summary": "What the server sends to the URL of a monitor",
            "description": "It is sent when a run shows steps, when runs begin to fail, and when they "
            "work again.",
            "parameters": [
                parameter(sender.DELIVERY, "id of the delivery, the same in each attempt"),
                parameter(sender.TIMESTAMP, "time of this attempt in seconds since 1970"),
                parameter(
                    sender.SIGNATURE, "`sha256=` and the HMAC-SHA256 of timestamp, dot, body"
                ),
            ],
            "requestBody": {
                "required": True,
                "content": {
                    JSON: {"schema": {"$ref": REFERENCES.format(model="MonitorNotification")}}
                },
            },
            "responses": {"2XX": {"description": "It has arrived; otherwise it is sent again."}},
            "security": [],
        }
    }
}
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


def describe(generated: Mapping[str, Any]) -> Schema:
    """Complete the description that FastAPI generated."""
    paths = {
        path: {method: _with_access(path, operation) for method, operation in methods.items()}
        for path, methods in generated["paths"].items()
    }
    _, extra = models_json_schema(
        [(model, "validation") for model in MODELS], ref_template=REFERENCES
    )
    sent = TypeAdapter(MonitorNotification).json_schema(ref_template=REFERENCES)
    steps = sent.pop("$defs")
    schemas = {
        **generated["components"]["schemas"],
        **extra["$defs"],
        **steps,
        "MonitorNotification": sent,
    }
    components = {
        "schemas": {name: schema for name, schema in schemas.items() if name not in UNUSED},
        "securitySchemes": {"key": KEY, "session": SESSION},
    }
    return {
        **generated,
        "paths": paths,
        "webhooks": WEBHOOKS,
        "components": components,
        "security": ANY,
    }


def _with_access(path: str, operation: Schema) -> Schema:
    """Add the role that an operation needs (see `caller.needs`), and problems of all routes."""
    if is_open(path) or is_shared(path):
        return {**operation, "x-warpcall-role": "none", "security": []}
    role = operation.get("x-warpcall-role", "call")
    kinds = [errors.Unauthorized, *([errors.Forbidden] if role != "call" else []), errors.Busy]
    if "422" in operation["responses"]:  # FastAPI describes its own form, which no route sends
        kinds.append(errors.InvalidInput)
    describe_problems = error_responses if is_oip(path) else problem_responses
    responses = {**operation["responses"], **describe_problems(kinds)}
    return {**operation, "x-warpcall-role": role, "responses": responses}
